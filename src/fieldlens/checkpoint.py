"""Folders written atomically and verified on reading: no pickle, a sha256 for every file, never overwritten in place.

Every call that changes the disk goes through `_touch`, so that a test can kill the process or fill the disk at each.
"""

import errno
import hashlib
import json
import os
import re
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldlens.errors import FieldlensError
from fieldlens.store import MANIFEST, sync

FAILPOINT = "FIELDLENS_FAILPOINT"
"""Environment variable for tests: `7:kill`, `7:ENOSPC` or `7:EIO` strikes at the seventh change to the disk."""

_STEP = re.compile(r"step-\d{9,}")
_changes = 0


class Damaged(FieldlensError):
    """A folder is not what was written: something is missing, altered or cut short."""

    exit_code = 4


def _touch() -> None:
    """Count a change to the disk; at the one a test names, die or fail."""
    global _changes  # noqa: PLW0603
    _changes += 1
    when, _, how = os.environ.get(FAILPOINT, "").partition(":")
    if when and int(when) == _changes:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(getattr(errno, how), os.strerror(getattr(errno, how)))


def write_file(path: Path, data: bytes) -> None:
    """Write and fsync; a reader of the folder's manifest will know if this was cut short."""
    _touch()
    with path.open("wb") as file:
        half = len(data) // 2
        file.write(data[:half])
        file.flush()
        _touch()
        file.write(data[half:])
        file.flush()
        _touch()
        os.fsync(file.fileno())


def replace_file(path: Path, data: bytes) -> None:
    """Change a small file so that a reader sees the old text or the new, never a part."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")  # others may be writing the same
    try:
        write_file(beside, data)
        _touch()
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    _fsync_folder(path.parent)


def _fsync_folder(folder: Path) -> None:
    _touch()
    sync(folder)


def write_folder(path: Path, files: Mapping[str, bytes], about: Mapping[str, Any]) -> None:
    """Write a folder that appears whole or not at all. What was there under this name is replaced."""
    beside = path.with_name(f".{path.name}.part")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        _touch()
        beside.mkdir(parents=True)
        for name, data in files.items():
            write_file(beside / name, data)
        sums = {name: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
        write_file(beside / MANIFEST, _sealed({"about": dict(about), "files": sums}))
        _fsync_folder(beside)
        if path.exists():
            _touch()
            shutil.rmtree(path)
        _touch()
        beside.rename(path)
        _fsync_folder(path.parent)
    except OSError:
        shutil.rmtree(beside, ignore_errors=True)
        raise


def _sealed(content: dict[str, Any]) -> bytes:
    """A manifest's text, with its own hash in front: not even a space in it can change unnoticed."""
    text = json.dumps(content, sort_keys=True)
    return f'{{"seal": "{hashlib.sha256(text.encode()).hexdigest()}", "content": {text}}}\n'.encode()


def read_folder(path: Path, others: bool = False) -> dict[str, bytes]:
    """Every file of a folder, checked against its manifest. Raises Damaged, for other files too unless allowed."""
    try:
        manifest = (path / MANIFEST).read_bytes()
        content = json.loads(manifest)["content"]
        listed = content["files"]
        found = {name: (path / name).read_bytes() for name in listed}
        present = {entry.name for entry in path.iterdir()} - {MANIFEST}
        wrong = ([] if others else sorted(present - set(found))) + ([] if manifest == _sealed(content) else [MANIFEST])
        wrong += [
            name
            for name, data in found.items()
            if len(data) != listed[name]["bytes"] or hashlib.sha256(data).hexdigest() != listed[name]["sha256"]
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path.name}: the manifest or a file cannot be read ({type(error).__name__})") from error
    if wrong or not found:
        raise Damaged(f"{path.name}: not what was written: {', '.join(wrong) or 'empty'}")
    return found


def is_whole(path: Path) -> bool:
    """Whether a folder has what was written, perhaps among other files."""
    try:
        read_folder(path, others=True)
    except Damaged:
        return False
    return True


def steps_of(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first; a copy under another name is not ours."""
    return sorted(path for path in folder.glob("step-*") if path.is_dir() and _STEP.fullmatch(path.name))


def save_step(folder: Path, step: int, files: Mapping[str, bytes], about: Mapping[str, Any], keep: int = 2) -> Path:
    """Write the checkpoint of a step, then remove all but the newest few before it.

    Any that are later go too: training can have begun before them only because they are damaged.
    """
    path = folder / f"step-{step:09d}"
    write_folder(path, files, {**about, "step": step})
    found = steps_of(folder)
    for other in [old for old in found if old <= path][:-keep] + [late for late in found if late > path]:
        _touch()
        shutil.rmtree(other)
    return path


def newest_step(folder: Path) -> tuple[int, dict[str, bytes], list[str]] | None:
    """The newest checkpoint that verifies, and what was wrong with those after it."""
    complaints: list[str] = []
    for path in reversed(steps_of(folder)):
        try:
            return int(path.name.removeprefix("step-")), read_folder(path), complaints
        except Damaged as error:
            complaints.append(str(error))
    return None
