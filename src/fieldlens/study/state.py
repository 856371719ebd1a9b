"""The files of a study, and the state of each job, which is read from files alone.

done: its result exists and matches the study. stale: it exists, but belongs to other settings or was altered.
running: a process works on it now. partial: it was started. failed: it failed too often. missing: none of these.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fieldlens.core.errors import BadInput
from fieldlens.storage.checkpoints import checkpoints_in
from fieldlens.storage.run_dir import is_locked
from fieldlens.storage.sealed import read_json
from fieldlens.study.plan import Job, Study
from fieldlens.study.result_folder import RECORD, read_record

State = Literal["done", "partial", "running", "stale", "missing", "failed"]


@dataclass(frozen=True)
class StudyPaths:
    """The folders of a study, and the files of each job in them."""

    results: Path
    """Small files, meant to be committed."""
    runs: Path
    """Run folders, logs, checkpoints: not needed by readers of the results."""

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
        """Why a job failed; kept with the results."""
        return self.result(job) / "failed.json"

    def attempts(self, job: Job) -> Path:
        return self.work(job) / "attempts.json"


def record_of(job: Job, paths: StudyPaths) -> dict[str, Any] | None:
    """The record of a job's result, verified; None if there is none or it was altered."""
    try:
        return read_record(paths.result(job))
    except BadInput:
        return None


def state_of(job: Job, paths: StudyPaths, texts: Mapping[str, str] | None = None, locks: bool = True) -> State:
    """The state of a job. `texts` are the fingerprints that corpora must have; `locks` looks for running processes."""
    if locks and is_locked(paths.lock(job)):
        return "running"
    record = record_of(job, paths)
    if record is not None and _is_done(job, record, (texts or {}).get(job.recipe.corpus)):
        return "done"
    if _failed(job, paths):
        return "failed"
    if (paths.result(job) / RECORD).exists():
        return "stale"
    return "partial" if (paths.work(job) / "config.json").exists() else "missing"


def _is_done(job: Job, record: dict[str, Any], text: str | None) -> bool:
    """Whether a record belongs to this job's recipe, evaluations and measurement, and to this text."""
    if text is not None and record.get("text") != text:
        return False
    hashes = record.get("addresses")
    if record.get("state") == "diverged":
        return isinstance(hashes, dict) and hashes.get("training") == job.training_hash
    return hashes == job.config_hashes


def _failed(job: Job, paths: StudyPaths) -> bool:
    """Whether this job, with these settings, failed too often."""
    try:
        return read_json(paths.failure(job)).get("addresses") == job.config_hashes
    except BadInput:
        return False


def progress_of(job: Job, paths: StudyPaths) -> dict[str, Any]:
    """The last progress that a job reported; {} if there is none."""
    try:
        progress = json.loads(paths.progress(job).read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return progress if isinstance(progress, dict) else {}


def reached(job: Job, paths: StudyPaths) -> list[int]:
    """How far a job has got: the step of its newest checkpoint, and the number of its evaluations."""
    work = paths.work(job)
    steps = [int(path.name.split("-")[-1]) for path in checkpoints_in(work / "checkpoints")]
    return [max(steps, default=0), len(list((work / "evaluations").glob("*.json")))]


def job_states(study: Study, paths: StudyPaths) -> dict[str, State]:
    """The state of every job, by its name."""
    return {job.name: state_of(job, paths, study.pins) for job in study.jobs}
