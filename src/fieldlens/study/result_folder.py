"""The record of a finished job, and the check that every reader of results uses."""

from functools import lru_cache
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.storage.atomic import hash_of
from fieldlens.storage.sealed import read_sealed

RECORD = "result.json"


def read_record(folder: Path) -> dict[str, Any]:
    """The record of a result folder. Raises BadInput unless it and every file that it lists are as written."""
    record = read_sealed(folder / RECORD)
    files = record.get("files")
    if not isinstance(files, dict):
        raise BadInput(f"{folder / RECORD} does not list the hashes of its files: re-run the study")
    for name, expected in files.items():
        if _hash(folder / str(name)) != expected:
            raise BadInput(f"{folder / str(name)} is missing or was altered after it was written: re-run the study")
    return record


def _hash(path: Path) -> str | None:
    """The hash of a file; None if it cannot be read. Cached by size and mtime, since a running study checks often."""
    try:
        stat = path.stat()
        return _hash_once(path, stat.st_size, stat.st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=1 << 14)
def _hash_once(path: Path, size: int, modified: int) -> str:
    return hash_of(path)
