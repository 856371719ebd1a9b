"""How long a study will take: from what its finished jobs took, or else from this machine's speed at multiplying."""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from fieldlens.core.errors import BadInput
from fieldlens.receptive.command import LENGTH
from fieldlens.storage.results import read_json
from fieldlens.study.plan import Job, Study
from fieldlens.study.state import StudyPaths, result_of
from fieldlens.training.recipe import Recipe

STAGES = ("train", "evaluate", "measure")
EXTRA = 16.0
"""Gradients for layers and heat maps, beside those of the segments."""

EFFICIENCY = 0.5
"""What small models reach of the speed of one large product, found on the `glance` preset."""


def operations(job: Job) -> dict[str, float]:
    """Floating point operations of each stage, good to a factor of two."""
    recipe = job.recipe
    tokens = float(recipe.steps * recipe.batch * recipe.length)
    found = {"train": 3 * tokens / recipe.length * _forward(recipe, recipe.length, recipe.length)}
    found["evaluate"] = sum(
        asked.get("segments", 1000) * sum(_forward(recipe, length, 1) for length in asked["lengths"])
        for asked in job.evaluations
    )
    if job.measurement is not None:
        length = job.measurement.get("length") or LENGTH
        gradients = job.measurement.get("segments", 20) + EXTRA
        found["measure"] = 3 * gradients * _forward(recipe, length, 1)
    return found


def _forward(recipe: Recipe, length: int, keep: int) -> float:
    """One text of so many tokens, logits of the last `keep`."""
    body = 12 * recipe.layers * recipe.width**2
    attention = 4 * recipe.layers * length**2 * recipe.width
    return 2.0 * body * length + attention + 2.0 * keep * recipe.bpe * recipe.width


@dataclass(frozen=True)
class Forecast:
    """Operations per second of each stage."""

    rates: dict[str, float]

    def seconds(self, job: Job) -> dict[str, float]:
        """What each stage of a job takes."""
        return {stage: count / self.rates[stage] for stage, count in operations(job).items()}

    def left(self, job: Job, progress: dict[str, Any], trained: bool = False) -> float:
        """What is left of a job that last said this of itself; of one that is trained, only what follows."""
        expected, stage = self.seconds(job), progress.get("stage")
        if trained:
            expected["train"] = 0.0
        if stage not in expected:
            return sum(expected.values())
        open_, rate = 1 - progress.get("done", 0.0), progress.get("rate")
        own = open_ / rate if rate else expected[stage] * open_  # at its own speed, once that shows
        order = list(expected)
        return own + sum(expected[later] for later in order[order.index(stage) + 1 :])

    def done(self, job: Job, progress: dict[str, Any]) -> float:
        """How much of a job is done, between 0 and 1."""
        expected, stage = self.seconds(job), progress.get("stage")
        if stage not in expected:
            return 0.0
        order = list(expected)
        before = sum(expected[earlier] for earlier in order[: order.index(stage)])
        return (before + expected[stage] * progress.get("done", 0.0)) / sum(expected.values())


def forecast(study: Study, places: StudyPaths) -> Forecast:
    """From the timings of the jobs that are finished; where there are none, from a short trial."""
    timed = [(job, _timings(job, places)) for job in study.jobs]
    rates = {stage: _rate(stage, timed) for stage in STAGES}
    known = {stage: rate for stage, rate in rates.items() if rate is not None}
    if len(known) < len(STAGES):
        trial = EFFICIENCY * _speed()
        known = {stage: known.get(stage, trial) for stage in STAGES}
    return Forecast(known)


def _timings(job: Job, places: StudyPaths) -> dict[str, float]:
    """Seconds of each stage of a finished job; none of one that diverged, which did not do them all."""
    result = result_of(job, places) or {}
    if result.get("state") != "done" or result.get("addresses") != job.config_hashes:  # what it took, it took for that
        return {}
    try:
        found = read_json(places.result(job) / "timings.json")
    except BadInput:
        return {}
    return {stage: float(spent) for stage, spent in found.items() if isinstance(spent, int | float)}


def _rate(stage: str, timed: Iterable[tuple[Job, dict[str, float]]]) -> float | None:
    pairs = [(operations(job).get(stage, 0.0), spent[stage]) for job, spent in timed if stage in spent]
    seconds = sum(spent for _, spent in pairs)
    return sum(count for count, _ in pairs) / seconds if seconds > 0 else None


def _speed(size: int = 512) -> float:
    """Operations per second of a square product on one thread."""
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
