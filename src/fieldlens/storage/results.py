"""Results: small files that say how they were made, with their arrays beside them."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np

from fieldlens.core.errors import BadInput
from fieldlens.storage.atomic import replace_file


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, (json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except (OSError, ValueError) as error:
        raise BadInput(f"{path} cannot be read: {error}") from None
    if not isinstance(found, dict):
        raise BadInput(f"{path} is no result file")
    return found


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Compressed, and the same bytes for the same arrays."""
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as found:
            return {name: found[name] for name in found.files}
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except Exception as error:  # zipfile, zlib and NumPy each raise their own
        raise BadInput(
            f"{path} cannot be read ({type(error).__name__}): delete it, and what made it makes it again"
        ) from None
