"""Folders in the cache, named by the content they are made from.

A folder is written beside its place, fsynced and renamed, and its manifest holds the hash of every file: what is
there is whole.
"""

import fcntl
import hashlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from fieldlens.storage.atomic import MANIFEST, sync

BUILDING = ".building-"
LEFT_OVER = 3600.0
"""Seconds after which what nobody holds is nobody's: one that has just been made is not held yet."""

_CHEAP = 1 << 28


def cache_folder() -> Path:
    """FIELDLENS_CACHE, or fieldlens in the user's cache folder."""
    if given := os.environ.get("FIELDLENS_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fieldlens"


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def hash_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def verified_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder whose files are as it says; hashes are compared where that is cheap."""
    try:
        manifest = json.loads((folder / MANIFEST).read_bytes())
        for name, about in manifest["files"].items():
            size = (folder / name).stat().st_size
            if size != about["bytes"] or (size < _CHEAP and hash_of(folder / name) != about["sha256"]):
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest


def build(folder: Path, recipe: dict[str, Any], write: Callable[[Path], dict[str, Any]]) -> None:
    """Write a folder beside its place, with a manifest, and rename it there; nothing is left if that fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    _sweep(folder.parent)
    place = folder.with_name(f"{BUILDING}{folder.name}-{secrets.token_hex(8)}")
    place.mkdir()  # not mkdtemp, which would lock out everybody with whom the cache is shared
    handle = os.open(place, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # given up when this process ends, however it ends
        found = write(place)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": hash_of(path)}
            for path in sorted(path for path in place.iterdir() if path.is_file())
        }
        (place / MANIFEST).write_text(json.dumps({**recipe, **found, "files": files}, indent=2))
        for path in (*place.iterdir(), place):
            sync(path)
        _put(place, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(place, ignore_errors=True)
        os.close(handle)


def _sweep(parent: Path) -> None:
    """Remove what processes left that were killed while they built."""
    for place in parent.glob(f"{BUILDING}*"):
        with suppress(OSError):
            old = time.time() - place.stat().st_mtime > LEFT_OVER
            handle = os.open(place, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if old:
                    shutil.rmtree(place)
            finally:
                os.close(handle)


def _put(place: Path, folder: Path) -> None:
    if folder.exists() and verified_manifest(folder) is None:
        damaged = place.with_name(f"{place.name}-damaged")
        with suppress(FileNotFoundError):  # another process may have done so already
            folder.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        place.rename(folder)
    except OSError:
        if verified_manifest(folder) is None:  # else another process was faster, and its folder is the same
            raise
