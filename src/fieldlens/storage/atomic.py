"""One way to write a file or a folder: it appears whole or not at all, and is verified when it is read.

There is no pickle, every file has a sha256 in the folder's manifest, and nothing is overwritten in place. Every change
to the disk goes through `_touch`, so that a test can kill the process or fill the disk at each.
"""

import errno
import hashlib
import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fieldlens.core.errors import FieldlensError

MANIFEST = "manifest.json"


def sync(path: Path) -> None:
    """Make a file, or which names a folder has, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


FAILPOINT = "FIELDLENS_FAILPOINT"
"""Environment variable for tests: `7:kill`, `7:ENOSPC` or `7:EIO` strikes at the seventh change to the disk."""


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
