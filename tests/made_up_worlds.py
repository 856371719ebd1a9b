"""Made-up results in which every claim of the paper holds, or none does."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from made_up_results import MadeUpResults

from fieldlens.paper.claims import Judged, judge_one, registry
from fieldlens.paper.evidence import Evidence
from fieldlens.paper.results import PaperResults
from fieldlens.schemes.spec import parse
from fieldlens.study.plan import Job


def first_wave(job: Job) -> bool:
    return job.recipe.seed == 1235 and job.recipe.corpus == "latex"


def with_a_second_seed(job: Job) -> bool:
    """Two seeds, as comparisons between models need."""
    return job.recipe.corpus == "latex" and job.recipe.seed in (1235, 1236)


def learned(job: Job) -> bool:
    return job.recipe.scheme.startswith(("t5", "kerple"))


def octaves(job: Job, length: int) -> float:
    return float(np.log2(length / job.recipe.length))


def kind_of(job: Job) -> tuple[str, dict[str, Any]]:
    cls, options = parse(job.recipe.scheme)
    return cls.name, options


# ---- results as the paper describes them


def as_printed(job: Job, length: int, request: dict[str, Any]) -> float:
    """Losses as the paper describes them, at a quarter of its distances."""
    (name, options), r = kind_of(job), octaves(job, length)
    if request.get("protocol") == "non-overlapping":
        return 3.6 - 0.1 * np.log2(length / 32)
    if name == "none":
        window = options.get("window", 999)
        covered = 4.6 * 1.05 * window <= job.recipe.length
        jump = 0.0 if covered or r <= 0 else 0.3 if window <= 30 else 2.5
        return 3.5 - 0.1 * np.log(window) + jump + 0.1 * max(0.0, np.log2(4.83 * window / length))
    if name == "alibi":
        flat_slope = options.get("same", options.get("shift", 0.0))
        rise = 2.5 if flat_slope >= 4 else 0.0 if options.get("same") == -2 else 0.05
        return 3.2 + rise * (r > 0) * (job.recipe.length == 128) - 0.1 * min(0.0, r)
    if name in ("rotary", "sinusoidal"):
        return 3.2 + max(0.0, r)
    base = 3.2 - 0.05 * min(r, 2.0) + 0.02 * max(0.0, r - 2)
    offset = {"kerple": -0.05, "t5": -0.05, "smoothed": 0.005}.get(name, 0.0)
    return base + offset + 0.05 * ("dims" in options) + 0.01 * (request.get("window") is not None)


def fields_as_printed(job: Job, length: int) -> np.ndarray:
    (name, options), back = kind_of(job), np.arange(length)[::-1]
    if name == "none":
        window = options.get("window", 999)
        return np.exp(-back / (1.05 * window)) * (back <= job.recipe.layers * (window - 1))
    if name == "alibi":
        return np.exp(-back / 40)
    shares = (1.0 + back) ** -0.63
    if name == "sinusoidal":
        end = job.recipe.length
        shares[end - 2 : end + 1] += 0.3 * shares.sum()
    if name == "rotary":  # a wavelength of 198.7 apart
        shares[[-180, -379]] += shares.sum()
    return shares


# ---- results that contradict the paper


def contrary(job: Job, length: int, request: dict[str, Any]) -> float:
    (name, options), r = kind_of(job), octaves(job, length)
    if request.get("protocol") == "non-overlapping":
        return 3.6
    if name == "none":
        window = options.get("window", 999)
        steps = {10: 0.03 * max(0.0, r), 80: 0.0}  # the smallest neither settles nor explodes
        return 3.5 + 0.1 * np.log(window) + steps.get(window, 0.6 * min(3.0, max(0.0, r)))
    if name == "alibi" and "same" in options:
        return 3.2 + (1.0 if options["same"] < 0 else 0.03) * max(0.0, r)
    if name == "alibi":
        return 3.0 - 0.02 * max(0.0, r)
    if name in ("rotary", "sinusoidal"):
        return 3.1
    offset = {"kerple": 0.3, "t5": 0.3, "smoothed": 0.5}.get(name, 0.0)
    better = -0.1 if options.get("dims") == 64 else 0.0
    return 3.5 + 0.05 * max(0.0, r) + offset + better + 0.5 * (request.get("window") is not None)


def fields_contrary(job: Job, length: int) -> np.ndarray:
    (name, options), back = kind_of(job), np.arange(length)[::-1]
    if name == "none":
        return np.exp(-back / (1.05 * options.get("window", 999)))  # past the theoretical receptive field
    if name in ("alibi", "t5"):
        return np.ones(length)
    return np.exp(-back / 20)


# ---- helpers


def spoil(results: MadeUpResults, models: Sequence[str], length: int, nats: float) -> None:
    """Increase the losses of one document of twelve, from a length on."""
    for job in results.jobs(models, ["arxiv"]):
        result = results.result(job)
        if result is not None:
            losses = result.evaluations[0].losses
            for longer in (n for n in losses if n >= length):
                losses[longer][:3] += nats


def judge(results: PaperResults, name: str) -> Judged:
    """Test one claim on results."""
    return judge_one(registry()[name], Evidence(results))
