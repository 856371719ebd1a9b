"""Results: small JSON files that say how they were made, with their arrays beside them in an .npz file."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fieldlens.core.errors import BadInput
from fieldlens.core.faults import machine_fault
from fieldlens.storage.atomic import hash_of, replace_file, replace_text
from fieldlens.storage.sealed import read_sealed, write_sealed

ARRAYS = "arrays_sha256"
"""The key of a result that holds the hash of its arrays."""


def write_result(path: Path, content: Mapping[str, Any], arrays: dict[str, np.ndarray] | None = None) -> None:
    """Write a sealed JSON file, with the arrays beside it first; the JSON file holds their hash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if arrays is not None:
        write_arrays(path.with_suffix(".npz"), arrays)
        content = {**content, ARRAYS: hash_of(path.with_suffix(".npz"))}
    write_sealed(path, dict(content))


def read_result(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The content and the arrays of a result, verified; no arrays if none were written."""
    content = read_sealed(path)
    try:
        json.dumps(content.get("model"), ensure_ascii=False).encode()
    except UnicodeEncodeError:  # no name of a model that was loaded has a lone surrogate, and nothing can draw one
        raise BadInput(f"{path} cannot be read: the record of its model is not valid Unicode") from None
    expected, arrays = content.pop(ARRAYS, None), path.with_suffix(".npz")
    if expected is not None and (not arrays.is_file() or hash_of(arrays) != expected):
        problem = "was altered after it was written" if arrays.is_file() else "is missing"
        raise BadInput(f"{arrays} {problem}: delete {path.name} and re-run the command that wrote it")
    if expected is None and not arrays.is_file():
        return content, {}
    return content, read_arrays(arrays)


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file that decides no number, without a seal."""
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_text(path, json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write compressed arrays; equal arrays give equal bytes."""
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)  # type: ignore[arg-type]
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data.getvalue())


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz file."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise BadInput(f"{path} does not exist") from None
    except Exception as error:  # zipfile, zlib and NumPy raise different classes
        if fault := machine_fault(error):
            raise fault from error
        raise BadInput(
            f"{path} cannot be read ({type(error).__name__}): delete it and re-run the command that wrote it"
        ) from None
