"""Evidence: what claims ask of results. What is not there is said by an exception that names it."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import Interval, Paired, bootstrap_difference, differences, extent, holm, sign_flip
from fieldlens.evaluation.verdict import ALPHA, EXPLOSION
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import LENGTHS, TRAINED
from fieldlens.receptive.check import CLOSE_ENOUGH
from fieldlens.receptive.field import ReceptiveField

Answer = bool | None
"""Yes, no, or not to be told from these results."""

SMALL = math.log1p(CLOSE_ENOUGH)
"""Nats that nobody would mind: 1 % of perplexity."""

BELOW, ABOVE = (-math.inf, -math.ulp(0.0)), (math.ulp(0.0), math.inf)
"""Differences that are falls, and rises."""


class Missing(Exception):
    """A result that a claim needs is not there."""


class Gap(NamedTuple):
    """How much higher one loss is than another of the same targets, in nats: over documents, and seed by seed."""

    found: Paired
    interval: Interval
    seeds: tuple[float, ...] = ()
    extent: Interval = Interval(-math.inf, math.inf)
    """Of single documents: where only a few differ at all, no interval can be had from resampling."""

    @property
    def certain(self) -> bool:
        """Whether the difference is significant."""
        return self.found.p is not None and self.found.p < ALPHA

    def lower(self) -> Answer:
        """Whether the first is lower: if that is significant."""
        return self.found.difference < 0 if self.certain else None

    def at_most(self, limit: float) -> Answer:
        """Whether the first is higher by no more than a limit: if the whole interval lies on one side of it."""
        return True if self.interval.high <= limit else False if self.interval.low > limit else None

    def within(self, limit: float) -> Answer:
        """Whether the two differ by no more than a limit either way, likewise."""
        if any(-limit <= low and high <= limit for low, high in (self.interval, self.extent)):
            return True
        return False if self.interval.low > limit or self.interval.high < -limit else None

    def agreed(self, answer: Answer, test: Callable[[float], bool], least: int = 2) -> Answer:
        """The answer, if so many seeds or more each give it too: documents say nothing of how training went.

        Of up to five seeds nothing less will do: by chance all five are on one side in one case of 16.
        """
        return answer if len(self.seeds) >= least and all(test(one) is answer for one in self.seeds) else None

    def falls(self) -> Answer:
        """Whether one model's loss falls from the second to the first: significantly, and with each seed there is."""
        return self.agreed(self.lower(), lambda difference: difference < 0, least=1)

    def rests(self, limit: float) -> Answer:
        """Whether one model's two losses differ by no more than a limit: surely, and with each seed there is."""
        return self.agreed(self.within(limit), lambda difference: abs(difference) <= limit, least=1)


class Past(NamedTuple):
    """How one model's loss at a length past training differs from that at it: pooled, and with each seed."""

    row: dict[str, Any]
    seeds: Sequence[float]
    extent: Interval
    """Of single documents."""

    @property
    def certain(self) -> bool:
        """Whether the difference is significant."""
        return self.row["p_holm"] is not None and self.row["p_holm"] < ALPHA

    def lies(self, low: float, high: float) -> bool:
        """Whether the difference lies between two bounds, with each seed too."""
        return all(low <= one <= high for one in (self.row["difference"], *self.seeds))

    def surely(self, low: float, high: float) -> bool:
        """Whether the whole interval does, or every document, with each seed too."""
        ends = (self.row["low"], self.row["high"])
        known = [self.extent] if None in ends else [self.extent, ends]
        return any(low <= start and end <= high for start, end in known) and self.lies(low, high)


