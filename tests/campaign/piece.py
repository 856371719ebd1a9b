"""A piece of the campaign: its cases, and what came out of each; commands in children with limits."""

import io
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import fieldlens.models.hf_export
import fieldlens.training.loop  # noqa: F401 - loaded before the forks, which then start at once
from fieldlens import cli
from fieldlens.storage import atomic

SEED = 20260
"""Every case draws its numbers from this seed and its own name."""

DOCUMENTED = (0, 2, 3, 4)
"""Exit codes of a command that was not stopped by a signal."""


@dataclass(frozen=True)
class Outcome:
    """What came out of a case: how many trials went as promised, changed nothing, were skipped or went wrong."""

    right: int = 0
    harmless: int = 0
    skipped: int = 0
    wrong: int = 0
    notes: list[str] = field(default_factory=list)
    """What went wrong, and what was harmless or skipped and why."""


RIGHT = Outcome(right=1)


def wrong(note: str) -> Outcome:
    return Outcome(wrong=1, notes=[note[-600:]])


def skipped(note: str) -> Outcome:
    return Outcome(skipped=1, notes=[note])


@dataclass(frozen=True)
class Piece:
    """Cases of one kind. Each is run on its own, so that an interrupted piece goes on with the next case."""

    name: str
    promise: str
    prepare: Callable[[Path], Any]
    """Makes what all cases share, in an empty folder."""
    cases: Callable[[Any], Sequence[str]]
    run: Callable[[Any, str], Outcome]


class Ended(NamedTuple):
    """How a command ended: its exit code (negative for a signal), its output, and its changes to the disk."""

    code: int
    out: str
    err: str
    changes: int

    @property
    def documented(self) -> bool:
        """Whether it ended with a documented exit code, and one line if that is not 0."""
        if self.code not in DOCUMENTED or "Traceback" in self.err:
            return False
        *_, last = ["", *self.err.splitlines()]
        return self.code in (0, 3) or last.startswith("fieldlens: ")


class Limits(NamedTuple):
    """Limits of a child: seconds of wall-clock and processor time, bytes of memory beyond what it starts with."""

    seconds: float = 120.0
    cpu: int = 60
    memory: int | None = None
    file_size: int | None = None


DEFAULT = Limits()


def forked(
    words: Sequence[str],
    folder: Path,
    limits: Limits = DEFAULT,
    kill_after: float | None = None,
    entry: Callable[[list[str]], None] = cli.main,
    **settings: str,
) -> Ended:
    """Run a command, or another function of the words, in a forked child, whose working folder is `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder.parent / f".{folder.name}-{os.getpid()}-{name}" for name in ("out", "err", "changes")]
    child = os.fork()
    if child == 0:
        os._exit(_run_here(entry, list(words), folder, files, limits, settings))
    status = _wait(child, kill_after if kill_after is not None else limits.seconds, kill_after is not None)
    out, err, changes = (file.read_text(errors="replace") if file.exists() else "" for file in files)
    for file in files:
        file.unlink(missing_ok=True)
    return Ended(status, out, err, int(changes or 0))


def _run_here(
    entry: Callable[[list[str]], None],
    words: list[str],
    folder: Path,
    files: list[Path],
    limits: Limits,
    settings: dict[str, str],
) -> int:
    """What the child does; its exit code. Nothing of it may raise."""
    code = 99
    try:
        os.setsid()
        os.chdir(folder)
        os.environ.update(settings)
        atomic._changes = 0
        handles = [os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) for file in files[:2]]
        for number, handle in zip((1, 2), handles, strict=True):
            os.dup2(handle, number)
        sys.stdout, sys.stderr = (io.TextIOWrapper(open(n, "wb", 0, closefd=False), write_through=True) for n in (1, 2))  # noqa: SIM115
        _limit(limits)
        try:
            entry(words)
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            traceback.print_exc()
        files[2].write_text(str(atomic._changes))
    except BaseException:
        traceback.print_exc()
    return code


def _limit(limits: Limits) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (limits.cpu, limits.cpu + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.file_size is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limits.file_size, limits.file_size))
    if limits.memory is not None:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        size = pages * resource.getpagesize() + limits.memory
        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def _wait(child: int, seconds: float, killing: bool) -> int:
    """The exit code of a child; after so many seconds it is killed. A child that hangs has code 98."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002 if killing else 0.02)
    os.killpg(child, signal.SIGKILL) if os.getpgid(child) == child else os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL if killing else 98
