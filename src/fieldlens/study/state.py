"""Where the parts of a study lie, and how far each job has come: told from files alone.

done: its result is there, and is what the study asks for. stale: it is there, but something else was asked then, or
it is damaged.
running: a process works on it now. partial: it was begun. failed: it failed too often. missing: none of these.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from fieldlens.core.errors import BadInput
from fieldlens.storage.checkpoints import checkpoints_in
from fieldlens.storage.content_cache import hash_of
from fieldlens.storage.results import read_json
from fieldlens.storage.run_dir import is_locked
from fieldlens.study.plan import Job, Study

State = Literal["done", "partial", "running", "stale", "missing", "failed"]


@dataclass(frozen=True)
class StudyPaths:
    """Where results and the work on them lie."""

    results: Path
    """Small files, made to be committed."""
    runs: Path
    """Run folders, logs, checkpoints: nothing that a reader of the results needs."""

    def result(self, job: Job) -> Path:
        return self.results / job.name

    def work(self, job: Job) -> Path:
        return self.runs / job.name

    def lock(self, job: Job) -> Path:
        return self.work(job) / "job.lock"

    def progress(self, job: Job) -> Path:
        return self.work(job) / "progress.json"

    def timings(self, job: Job) -> Path:
        return self.work(job) / "timings.json"

    def log(self, job: Job) -> Path:
        return self.work(job) / "log.txt"

    def failure(self, job: Job) -> Path:
        """Why a job failed, kept among the results: that is one too."""
        return self.result(job) / "failed.json"

    def attempts(self, job: Job) -> Path:
        return self.work(job) / "attempts.json"


def result_of(job: Job, places: StudyPaths) -> dict[str, Any] | None:
    """A job's result, if there is one that can be read."""
    try:
        return read_json(places.result(job) / "result.json")
    except BadInput:
        return None


def state_of(job: Job, places: StudyPaths, texts: Mapping[str, str] | None = None, locks: bool = True) -> State:
    """How far a job has come, if each corpus must have this text; `locks` says whether to look who works on it."""
    if locks and is_locked(places.lock(job)):
        return "running"
    found = result_of(job, places)
    if found is not None and _is_done(job, found, places.result(job), (texts or {}).get(job.recipe.corpus)):
        return "done"
    if _failed(job, places):
        return "failed"
    if (places.result(job) / "result.json").exists():
        return "stale"
    return "partial" if (places.work(job) / "config.json").exists() else "missing"


def _is_done(job: Job, found: dict[str, Any], folder: Path, text: str | None) -> bool:
    """Whether a result is what is asked for, from this text, and its files are as it says."""
    if text is not None and found.get("text") != text:
        return False
    asked, files = found.get("addresses"), found.get("files")
    if found.get("state") == "diverged":
        return isinstance(asked, dict) and asked.get("training") == job.training_hash
    if asked != job.config_hashes or not isinstance(files, dict):
        return False
    return all(_hash(folder / name) == sha256 for name, sha256 in files.items())


def _hash(path: Path) -> str | None:
    """A file's hash, computed again only if it was touched: a study asks for all of them every few seconds."""
    try:
        about = path.stat()
        return _hash_once(path, about.st_size, about.st_mtime_ns)
    except OSError:
        return None


@lru_cache(maxsize=1 << 14)
def _hash_once(path: Path, size: int, touched: int) -> str:
    return hash_of(path)


def _failed(job: Job, places: StudyPaths) -> bool:
    """Whether just this failed; another question has not."""
    try:
        return read_json(places.failure(job)).get("addresses") == job.config_hashes
    except BadInput:
        return False


def progress_of(job: Job, places: StudyPaths) -> dict[str, Any]:
    """What a job last said of itself; {} if nothing."""
    try:
        found = json.loads(places.progress(job).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def reached(job: Job, places: StudyPaths) -> list[int]:
    """How far the work on a job is safe: the step of its newest checkpoint, and how many evaluations there are."""
    work = places.work(job)
    steps = [int(path.name.split("-")[-1]) for path in checkpoints_in(work / "checkpoints")]
    return [max(steps, default=0), len(list((work / "evaluations").glob("*.json")))]


def job_states(study: Study, places: StudyPaths) -> dict[str, State]:
    """The state of every job, by its name."""
    return {job.name: state_of(job, places, study.pins) for job in study.jobs}