class Evidence:
    """Questions to a shelf, each answered once; lengths and models are the paper's."""

    def __init__(self, results: PaperResults) -> None:
        self.results = results
        self._verdicts: dict[tuple[str, str, int], dict[str, Any]] = {}

    def name(self, model: str, trained: int = TRAINED) -> str:
        """How a run is called in evidence."""
        longer = f" trained on {self.results.length(trained)}" if trained != TRAINED else ""
        return f"{self.results.label(model)}{longer}"

    def each(self, model: str, corpus: str, trained: int = TRAINED, **asked: Any) -> dict[int, Evaluation]:
        """The evaluations of a model by seed, but for those that diverged."""
        found = self.results.evaluations(model, corpus, trained, **asked)
        alive = {seed: one for seed, one in found.items() if one.losses}
        if not alive:
            raise self.missing(model, corpus, trained)
        return alive

    def losses(self, model: str, corpus: str, trained: int = TRAINED) -> Evaluation:
        """The evaluation of a model, pooled over seeds."""
        found = self.results.pooled(model, corpus, trained)
        if found is None:
            raise self.missing(model, corpus, trained)
        return found

    def field(self, model: str, corpus: str, trained: int = TRAINED) -> ReceptiveField:
        """The receptive field of a model, pooled over seeds."""
        found = self.results.field(model, corpus, trained)
        if found is None:
            raise self.missing(model, corpus, trained)
        return found

    def fields(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, ReceptiveField]:
        """The receptive fields of a model by seed."""
        found = self.results.fields(model, corpus, trained)
        if not found:
            raise self.missing(model, corpus, trained)
        return found

    def inside(self, model: str, corpus: str) -> list[float]:
        """The share of the gradient within the most recent L_tr tokens, with each seed."""
        return [one.within(self.results.trained) for one in self.fields(model, corpus).values()]

    def missing(self, model: str, corpus: str, trained: int = TRAINED, why: str = "") -> Missing:
        lost = [str(seed) for seed, one in self.results.results(model, corpus, trained).items() if one.diverged]
        why = why or (f", which diverged with seed {', '.join(lost)}" if lost else "")
        return Missing(f"{self.name(model, trained)} on {self.results.corpus(corpus)}{why}")

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

    def past(self, model: str, corpus: str, trained: int = TRAINED) -> list[Past]:
        """How loss differs from that at the training length, at each length past it."""
        own, pooled = self.results.length(trained), self.losses(model, corpus, trained)
        found = []
        for row in self.verdict(model, corpus, trained)["evidence"]:
            each = [
                differences(one.quantities(row["length"]), one.quantities(own))
                for one in (pooled, *self.each(model, corpus, trained).values())
            ]
            found.append(Past(row, [float(one.mean()) for one in each[1:]], extent(each[0], pooled.units()[0])))
        return found

    def moves(self, model: str, corpus: str) -> tuple[bool, bool, bool]:
        """Whether loss past L_tr is surely lower somewhere, surely higher somewhere, surely within 1 % everywhere."""
        found = self.past(model, corpus)
        lower, higher = (any(one.certain and one.lies(*side) for one in found) for side in (BELOW, ABOVE))
        return lower, higher, all(one.surely(-SMALL, SMALL) for one in found)

    def explodes(self, model: str, corpus: str, trained: int = TRAINED) -> Answer:
        """Whether perplexity past the training length is surely half as much again somewhere, or surely nowhere."""
        found, much = self.past(model, corpus, trained), math.log(EXPLOSION)
        if any(one.certain and one.surely(much, math.inf) for one in found):
            return True
        return False if all(one.surely(-math.inf, much) for one in found) else None

    def breaks(self, model: str, corpus: str) -> Answer:
        """Whether perplexity rises significantly and by more than nobody would mind, or surely does not."""
        found = self.past(model, corpus)
        if any(one.certain and one.lies(SMALL, math.inf) for one in found):
            return True
        return False if all(one.surely(-math.inf, SMALL) for one in found) else None

    def covered(self, model: str, corpus: str) -> Answer:
        """Whether the training length holds the ERF, if all seeds say the same."""
        found = {one.erf(0.99) <= self.results.trained for one in self.fields(model, corpus).values()}
        return found.pop() if len(found) == 1 else None

    def gap(
        self,
        one: dict[int, Evaluation],
        other: dict[int, Evaluation],
        lengths: Sequence[int],
        other_lengths: Sequence[int] | None = None,
    ) -> Gap:
        """Of the same targets and the seeds that both have, in the mean over some lengths of the paper's."""
        pairs = [
            (self.results.length(a), self.results.length(b))
            for a, b in zip(lengths, lengths if other_lengths is None else other_lengths, strict=True)
        ]
        shared = sorted(one.keys() & other.keys())
        each_SN = np.stack([
            np.mean([differences(one[seed].quantities(a), other[seed].quantities(b)) for a, b in pairs], axis=0)
            for seed in shared
        ])  # fmt: skip
        return _gap(each_SN, one[shared[0]].units()[0])

    def between(self, model: str, other: str, corpus: str, lengths: Sequence[int]) -> Gap:
        """Between two models."""
        return self.gap(*self._both(model, other, corpus), lengths)

    def repair(self, model: str, longer: int, corpus: str) -> Gap:
        """How much higher a model's loss at the longest length is if it was trained on longer sequences."""
        one, two = (self.each(model, corpus, trained) for trained in (longer, TRAINED))
        if not one.keys() & two.keys():
            raise self.missing(model, corpus, longer, f", with a seed of {self.name(model)}")
        return self.gap(one, two, LENGTHS[-1:])

    def growth(self, model: str, other: str, corpus: str) -> Gap:
        """How much more one model's loss grows from L_tr to the longest length than another's."""
        one, two = self._both(model, other, corpus)
        first, last = (self.results.length(length) for length in (LENGTHS[0], LENGTHS[-1]))
        shared = sorted(one.keys() & two.keys())
        grown, theirs = (
            np.stack([differences(each[seed].quantities(last), each[seed].quantities(first)) for seed in shared])
            for each in (one, two)
        )
        return _gap(grown - theirs, one[shared[0]].units()[0])

    def _both(self, model: str, other: str, corpus: str) -> tuple[dict[int, Evaluation], dict[int, Evaluation]]:
        """The evaluations of two models by seed; there is one that they share."""
        one, two = (self.each(name, corpus) for name in (model, other))
        if not one.keys() & two.keys():
            raise self.missing(other, corpus, why=f", with a seed of {self.name(model)}")
        return one, two

    def lower(
        self, corpus: str, pairs: Sequence[tuple[str, str]], lengths: Sequence[int], each: bool = False
    ) -> tuple[list[Answer], list[str]]:
        """Whether the first of each pair has the lower loss, in the mean over lengths or at each; and in words.

        Significantly (documents flipped, Holm), and with each of two or more seeds.
        """
        asked = [(pair, some) for pair in pairs for some in ([[n] for n in lengths] if each else [lengths])]
        gaps = [self.between(*pair, corpus, some) for pair, some in asked]
        found, said = [], []
        for ((one, other), some), gap in zip(asked, corrected(gaps), strict=True):
            found.append(gap.agreed(gap.lower(), lambda difference: difference < 0))
            at = f" at {self.results.length(some[0])}" if len(some) == 1 else ""
            names = f"{self.results.label(one)} minus {self.results.label(other)}{at}"
            seeds = by_seed(gap, lambda nats: f"{nats:+.4f}")
            said.append(f"{names}: {gap.found.difference:+.4f} nats ({tested(gap)}{seeds})")
        return found, said


