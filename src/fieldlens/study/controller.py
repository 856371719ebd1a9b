"""The controller: gives out jobs until all are done or have failed too often, whatever happens on the way.

It knows nothing that is not in files: another controller may work on the same study, and this one may be killed and
started again.
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
from fieldlens.storage.atomic import replace_file
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
    """A signal asked for an end; the jobs are saved."""

    def __init__(self, number: int) -> None:
        super().__init__("stopped; what was done is kept, and the same command goes on")
        self.exit_code = 128 + number


@dataclass
class _Attempt:
    worker: Worker
    seen: Any = None
    """The last progress that the job told of."""
    at: float = field(default_factory=time.monotonic)
    stopped: bool = False
    """Because it made no progress."""


class Controller:
    """One study, its places, and who does its jobs."""

    def __init__(
        self,
        study: Study,
        places: StudyPaths,
        gather: Callable[[], Executor],
        machine: Machine,
        corpora: Path | None = None,
        time_limit: float = 1800.0,
        watch: Callable[[], None] = lambda: None,
    ) -> None:
        self.study, self.places, self.gather, self.machine = study, places, gather, machine
        self.corpora, self.time_limit, self.watch = corpora, time_limit, watch
        self.texts = dict(study.pins)
        """The text that each corpus has, or must have."""
        self.attempts: dict[str, _Attempt] = {}
        self.over: set[str] = set()
        """Jobs that need not be looked at again."""

    def prepare(self) -> None:
        """See what the corpora say now: results from another text are stale. One that is absent must not be needed."""
        for corpus, found in texts_of(self.study, self.corpora, {job.recipe.corpus for job in self.study.jobs}).items():
            wanted = self.texts.setdefault(corpus, found)
            if found != wanted:
                raise BadInput(
                    f"corpus '{corpus}' has another text ({found[:12]}) than the study pins ({wanted[:12]}): "
                    "put that text there, or run a copy of the study file without its [data]"
                )
        self.study.check_corpora(self.corpora, self._left())

    def run(self) -> None:
        """Until nothing is left to do. A signal is passed on to the workers, who save."""
        write_study(self.study, self.places)
        if not self._left():
            return
        executor = self.gather()
        with catch_signals() as heard:
            try:
                while self._left():
                    if heard():
                        raise Interrupted(heard())
                    self._give_out(executor)
                    time.sleep(POLL)
                    self._collect(executor)
                    self.watch()
            finally:
                self._stop()
                executor.close()

    def _left(self) -> list[Job]:
        some = [job for job in self.study.jobs if job.name not in self.over]
        left = [job for job in some if self._state(job) not in ("done", "failed")]
        self.over |= {job.name for job in some} - {job.name for job in left}
        return left

    def _state(self, job: Job) -> State:
        if job.name in self.attempts:
            return "running"
        return state_of(job, self.places, self.texts)

    def _give_out(self, executor: Executor) -> None:
        for job in self.study.jobs:
            if len(self.attempts) >= executor.room:
                return
            if job.name not in self.over and self._state(job) in ("partial", "missing", "stale"):
                place = self.study.place(job.recipe.corpus, self.corpora)
                order = Order(job, self.places, place, self.machine)
                self.attempts[job.name] = _Attempt(executor.start(order))

    def _collect(self, executor: Executor) -> None:
        for job in self.study.jobs:
            attempt = self.attempts.get(job.name)
            if attempt is None:
                continue
            code = attempt.worker.code()
            if code is None:
                self._hurry(job, attempt, executor.queues)
                continue
            del self.attempts[job.name]
            if code != 0:
                reason = f"no progress for {self.time_limit:.0f} s" if attempt.stopped else f"ended with code {code}"
                self._failed(job, code, reason)
            elif self._state(job) in ("partial", "missing", "stale"):
                self._failed(job, code, "ended without the result that is asked for: did its text change meanwhile?")

    def _hurry(self, job: Job, attempt: _Attempt, queues: bool) -> None:
        """A job that makes no progress for too long is ended."""
        said, now = progress_of(job, self.places), time.monotonic()
        waits = queues and not is_locked(self.places.lock(job))
        if said != attempt.seen or waits or said.get("stage") == PREPARING:
            attempt.seen, attempt.at = said, now
        elif now - attempt.at > self.time_limit:
            attempt.stopped, attempt.at = True, now
            attempt.worker.stop(now=True)

    def _failed(self, job: Job, code: int, reason: str) -> None:
        """Note it; three times without getting any further is too often, and bad input stays bad."""
        path, log = self.places.attempts(job), self.places.log(job)
        before = json.loads(path.read_text()) if path.exists() else []
        here = reached(job, self.places)
        before = [*(one for one in before if one["reached"] == here), {"code": code, "reason": reason, "reached": here}]
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, json.dumps(before).encode())
        if code == 2 or len(before) >= ATTEMPTS:
            tail = log.read_text(errors="replace").splitlines()[-LOG_LINES:] if log.exists() else []
            before[-1]["reason"] += f": {tail[-1]}" if code == 2 and tail else ""
            write_json(
                self.places.failure(job),
                {
                    "kind": "fieldlens failure",
                    "addresses": job.config_hashes,
                    "attempts": before,
                    "log": tail,
                    **job.to_json(),
                },
            )

    def _stop(self) -> None:
        """Let the workers save; after a while, or at a second signal, they are ended, which loses a few steps."""
        for attempt in self.attempts.values():
            attempt.worker.stop()
        end = time.monotonic() + GRACE
        with catch_signals() as again:
            while any(attempt.worker.code() is None for attempt in self.attempts.values()):
                if again() or time.monotonic() > end:
                    for attempt in self.attempts.values():
                        attempt.worker.stop(now=True)
                time.sleep(POLL)


def texts_of(study: Study, corpora: Path | None, some: Iterable[str]) -> dict[str, str]:
    """The fingerprints of those corpora that are here."""
    here = [corpus for corpus in sorted(some) if study.has(corpus, corpora)]
    return {corpus: open_corpus(study.place(corpus, corpora)).fingerprint() for corpus in here}


def write_study(study: Study, places: StudyPaths) -> None:
    """What the results are the results of, for who reads them later; nothing if that stands there."""
    content = {
        "kind": "fieldlens study",
        "name": study.name,
        "title": study.title,
        "jobs": [{"name": job.name} for job in study.whole],
    }
    path = places.results / "study.json"
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    if not path.exists() or path.read_text() != text:
        write_json(path, content)


def clear_failures(study: Study, places: StudyPaths) -> None:
    """Let failed jobs be tried again."""
    for job in study.jobs:
        for path in (places.failure(job), places.attempts(job)):
            path.unlink(missing_ok=True)
