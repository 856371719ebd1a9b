"""Checkpoints: one folder per step, the newest few kept, the newest that verifies found."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldlens.storage.atomic import touch_disk
from fieldlens.storage.folders import Damaged, read_folder, write_folder

_STEP = re.compile(r"step-\d{9,}")


def checkpoints_in(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first; folders with other names are ignored."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir() and _STEP.fullmatch(path.name))


def save_checkpoint(
    folder: Path, step: int, files: Mapping[str, bytes], about: Mapping[str, Any], keep: int = 2
) -> Path:
    """Write the checkpoint of a step, then remove all but the newest `keep` up to it.

    Later checkpoints are removed too: training restarts before them only if they are damaged.
    """
    path = folder / f"step-{step:09d}"
    write_folder(path, files, {**about, "step": step})
    checkpoints = checkpoints_in(folder)
    outdated = [other for other in checkpoints if other <= path][:-keep]
    for other in outdated + [other for other in checkpoints if other > path]:
        touch_disk()
        shutil.rmtree(other)
    return path


def newest_checkpoint(folder: Path) -> tuple[int, dict[str, bytes], list[str]] | None:
    """The newest checkpoint that verifies: its step, its files, and what is wrong with later ones."""
    problems: list[str] = []
    for path in reversed(checkpoints_in(folder)):
        try:
            return int(path.name.removeprefix("step-")), read_folder(path), problems
        except Damaged as error:
            problems.append(str(error))
    return None
