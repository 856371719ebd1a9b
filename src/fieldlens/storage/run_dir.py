"""A run folder: one owner, a status, metrics with one row per step, checkpoints, the final model."""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

from fieldlens.core.errors import BadInput, FieldlensError
from fieldlens.storage.atomic import replace_file
from fieldlens.storage.records import RunStatus
from fieldlens.storage.sealed import SEAL, digest, read_json, read_sealed, write_sealed, written_before_seals


class Occupied(FieldlensError):
    """Another process is using this folder."""

    exit_code = 4


_FILES = {
    "config": "config.json",
    "data": "data.json",
    "status": "status.json",
    "metrics": "metrics.jsonl",
    "checkpoints": "checkpoints",
    "model": "model",
}


@dataclass(frozen=True)
class Run:
    """The files of a run folder."""

    folder: Path
    config: Path = field(init=False)
    """The recipe, the experiment's identity, versions and machine."""
    data: Path = field(init=False)
    """The place of the corpus, and the manifest of its tokens."""
    status: Path = field(init=False)
    metrics: Path = field(init=False)
    checkpoints: Path = field(init=False)
    model: Path = field(init=False)

    def __post_init__(self) -> None:
        for name, file in _FILES.items():
            object.__setattr__(self, name, self.folder / file)

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Hold the folder's lock."""
        message = f"{self.folder}: another process is training here; wait for it or choose another --out"
        with locked(self.folder / "lock", message):
            yield

    @property
    def is_owned(self) -> bool:
        """Whether a process is training here now."""
        return is_locked(self.folder / "lock")

    def write(self, path: Path, content: dict[str, Any]) -> None:
        """Write one of the run's JSON files, sealed."""
        write_sealed(path, content, indent=2)

    def read_status(self) -> RunStatus:
        """The status, verified; {} if there is none."""
        return cast(RunStatus, self.read(self.status))

    def begin(self, step: int, data: dict[str, Any], config: dict[str, Any]) -> None:
        """Write the files of a run that starts, or goes on after a step."""
        self.write(self.data, data)
        self.write(self.config, config)
        self.rewind(step)
        self.write_status("running", step=step)

    def write_status(self, state: str, **details: Any) -> None:
        """Write the status: running, stopped, finished or diverged."""
        write_sealed(self.status, {"state": state, **details}, indent=None)

    def read(self, path: Path) -> dict[str, Any]:
        """One of the run's JSON files, verified; {} if there is none."""
        if not path.exists():
            return {}
        return read_sealed(path, unsealed=path != self.config and self._is_unsealed)

    @property
    def _is_unsealed(self) -> bool:
        """Whether version 0.1 wrote this run, which sealed nothing."""
        try:
            config = read_json(self.config)
        except BadInput:
            return False
        return written_before_seals(config)  # also if a resume was killed after it sealed this file

    def history(self) -> list[dict[str, Any]]:
        """The metrics so far, up to the first line that is truncated or damaged."""
        lines = self.metrics.read_bytes().split(b"\n")[:-1] if self.metrics.exists() else []
        return list(takewhile(bool, map(_row, lines)))

    def rewind(self, step: int) -> None:
        """Remove the metrics of later steps, so that each step is logged once when it is repeated."""
        kept = [row for row in self.history() if row["step"] <= step]
        if self.metrics.exists():
            replace_file(self.metrics, b"".join(map(_line, kept)))

    def log(self, row: dict[str, Any]) -> None:
        """Append the metrics of a step."""
        with self.metrics.open("ab") as file:
            file.write(_line(row))

    def sync(self) -> None:
        """Make the metrics durable, before a checkpoint is written."""
        if self.metrics.exists():
            with self.metrics.open("rb") as file:
                os.fsync(file.fileno())


_UNSEALED = {"step", "loss", "learning_rate", "gradient_norm", "validation_perplexity"}
"""The keys of a row that version 0.1 wrote."""


def _line(row: dict[str, Any]) -> bytes:
    """A row of the metrics with its own short hash."""
    return json.dumps({**row, SEAL: digest(row)[:8]}).encode() + b"\n"


def _row(line: bytes) -> dict[str, Any]:
    """A line of the metrics; {} if it is damaged. Version 0.1 wrote no hash."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(row, dict) or "step" not in row:
        return {}
    expected = row.pop(SEAL, None)
    if expected is None:
        return row if row.keys() <= _UNSEALED else {}
    return row if expected == digest(row)[:8] else {}


@contextmanager
def locked(path: Path, refusal: str) -> Iterator[None]:
    """Hold a lock, which the kernel releases when the process ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for last in (False, False, True):  # `is_locked` holds it for a moment
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if last:
                    raise Occupied(refusal) from None
                time.sleep(0.05)
        yield


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock now."""
    try:
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:
        pass
    return False


def runs_below(folder: Path) -> list[Run]:
    """Every run folder below a folder, itself included."""
    return [Run(path.parent) for path in sorted(folder.rglob("status.json"))]
