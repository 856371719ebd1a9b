"""A run folder: one owner, a status, metrics in which each step stands once, checkpoints, the final model."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput, FieldlensError
from fieldlens.storage.atomic import replace_file


class Occupied(FieldlensError):
    """Another process works in this run folder."""

    exit_code = 4


@dataclass(frozen=True)
class Run:
    """Where the parts of a run lie."""

    folder: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def data(self) -> Path:
        """Where the text lay, and the manifest of its tokens."""
        return self.folder / "data.json"

    @property
    def status(self) -> Path:
        return self.folder / "status.json"

    @property
    def metrics(self) -> Path:
        return self.folder / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        return self.folder / "checkpoints"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the folder's lock."""
        what = f"{self.folder}: another process is training here; wait for it or choose another --out"
        with locked(self.folder / "lock", what):
            yield

    @property
    def is_owned(self) -> bool:
        """Whether some process works here now."""
        return is_locked(self.folder / "lock")

    def write(self, path: Path, content: dict[str, Any]) -> None:
        """One of the run's JSON files."""
        replace_file(path, (json.dumps(content, indent=2) + "\n").encode())

    def write_status(self, state: str, **details: Any) -> None:
        """State is running, stopped, finished or diverged."""
        replace_file(self.status, (json.dumps({"state": state, **details}) + "\n").encode())

    def read(self, path: Path) -> dict[str, Any]:
        """One of the run's JSON files; {} when it is not there."""
        try:
            found = json.loads(path.read_text())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise BadInput(f"{path} is not JSON: {error}") from None
        if not isinstance(found, dict):
            raise BadInput(f"{path} is not what a run writes: {type(found).__name__}, not an object")
        return found

    def history(self) -> list[dict[str, Any]]:
        """The metrics so far, up to a line that was cut short or damaged: it and all after it are no checkpoint's."""
        lines = self.metrics.read_bytes().split(b"\n")[:-1] if self.metrics.exists() else []
        return list(takewhile(bool, map(_row, lines)))

    def rewind(self, step: int) -> None:
        """Forget what was logged after a step, so that each step stands once when it is done again."""
        kept = [row for row in self.history() if row["step"] <= step]
        if self.metrics.exists():
            replace_file(self.metrics, b"".join(json.dumps(row).encode() + b"\n" for row in kept))

    def log(self, row: dict[str, Any]) -> None:
        with self.metrics.open("ab") as file:
            file.write(json.dumps(row).encode() + b"\n")

    def sync(self) -> None:
        """Make the metrics durable, before a checkpoint says that these steps are done."""
        if self.metrics.exists():
            with self.metrics.open("rb") as file:
                os.fsync(file.fileno())


def _row(line: bytes) -> dict[str, Any]:
    """A line of the metrics; {} if it is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return {}
    return row if isinstance(row, dict) and "step" in row else {}


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock; the kernel gives it up when the process ends, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for last in (False, False, True):  # who asks `is_locked` holds it for a moment
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last:
                    raise Occupied(refusal) from None
                time.sleep(0.05)
        yield


def is_locked(path: Path) -> bool:
    """Whether some process holds a lock now."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def runs_below(folder: Path) -> list[Run]:
    """Every run folder below one, itself included."""
    return [Run(path.parent) for path in sorted(folder.rglob("status.json"))]
