"""Folders written atomically and verified on reading: no pickle, a sha256 for every file, never overwritten in place.

Every call that changes the disk goes through `_touch`, so that a test can kill the process or fill the disk at each.
"""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldlens.storage.atomic import Damaged, _touch, read_folder, write_folder

_STEP = re.compile(r"step-\d{9,}")


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first; a copy under another name is not ours."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir() and _STEP.fullmatch(path.name))


def save_checkpoint(
    folder: Path, step: int, files: Mapping[str, bytes], about: Mapping[str, Any], keep: int = 2
) -> Path:
    """Write the checkpoint of a step, then remove all but the newest few before it.

    Any that are later go too: training can have begun before them only because they are damaged.
    """
    path = folder / f"step-{step:09d}"
    write_folder(path, files, {**about, "step": step})
    found = checkpoints_in(folder)
    for other in [old for old in found if old <= path][:-keep] + [late for late in found if late > path]:
        _touch()
        shutil.rmtree(other)
    return path


def newest_checkpoint(folder: Path) -> tuple[int, dict[str, bytes], list[str]] | None:
    """The newest checkpoint that verifies, and what was wrong with those after it."""
    complaints: list[str] = []
    for path in reversed(checkpoints_in(folder)):
        try:
            return int(path.name.removeprefix("step-")), read_folder(path), complaints
        except Damaged as error:
            complaints.append(str(error))
    return None
