"""The controller: starts jobs until all are done or have failed too often.

Its whole state is in files: several controllers may work on one study, and a killed one can be started again.
"""

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput, FieldlensError
from fieldlens.data.corpus import open_corpus
from fieldlens.storage.atomic import replace_file, touch_disk
from fieldlens.storage.results import write_json
from fieldlens.storage.run_dir import is_locked
from fieldlens.study.executors import Executor, Order, Worker
from fieldlens.study.job import GRACE, PREPARING
from fieldlens.study.plan import Job, Study
from fieldlens.study.state import State, StudyPaths, progress_of, reached, state_of
from fieldlens.training.loop import catch_signals

ATTEMPTS = 3
POLL = 0.5
LOG_LINES = 20


class Interrupted(FieldlensError):
    """A signal stopped the study; the jobs are saved."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped; finished work is saved: run the same command to continue")
        self.exit_code = 128 + number


class MachineFault(FieldlensError):
    """Jobs stopped because of the machine: a full disk, a lack of memory."""

    exit_code = 4


@dataclass
class _Attempt:
    worker: Worker
    progress: Any = None
    """The last progress that the job reported."""
    at: float = field(default_factory=time.monotonic)
    """The time of that progress."""
    stopped: bool = False
    """Whether it was stopped because it made no progress."""


class Controller:
    """Runs the jobs of one study with an executor."""

    def __init__(
        self,
        study: Study,
        paths: StudyPaths,
        make_executor: Callable[[], Executor],
        machine: Machine,
        corpora: Path | None = None,
        time_limit: float = 1800.0,
        refresh: Callable[[], None] = lambda: None,
    ) -> None:
        self.study, self.paths, self.make_executor, self.machine = study, paths, make_executor, machine
        self.corpora, self.time_limit, self.refresh = corpora, time_limit, refresh
        self.texts = dict(study.pins)
        """The required fingerprint of each corpus."""
        self.attempts: dict[str, _Attempt] = {}
        self.finished: set[str] = set()
        """Jobs that are done, have failed, or have met faults of the machine too often."""
        self.faults: dict[str, str] = {}
        """The last faults of jobs that a full disk, a lack of memory or another fault of the machine stopped."""

    def prepare(self) -> None:
        """Check the corpora: they must match the study's pins, and those of unfinished jobs must be available.

        Results from another text are stale.
        """
        available = texts_of(self.study, self.corpora, {job.recipe.corpus for job in self.study.jobs})
        for corpus, text in available.items():
            required = self.texts.setdefault(corpus, text)
            if text != required:
                raise BadInput(
                    f"corpus '{corpus}' has the fingerprint {text[:12]}, but the study requires {required[:12]}: "
                    "use the required text, or run a copy of the study file without its [data]"
                )
        self.study.check_corpora(self.corpora, self._unfinished())

    def run(self) -> None:
        """Run jobs until all are finished. A signal is passed on to the workers, which save and exit.

        Raises MachineFault at the end if a fault of the machine stopped a job, which has then not failed.
        """
        write_study(self.study, self.paths)
        if not self._unfinished():
            return
        executor = self.make_executor()
        with catch_signals() as received:
            try:
                while self._unfinished():
                    if received():
                        raise Interrupted(received())
                    self._start_jobs(executor)
                    time.sleep(POLL)
                    self._collect_jobs(executor)
                    self.refresh()
            finally:
                self._stop_workers()
                executor.close()
        if self.faults:
            name, fault = next(iter(self.faults.items()))
            raise MachineFault(
                f"{len(self.faults)} of {len(self.study.jobs)} runs could not be finished; {name}: {fault}"
            )

    def _unfinished(self) -> list[Job]:
        unfinished = []
        for job in self.study.jobs:
            if job.name not in self.finished:
                if self._state(job) in ("done", "failed"):
                    self.finished.add(job.name)
                else:
                    unfinished.append(job)
        return unfinished

    def _state(self, job: Job) -> State:
        if job.name in self.attempts:
            return "running"
        return state_of(job, self.paths, self.texts)

    def _start_jobs(self, executor: Executor) -> None:
        """Start jobs until the executor is full."""
        for job in self.study.jobs:
            if len(self.attempts) >= executor.room:
                return
            if job.name not in self.finished and self._state(job) in ("partial", "missing", "stale"):
                corpus = self.study.place(job.recipe.corpus, self.corpora)
                order = Order(job, self.paths, corpus, self.machine)
                self.attempts[job.name] = _Attempt(executor.start(order))

    def _collect_jobs(self, executor: Executor) -> None:
        """Remove the attempts that have ended, and record failures."""
        for job in self.study.jobs:
            attempt = self.attempts.get(job.name)
            if attempt is None:
                continue
            code = attempt.worker.code()
            if code is None:
                self._check_progress(job, attempt, executor.queues)
                continue
            del self.attempts[job.name]
            if code != 0:
                reason = f"no progress for {self.time_limit:.0f} s" if attempt.stopped else f"ended with code {code}"
                self._record_failure(job, code, reason)
            elif self._state(job) in ("partial", "missing", "stale"):
                self._record_failure(job, code, "ended without the expected result: did the corpus change meanwhile?")

    def _check_progress(self, job: Job, attempt: _Attempt, queues: bool) -> None:
        """Kill the worker of a job that made no progress within the time limit."""
        progress, now = progress_of(job, self.paths), time.monotonic()
        queued = queues and not is_locked(self.paths.lock(job))
        if progress != attempt.progress or queued or progress.get("stage") == PREPARING:
            attempt.progress, attempt.at = progress, now
        elif now - attempt.at > self.time_limit:
            attempt.stopped, attempt.at = True, now
            attempt.worker.stop(now=True)

    def _record_failure(self, job: Job, code: int, reason: str) -> None:
        """Record a failed attempt. Three without further progress are final, and so is invalid input.

        Faults of the machine are final for this command only.
        """
        path, log = self.paths.attempts(job), self.paths.log(job)
        current = reached(job, self.paths)
        attempts = [attempt for attempt in _attempts(path) if attempt["reached"] == current]
        attempts.append({"code": code, "reason": reason, "reached": current})
        touch_disk()
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(attempts).encode())
        if code == 2 or len(attempts) >= ATTEMPTS:
            tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
            if code == MachineFault.exit_code:  # no fault of the job: the same command tries again
                self.finished.add(job.name)
                self.faults[job.name] = tail[-1].removeprefix("fieldlens: ") if tail else reason
                path.unlink()
                return
            attempts[-1]["reason"] += f": {tail[-1]}" if code == 2 and tail else ""
            write_json(
                self.paths.failure(job),
                {
                    "kind": "fieldlens failure",
                    "addresses": job.config_hashes,
                    "attempts": attempts,
                    "log": tail,
                    **job.to_json(),
                },
            )

    def _stop_workers(self) -> None:
        """Let the workers save and exit; kill them after GRACE seconds or a second signal, which loses a few steps."""
        for attempt in self.attempts.values():
            attempt.worker.stop()
        end = time.monotonic() + GRACE
        with catch_signals() as received:
            while any(attempt.worker.code() is None for attempt in self.attempts.values()):
                if received() or time.monotonic() > end:
                    for attempt in self.attempts.values():
                        attempt.worker.stop(now=True)
                time.sleep(POLL)


def texts_of(study: Study, corpora: Path | None, names: Iterable[str]) -> dict[str, str]:
    """The fingerprints of the named corpora that are available on this machine."""
    available = [corpus for corpus in sorted(names) if study.has(corpus, corpora)]
    return {corpus: open_corpus(study.place(corpus, corpora)).fingerprint() for corpus in available}


def write_study(study: Study, paths: StudyPaths) -> None:
    """Write study.json, which lists the jobs of a results folder; an identical file is left untouched."""
    content = {
        "kind": "fieldlens study",
        "name": study.name,
        "title": study.title,
        "jobs": [{"name": job.name} for job in study.whole],
    }
    path = paths.results / "study.json"
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if not path.exists() or path.read_text() != text:
        write_json(path, content)


def clear_failures(study: Study, paths: StudyPaths) -> None:
    """Delete the records of failed attempts, so that the jobs are run again."""
    for job in study.jobs:
        for path in (paths.failure(job), paths.attempts(job)):
            path.unlink(missing_ok=True)


def _attempts(path: Path) -> list[dict[str, Any]]:
    """The attempts that failed so far; none if their file is damaged."""
    try:
        attempts = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return []
    valid = isinstance(attempts, list) and all(isinstance(row, dict) and "reached" in row for row in attempts)
    return attempts if valid else []
