"""The cache: folders named by the content they are made from."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fieldlens.storage.folders import build_folder


def cache_folder() -> Path:
    """FIELDLENS_CACHE, or fieldlens in the user's cache folder."""
    if folder := os.environ.get("FIELDLENS_CACHE"):
        return Path(folder).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fieldlens"


def build(folder: Path, recipe: dict[str, Any], write: Callable[[Path], dict[str, Any]]) -> None:
    """Write a folder of the cache; an intact one that another process wrote meanwhile is kept."""
    build_folder(folder, write, recipe, replace=False)
