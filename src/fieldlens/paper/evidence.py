"""Evidence: what claims ask of results. What is not there is said by an exception that names it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fieldlens.advice import CLOSE_ENOUGH
from fieldlens.evaluation import Evaluation
from fieldlens.paper.scale import TRAINED
from fieldlens.paper.shelf import Shelf
from fieldlens.receptive import ReceptiveField
from fieldlens.statistics import Interval, Paired, bootstrap_difference, holm, sign_flip
from fieldlens.verdict import ALPHA, EXPLOSION

Answer = bool | None
"""Yes, no, or not to be told from these results."""

SMALL = math.log1p(CLOSE_ENOUGH)
"""Nats that nobody would mind: 1 % of perplexity."""


class Missing(Exception):
    """A result that a claim needs is not there."""


class Gap(NamedTuple):
    """How much higher one loss is than another of the same targets, in nats: over documents, and seed by seed."""

    found: Paired
    interval: Interval
    seeds: tuple[float, ...] = ()

    def lower(self) -> Answer:
        """Whether the first is lower: if that is significant."""
        return self.found.difference < 0 if sure(self.found) else None

    def at_most(self, limit: float) -> Answer:
        """Whether the first is higher by no more than a limit: if the whole interval lies on one side of it."""
        return True if self.interval.high <= limit else False if self.interval.low > limit else None

    def within(self, limit: float) -> Answer:
        """Whether the two differ by no more than a limit either way, likewise."""
        if -limit <= self.interval.low and self.interval.high <= limit:
            return True
        return False if self.interval.low > limit or self.interval.high < -limit else None

    def agreed(self, answer: Answer, test: Callable[[float], bool]) -> Answer:
        """The answer, if two or more seeds each give it too: documents say nothing of how training happened to go."""
        return answer if len(self.seeds) > 1 and all(test(one) is answer for one in self.seeds) else None


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

    def fields(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, ReceptiveField]:
        """The receptive fields of a model by seed."""
        found = self.shelf.fields(model, corpus, trained)
        if not found:
            raise self.missing(model, corpus, trained)
        return found

    def inside(self, model: str, corpus: str) -> list[float]:
        """The share of the gradient within the most recent L_tr tokens, with each seed."""
        return [one.within(self.shelf.trained) for one in self.fields(model, corpus).values()]

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
        """Whether loss past L_tr is surely lower somewhere, surely higher somewhere, surely within 1 % everywhere."""
        rows = self.verdict(model, corpus)["evidence"]
        certain = [row["difference"] for row in rows if _certain(row)]
        still = all(_bounded(row, -SMALL, SMALL) for row in rows)
        return any(found < 0 for found in certain), any(found > 0 for found in certain), still

    def explodes(self, model: str, corpus: str, trained: int = TRAINED) -> Answer:
        """Whether perplexity past the training length is half as much again somewhere, or surely nowhere."""
        rows, much = self.verdict(model, corpus, trained)["evidence"], math.log(EXPLOSION)
        if any(row["difference"] >= much and _certain(row) for row in rows):
            return True
        return False if all(_bounded(row, -math.inf, much) for row in rows) else None

    def breaks(self, model: str, corpus: str, trained: int = TRAINED) -> Answer:
        """Whether perplexity rises significantly and by more than nobody would mind, or surely does not."""
        rows = self.verdict(model, corpus, trained)["evidence"]
        if any(row["difference"] >= SMALL and _certain(row) for row in rows):
            return True
        return False if all(_bounded(row, -math.inf, SMALL) for row in rows) else None

    def covered(self, model: str, corpus: str, trained: int = TRAINED) -> bool:
        """Whether the training length holds the ERF."""
        return self.field(model, corpus, trained).erf(0.99) <= self.shelf.length(trained)

    def gap(self, one: Evaluation, other: Evaluation, length: int, other_length: int | None = None) -> Gap:
        """Of the same targets, at lengths of the paper's, over documents."""
        a, b = (
            each.quantities(self.shelf.length(at))
            for each, at in ((one, length), (other, length if other_length is None else other_length))
        )
        return _gap(a - b, one.units()[0])

    def between(self, model: str, other: str, corpus: str, lengths: Sequence[int]) -> Gap:
        """Between two models, over the seeds that both have: the mean over some lengths of the paper's."""
        found = [self.shelf.evaluations(name, corpus) for name in (model, other)]
        for name, by_seed in zip((model, other), found, strict=True):
            if not any(one.losses for one in by_seed.values()):
                raise self.missing(name, corpus)
        alive = [{seed: one for seed, one in by_seed.items() if one.losses} for by_seed in found]
        shared = sorted(alive[0].keys() & alive[1].keys())
        if not shared:
            raise self.missing(other, corpus, why=f", with a seed of {self.name(model)}")
        here = [self.shelf.length(length) for length in lengths]
        each_SN = np.stack([
            np.mean([alive[0][seed].quantities(n) - alive[1][seed].quantities(n) for n in here], axis=0)
            for seed in shared
        ])  # fmt: skip
        units_N = alive[0][shared[0]].units()[0]
        return _gap(each_SN.mean(0), units_N, tuple(each_SN.mean(1).tolist()))

    def lower(
        self, corpus: str, pairs: Sequence[tuple[str, str]], lengths: Sequence[int], each: bool = False
    ) -> tuple[list[Answer], list[str]]:
        """Whether the first of each pair has the lower loss, in the mean over lengths or at each; and in words.

        Significantly (documents flipped, Holm), and with each of two or more seeds.
        """
        asked = [(pair, some) for pair in pairs for some in ([[n] for n in lengths] if each else [lengths])]
        gaps = [self.between(*pair, corpus, some) for pair, some in asked]
        found, said = [], []
        for ((one, other), some), gap, p in zip(asked, gaps, holm([gap.found.p for gap in gaps]), strict=True):
            lower = gap.found.difference < 0 if p is not None and p < ALPHA else None
            found.append(gap.agreed(lower, lambda difference: difference < 0))
            at = f" at {self.shelf.length(some[0])}" if len(some) == 1 else ""
            test = gap.found.reason if p is None else f"p = {p:.2g}"
            seeds = f"{len(gap.seeds)} seed{'s' * (len(gap.seeds) > 1)}"
            names = f"{self.shelf.spec(one)} less {self.shelf.spec(other)}{at}"
            said.append(f"{names}: {gap.found.difference:+.4f} nats ({test}, {seeds})")
        return found, said


