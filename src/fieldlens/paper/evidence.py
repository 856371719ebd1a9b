"""Evidence: what claims ask of results. What is not there is said by an exception that names it."""

import math
from typing import Any

import numpy as np

from fieldlens.advice import CLOSE_ENOUGH
from fieldlens.evaluation import Evaluation
from fieldlens.paper.scale import TRAINED
from fieldlens.paper.shelf import Shelf
from fieldlens.receptive import ReceptiveField
from fieldlens.statistics import Paired, sign_flip
from fieldlens.verdict import ALPHA, EXPLOSION


class Missing(Exception):
    """A result that a claim needs is not there."""


class Evidence:
    """Questions to a shelf, each answered once; lengths and models are the paper's."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._verdicts: dict[tuple[str, str, int], dict[str, Any]] = {}

    def name(self, model: str, trained: int = TRAINED) -> str:
        """How a run is called in evidence."""
        longer = f" trained on {self.shelf.length(trained)}" if trained != TRAINED else ""
        return f"{self.shelf.spec(model)}{longer}"

    def losses(self, model: str, corpus: str, trained: int = TRAINED, **asked: Any) -> Evaluation:
        """The evaluation of a model, pooled over seeds."""
        found = self.shelf.pooled(model, corpus, trained, **asked)
        if found is None:
            raise self.missing(model, corpus, trained)
        return found

    def field(self, model: str, corpus: str, trained: int = TRAINED) -> ReceptiveField:
        """The receptive field of a model, pooled over seeds."""
        found = self.shelf.field(model, corpus, trained)
        if found is None:
            raise self.missing(model, corpus, trained)
        return found

    def missing(self, model: str, corpus: str, trained: int = TRAINED, why: str = "") -> Missing:
        return Missing(f"{self.name(model, trained)} on {self.shelf.corpus(corpus)}{why}")

    def verdict(self, model: str, corpus: str, trained: int = TRAINED) -> dict[str, Any]:
        """What becomes of the loss past the training length."""
        key = (model, corpus, trained)
        if key not in self._verdicts:
            self._verdicts[key] = self.losses(model, corpus, trained).verdict
        found = self._verdicts[key]
        if found["verdict"] is None:
            raise self.missing(model, corpus, trained, f": {found['reason']}")
        return found

    def worst(self, model: str, corpus: str, trained: int = TRAINED) -> float:
        """The largest perplexity past the training length, over that at it."""
        return max(row["ratio"] for row in self.verdict(model, corpus, trained)["evidence"])

    def moves(self, model: str, corpus: str) -> tuple[bool, bool, bool]:
        """Whether loss past the training length is significantly lower somewhere, higher somewhere, and within 1 %."""
        rows = self.verdict(model, corpus)["evidence"]
        sure = [row["difference"] for row in rows if row["p_holm"] is not None and row["p_holm"] < ALPHA]
        still = all(abs(row["difference"]) <= math.log1p(CLOSE_ENOUGH) for row in rows)
        return any(found < 0 for found in sure), any(found > 0 for found in sure), still

    def explodes(self, model: str, corpus: str, trained: int = TRAINED) -> bool:
        return self.worst(model, corpus, trained) >= EXPLOSION

    def breaks(self, model: str, corpus: str, trained: int = TRAINED) -> bool:
        """Whether perplexity rises significantly, and by more than nobody would mind."""
        rises = self.verdict(model, corpus, trained)["verdict"] in ("drifts", "explodes")
        return rises and self.worst(model, corpus, trained) >= 1 + CLOSE_ENOUGH

    def covered(self, model: str, corpus: str, trained: int = TRAINED) -> bool:
        """Whether the training length holds the ERF."""
        return self.field(model, corpus, trained).erf(0.99) <= self.shelf.length(trained)

    def perplexity(self, model: str, corpus: str, length: int, trained: int = TRAINED, **asked: Any) -> float:
        """At a length of the paper's: e to the mean loss over targets and seeds."""
        found = self.losses(model, corpus, trained, **asked)
        here = self.shelf.length(length)
        if here not in found.losses:
            raise self.missing(model, corpus, trained, f" at {here} tokens")
        return math.exp(min(700.0, float(found.quantities(here).mean())))

    def difference(self, one: Evaluation, other: Evaluation, length: int, other_length: int | None = None) -> Paired:
        """The mean difference in nats of the same targets at lengths of the paper's, tested over documents."""
        a, b = (
            each.quantities(self.shelf.length(at))
            for each, at in ((one, length), (other, length if other_length is None else other_length))
        )
        return sign_flip(a - b, one.units()[0])


def sure(found: Paired) -> bool:
    """Whether a difference is significant."""
    return found.p is not None and found.p < ALPHA


def share(value: float) -> str:
    return f"{value:.1%}"


def plateau(losses: dict[int, np.ndarray]) -> int:
    """The first length from which on perplexity stays within 1 % of that at the longest."""
    lengths = sorted(losses)
    last = float(losses[lengths[-1]].mean())
    onset = lengths[-1]
    for length in reversed(lengths):
        if abs(float(losses[length].mean()) - last) > math.log1p(CLOSE_ENOUGH):
            break
        onset = length
    return onset