def _gap(each_SN: np.ndarray, units_N: np.ndarray) -> Gap:
    """From the differences of each target, seed by seed."""
    differences_N = each_SN.mean(0)
    interval = bootstrap_difference(differences_N, units_N)[0]
    seeds = tuple(each_SN.mean(1).tolist())
    return Gap(sign_flip(differences_N, units_N), interval, seeds, extent(differences_N, units_N))


def corrected(gaps: Sequence[Gap]) -> list[Gap]:
    """Gaps that one claim asks for together, with Holm's correction of their tests."""
    fixed = holm([gap.found.p for gap in gaps])
    return [gap._replace(found=gap.found._replace(p=p)) for gap, p in zip(gaps, fixed, strict=True)]


def tested(gap: Gap) -> str:
    """What its test says."""
    return (gap.found.reason or "no test") if gap.found.p is None else f"p = {gap.found.p:.2g}"


def by_seed(gap: Gap, written: Callable[[float], str]) -> str:
    """What each of its seeds says, to be added to a line."""
    many = "seeds" if len(gap.seeds) > 1 else "one seed"
    return f"; {many} {', '.join(map(written, gap.seeds))}" if gap.seeds else ""


def shares(values: Sequence[float]) -> str:
    """From the least to the most."""
    low, high = f"{min(values):.1%}", f"{max(values):.1%}"
    return low if low == high else f"{low} to {high}"


def times(ratio: float) -> str:
    """A ratio of perplexities."""
    return f"× {ratio:.3f}" if ratio < 10 else f"× {ratio:.3g}"


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
