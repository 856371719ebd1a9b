"""Verification of a model folder against the manifest that training wrote beside the weights."""

from pathlib import Path

from fieldlens.core.errors import BadInput
from fieldlens.storage.folders import MANIFEST, Damaged, has_manifest, verify_folder


def verify_model_folder(folder: Path, required: bool = False) -> bool:
    """Check every file against the manifest; False if the folder has none of ours and none is `required`."""
    if not required and not has_manifest(folder):
        return False
    try:
        verify_folder(folder)
    except Damaged as error:
        raise BadInput(
            f"the model folder {folder} is damaged ({error}): train again or restore it; "
            f"if you changed it yourself, delete its {MANIFEST}"
        ) from None
    return True
