"""Estimates the remaining time of a study, from the timings of finished jobs or from the speed of a matrix product."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fieldlens.core.errors import BadInput
from fieldlens.receptive.measure_models import LENGTH
from fieldlens.storage.sealed import read_json
from fieldlens.study.plan import Job, Study
from fieldlens.study.state import StudyPaths, record_of
from fieldlens.training.recipe import Recipe

STAGES = ("train", "evaluate", "measure")
EXTRA = 16.0
"""Number of gradients for layers and a passage, in addition to one per segment."""

EFFICIENCY = 0.5
"""Speed of small models relative to one large matrix product, measured on the `glance` preset."""


def operations(job: Job) -> dict[str, float]:
    """Floating-point operations of each stage, within a factor of two."""
    recipe = job.recipe
    tokens = float(recipe.steps * recipe.batch * recipe.length)
    counts = {"train": 3 * tokens / recipe.length * _forward(recipe, recipe.length, recipe.length)}
    counts["evaluate"] = sum(
        request.get("segments", 1000) * sum(_forward(recipe, length, 1) for length in request["lengths"])
        for request in job.evaluations
    )
    if job.measurement is not None:
        length = job.measurement.get("length") or LENGTH
        gradients = job.measurement.get("segments", 20) + EXTRA
        counts["measure"] = 3 * gradients * _forward(recipe, length, 1)
    return counts


def _forward(recipe: Recipe, length: int, keep: int) -> float:
    """Operations of one forward pass over `length` tokens, with logits for the last `keep`."""
    body = 12 * recipe.layers * recipe.width**2
    attention = 4 * recipe.layers * length**2 * recipe.width
    return 2.0 * body * length + attention + 2.0 * keep * recipe.bpe * recipe.width


@dataclass(frozen=True)
class Forecast:
    """Operations per second of each stage."""

    rates: dict[str, float]

    def seconds(self, job: Job) -> dict[str, float]:
        """Expected seconds of each stage of a job."""
        return {stage: count / self.rates[stage] for stage, count in operations(job).items()}

    def left(self, job: Job, progress: dict[str, Any], trained: bool = False) -> float:
        """Expected remaining seconds of a job, from its last progress; `trained` leaves out its training."""
        expected, stage = self.seconds(job), progress.get("stage")
        if trained:
            expected["train"] = 0.0
        if stage not in expected:
            return sum(expected.values())
        remaining, rate = 1 - progress.get("done", 0.0), progress.get("rate")
        current = remaining / rate if rate else expected[stage] * remaining  # by its own rate, once it is known
        order = list(expected)
        return current + sum(expected[later] for later in order[order.index(stage) + 1 :])

    def done(self, job: Job, progress: dict[str, Any]) -> float:
        """The share of a job that is done, from 0 to 1."""
        expected, stage = self.seconds(job), progress.get("stage")
        if stage not in expected:
            return 0.0
        order = list(expected)
        before = sum(expected[earlier] for earlier in order[: order.index(stage)])
        return (before + expected[stage] * progress.get("done", 0.0)) / sum(expected.values())


def forecast(study: Study, paths: StudyPaths) -> Forecast:
    """The rates of the finished jobs; for stages without timings, the speed of a matrix product."""
    timed = [(job, _timings(job, paths)) for job in study.jobs]
    measured = {stage: _rate(stage, timed) for stage in STAGES}
    rates = {stage: rate for stage, rate in measured.items() if rate is not None}
    if len(rates) < len(STAGES):
        default = EFFICIENCY * _speed()
        rates = {stage: rates.get(stage, default) for stage in STAGES}
    return Forecast(rates)


def _timings(job: Job, paths: StudyPaths) -> dict[str, float]:
    """Seconds of each stage of a finished job; {} if it diverged, was run with other settings or is not finished."""
    record = record_of(job, paths) or {}
    if record.get("state") != "done" or record.get("addresses") != job.config_hashes:
        return {}
    try:
        timings = read_json(paths.result(job) / "timings.json")
    except BadInput:
        return {}
    return {stage: float(seconds) for stage, seconds in timings.items() if isinstance(seconds, int | float)}


def _rate(stage: str, timed: Iterable[tuple[Job, dict[str, float]]]) -> float | None:
    """Operations per second of a stage over all jobs with timings; None without any."""
    pairs = [(operations(job).get(stage, 0.0), timings[stage]) for job, timings in timed if stage in timings]
    total = sum(seconds for _, seconds in pairs)
    return sum(count for count, _ in pairs) / total if total > 0 else None


def _speed(size: int = 512) -> float:
    """Operations per second of a square matrix product on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        a = torch.ones(size, size)
        best = float("inf")
        for _ in range(4):
            start = time.perf_counter()
            a @ a
            best = min(best, time.perf_counter() - start)
    finally:
        torch.set_num_threads(before)
    return 2.0 * size**3 / best