def _gap(differences_N: np.ndarray, units_N: np.ndarray, seeds: tuple[float, ...] = ()) -> Gap:
    return Gap(sign_flip(differences_N, units_N), bootstrap_difference(differences_N, units_N)[0], seeds)


def _certain(row: dict[str, Any]) -> bool:
    return row["p_holm"] is not None and row["p_holm"] < ALPHA


def _bounded(row: dict[str, Any], low: float, high: float) -> bool:
    """Whether the whole interval of a difference lies between two bounds."""
    return row["low"] is not None and row["high"] is not None and low <= row["low"] and row["high"] <= high


def sure(found: Paired) -> bool:
    """Whether a difference is significant."""
    return found.p is not None and found.p < ALPHA


def shares(values: Sequence[float]) -> str:
    """From the least to the most."""
    low, high = min(values), max(values)
    return f"{low:.1%}" if len(values) == 1 else f"{low:.1%} to {high:.1%}"


def plateau(losses: dict[int, np.ndarray]) -> int:
    """The first length from which on perplexity stays within 1 % of that at the longest."""
    lengths = sorted(losses)
    last = float(losses[lengths[-1]].mean())
    onset = lengths[-1]
    for length in reversed(lengths):
        if abs(float(losses[length].mean()) - last) > SMALL:
            break
        onset = length
    return onset
