"""Made-up results that contradict every claim of the paper, and results of which only a part is there."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from fieldlens.evaluation.result import Evaluation
from fieldlens.paper.claims import registry
from fieldlens.paper.controls import PrintedResults, mean_loss
from fieldlens.paper.judge import Judged, judged
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.schemes.spec import parse
from fieldlens.study.plan import Job, Study

LEVELS = {
    "sandwich": (3.5, 3.55, 3.6, 3.55, 3.5),
    "alibi": (3.0, 2.95, 2.9, 2.85, 2.8),
    "rotary": (3.6,) * 5,
    "sinusoidal": (3.1,) * 5,
    "t5": (3.8, 3.82, 3.6, 3.4, 3.2),
    "kerple": (3.8, 3.82, 3.8, 3.79, 3.77),
    "smoothed": (4.0,) * 5,
    "same:0": (3.2, 3.3, 3.4, 3.5, 3.6),
}
"""Losses at 1, 2, 4, 8 and 16 L_tr, contrary to what the paper says."""
WINDOW_RISES = {40: 0.03, 80: 0.1, 100: 0.1}
WINDOW_ERFS = {40: 0.5, 80: 0.9, 100: 0.95, 120: 0.6, 160: 0.7, 320: 1.3}
"""In units of L_tr."""


def contrary(model: str, corpus: str, trained: float, multiple: float, criteria: dict[str, Any]) -> float:
    """Losses that contradict the paper; every model uses its context, and there is headroom."""
    if multiple < trained:
        return contrary(model, corpus, trained, trained, criteria) + 0.08 * math.log2(trained / multiple)
    if criteria.get("protocol") == "non-overlapping":
        return 3.6
    if criteria.get("window") or trained > 1:
        return 3.0 + 0.6 * (trained > 1) + 0.05 * math.log2(multiple / trained)
    return _contrary_level(model, math.log2(multiple))


def _contrary_level(model: str, octaves: float) -> float:
    """The loss of a model trained on L_tr, some octaves past it."""
    kind, _, value = model.partition(":")
    if kind == "window":
        return 3.5 + 0.1 * math.log(int(value)) + WINDOW_RISES.get(int(value), 0.0) * octaves
    if kind in ("shift", "same") and model not in ("shift:0", "same:0"):
        return 3.6
    if value.startswith("dims"):
        return 3.3
    levels = LEVELS["alibi" if model == "shift:0" else model]
    return levels[min(4, round(octaves))]


def fields_contrary(model: str, spec: str, trained: int, length: int, layers: int) -> np.ndarray:
    """Gradient shares that contradict the paper."""
    back, kind = np.arange(length)[::-1], parse(spec)[0].name
    if kind == "none":
        erf = trained * WINDOW_ERFS[int(model.partition(":")[2])]
        return np.exp(-back * math.log(100) / erf)  # past the theoretical receptive field
    if kind in ("t5", "sinusoidal") or model in ("alibi", "shift:0"):
        return np.ones(length)
    return np.exp(-back * 8 / trained)


class Partial(PrintedResults):
    """Results of the runs that are available, as printed or by another law."""

    def __init__(self, study: Study, available: Callable[[Job], bool] = lambda job: True, **options: Any) -> None:
        super().__init__(study, **options)
        self.names = {job.name for job in study.whole if available(job)}
        self.states = {job.name: "done" if job.name in self.names else "missing" for job in study.whole}

    def seeds(self, model: str, corpus: str, trained: int) -> list[int]:
        return [job.recipe.seed for job in self.jobs([model], [corpus], trained) if job.name in self.names]


class OneSeedDiffers(PrintedResults):
    """The printed numbers, but one seed of a model has other losses."""

    def __init__(self, study: Study, model: str, nats: float) -> None:
        super().__init__(study)
        self.model, self.nats = model, nats

    def _evaluation(self, model: str, corpus: str, trained: int, seed: int, criteria: dict[str, Any]) -> Evaluation:
        evaluation = super()._evaluation(model, corpus, trained, seed, criteria)
        if model == self.model and seed == 1236 and trained == TRAINED:
            for length in evaluation.losses:
                evaluation.losses[length] += self.nats * (length > self.trained)
        return evaluation


def without_context(model: str, corpus: str, trained: float, multiple: float, criteria: dict[str, Any]) -> float:
    """The printed numbers of models that do not use their context: nothing is gained below L_tr."""
    return mean_loss(model, corpus, trained, max(multiple, trained), criteria)


def judge(results: PaperResults, name: str) -> Judged:
    """Test one claim on results, as if it were the only one."""
    (verdict,) = judged(results, [registry()[name]])
    return verdict
