"""Files that are written atomically: a reader sees the old content or the new, never a part.

Every change to the disk goes through `_touch`, so that a test can kill the process or fail with ENOSPC or EIO at each.
"""

import errno
import hashlib
import os
import signal
from pathlib import Path

FAILPOINT = "FIELDLENS_FAILPOINT"
"""Environment variable for tests: `7:kill`, `7:ENOSPC` or `7:EIO` strikes at the seventh change to the disk."""

_changes = 0


def _touch() -> None:
    """Count a change to the disk; at the one that FAILPOINT names, kill the process or raise the error."""
    global _changes  # noqa: PLW0603
    _changes += 1
    number, _, fault = os.environ.get(FAILPOINT, "").partition(":")
    if number and int(number) == _changes:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(getattr(errno, fault), os.strerror(getattr(errno, fault)))


def touch_disk() -> None:
    """Announce a change to the disk that the caller makes itself: a mkdir, a rename, a removal."""
    _touch()


def write_file(path: Path, data: bytes) -> None:
    """Write and fsync a file in place; for folders whose manifest is written after their files."""
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
    """Replace a small file atomically: write a temporary file beside it, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")  # other processes may write the same file
    try:
        write_file(temporary, data)
        _touch()
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_text(path: Path, text: str) -> None:
    """Replace a text file atomically; lone surrogates, of odd file names, are written as escapes."""
    replace_file(path, text.encode(errors="backslashreplace"))


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    _touch()
    sync(folder)


def sync(path: Path) -> None:
    """Make a file, or the names in a folder, durable."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def hash_of(path: Path) -> str:
    """The sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
