"""Evidence: the quantities that claims are tested on. A result that is not available raises Missing."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import Interval, Paired, bootstrap_difference, differences, extent, holm, sign_flip
from fieldlens.evaluation.verdict import ALPHA, EXPLOSION
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import LENGTHS, TRAINED
from fieldlens.receptive.field import ReceptiveField

Answer = bool | None
"""Yes, no, or None if the results do not decide it."""

SMALL = math.log1p(0.01)
"""A negligible difference in nats: 1 % of perplexity."""

BELOW, ABOVE = (-math.inf, -math.ulp(0.0)), (math.ulp(0.0), math.inf)
"""Ranges of negative and of positive differences."""


class Missing(Exception):
    """A result that a claim needs is not available."""


class Gap(NamedTuple):
    """Difference between two losses on the same targets, in nats: over documents, and by seed."""

    paired: Paired
    interval: Interval
    seeds: tuple[float, ...] = ()
    extent: Interval = Interval(-math.inf, math.inf)
    """Range over single documents: used where too few documents differ for a bootstrap interval."""

    @property
    def certain(self) -> bool:
        """Whether the difference is significant."""
        return self.paired.p is not None and self.paired.p < ALPHA

    def lower(self) -> Answer:
        """Whether the first loss is lower; None unless the difference is significant."""
        return self.paired.difference < 0 if self.certain else None

    def at_most(self, limit: float) -> Answer:
        """Whether the difference is at most a limit; None if the interval contains the limit."""
        return True if self.interval.high <= limit else False if self.interval.low > limit else None

    def within(self, limit: float) -> Answer:
        """Whether the absolute difference is at most a limit; None if the interval does not decide it."""
        if any(-limit <= low and high <= limit for low, high in (self.interval, self.extent)):
            return True
        return False if self.interval.low > limit or self.interval.high < -limit else None

    def agreed(self, answer: Answer, test: Callable[[float], bool], min_seeds: int = 2) -> Answer:
        """The answer if there are enough seeds and each of them gives it too, else None.

        A test over documents does not cover the variation between training runs. All seeds must agree: five seeds
        have the same sign by chance in one case of 16.
        """
        agree = len(self.seeds) >= min_seeds and all(test(difference) is answer for difference in self.seeds)
        return answer if agree else None

    def falls(self) -> Answer:
        """Whether the first of two losses of one model is lower: significantly, and with each seed."""
        return self.agreed(self.lower(), lambda difference: difference < 0, min_seeds=1)

    def rests(self, limit: float) -> Answer:
        """Whether two losses of one model differ by at most a limit: the whole interval, and each seed."""
        return self.agreed(self.within(limit), lambda difference: abs(difference) <= limit, min_seeds=1)


class Past(NamedTuple):
    """Loss at one length past the training length minus loss at the training length: pooled, and by seed."""

    row: dict[str, Any]
    seeds: Sequence[float]
    extent: Interval
    """Range over single documents."""

    @property
    def certain(self) -> bool:
        """Whether the difference is significant."""
        return self.row["p_holm"] is not None and self.row["p_holm"] < ALPHA

    def lies(self, low: float, high: float) -> bool:
        """Whether the difference, pooled and with each seed, is between two bounds."""
        return all(low <= difference <= high for difference in (self.row["difference"], *self.seeds))

    def surely(self, low: float, high: float) -> bool:
        """Whether also the whole 95 % interval, or every single document, is between the bounds."""
        interval = (self.row["low"], self.row["high"])
        intervals = [self.extent] if None in interval else [self.extent, interval]
        return any(low <= start and end <= high for start, end in intervals) and self.lies(low, high)


class Evidence:
    """Quantities computed from results; models, corpora and lengths are the paper's."""

    def __init__(self, results: PaperResults) -> None:
        self.results = results
        self._verdicts: dict[tuple[str, str, int], dict[str, Any]] = {}

    def name(self, model: str, trained: int = TRAINED) -> str:
        """The name of a run in evidence texts."""
        longer = f" trained on {self.results.length(trained)}" if trained != TRAINED else ""
        return f"{self.results.label(model)}{longer}"

    def each(self, model: str, corpus: str, trained: int = TRAINED, **criteria: Any) -> dict[int, Evaluation]:
        """The evaluations of a model by seed, without diverged runs."""
        by_seed = self.results.evaluations(model, corpus, trained, **criteria)
        evaluations = {seed: evaluation for seed, evaluation in by_seed.items() if evaluation.losses}
        if not evaluations:
            raise self.missing(model, corpus, trained)
        return evaluations

    def losses(self, model: str, corpus: str, trained: int = TRAINED) -> Evaluation:
        """The evaluation of a model, pooled over seeds."""
        evaluation = self.results.pooled(model, corpus, trained)
        if evaluation is None:
            raise self.missing(model, corpus, trained)
        return evaluation

    def field(self, model: str, corpus: str, trained: int = TRAINED) -> ReceptiveField:
        """The receptive field of a model, pooled over seeds."""
        field = self.results.field(model, corpus, trained)
        if field is None:
            raise self.missing(model, corpus, trained)
        return field

    def fields(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, ReceptiveField]:
        """The receptive fields of a model by seed."""
        fields = self.results.fields(model, corpus, trained)
        if not fields:
            raise self.missing(model, corpus, trained)
        return fields

    def inside(self, model: str, corpus: str) -> list[float]:
        """The share of the gradient within the most recent L_tr tokens, for each seed."""
        return [field.within(self.results.trained) for field in self.fields(model, corpus).values()]

    def missing(self, model: str, corpus: str, trained: int = TRAINED, reason: str = "") -> Missing:
        """The exception for a missing result, with the seeds that diverged unless a reason is given."""
        results = self.results.results(model, corpus, trained)
        diverged = [str(seed) for seed, result in results.items() if result.diverged]
        reason = reason or (f", which diverged with seed {', '.join(diverged)}" if diverged else "")
        return Missing(f"{self.name(model, trained)} on {self.results.corpus(corpus)}{reason}")

    def verdict(self, model: str, corpus: str, trained: int = TRAINED) -> dict[str, Any]:
        """The verdict on the loss past the training length, pooled over seeds."""
        key = (model, corpus, trained)
        if key not in self._verdicts:
            self._verdicts[key] = self.losses(model, corpus, trained).verdict
        verdict = self._verdicts[key]
        if verdict["verdict"] is None:
            raise self.missing(model, corpus, trained, f": {verdict['reason']}")
        return verdict

    def worst(self, model: str, corpus: str, trained: int = TRAINED) -> float:
        """The largest perplexity past the training length divided by the perplexity at it."""
        return max(row["ratio"] for row in self.verdict(model, corpus, trained)["evidence"])

    def past(self, model: str, corpus: str, trained: int = TRAINED) -> list[Past]:
        """Loss at each length past the training length minus loss at the training length."""
        train_length, pooled = self.results.length(trained), self.losses(model, corpus, trained)
        by_seed = self.each(model, corpus, trained).values()
        rows = []
        for row in self.verdict(model, corpus, trained)["evidence"]:
            pooled_N, *seeds = (
                differences(evaluation.quantities(row["length"]), evaluation.quantities(train_length))
                for evaluation in (pooled, *by_seed)
            )
            rows.append(Past(row, [float(seed_N.mean()) for seed_N in seeds], extent(pooled_N, pooled.units()[0])))
        return rows

    def moves(self, model: str, corpus: str) -> tuple[bool, bool, bool]:
        """Whether loss past L_tr is significantly lower at a length, higher at a length, surely within 1 % at all."""
        rows = self.past(model, corpus)
        lower, higher = (any(row.certain and row.lies(*bounds) for row in rows) for bounds in (BELOW, ABOVE))
        return lower, higher, all(row.surely(-SMALL, SMALL) for row in rows)

    def explodes(self, model: str, corpus: str, trained: int = TRAINED) -> Answer:
        """Whether perplexity past the training length is surely × 1.5 or more at a length, or surely at none."""
        rows, threshold = self.past(model, corpus, trained), math.log(EXPLOSION)
        if any(row.certain and row.surely(threshold, math.inf) for row in rows):
            return True
        return False if all(row.surely(-math.inf, threshold) for row in rows) else None

    def breaks(self, model: str, corpus: str) -> Answer:
        """Whether perplexity rises significantly and by 1 % or more past L_tr, or surely does not."""
        rows = self.past(model, corpus)
        if any(row.certain and row.lies(SMALL, math.inf) for row in rows):
            return True
        return False if all(row.surely(-math.inf, SMALL) for row in rows) else None

    def covered(self, model: str, corpus: str) -> Answer:
        """Whether ERF ≤ L_tr; None if seeds disagree."""
        answers = {field.erf(0.99) <= self.results.trained for field in self.fields(model, corpus).values()}
        return answers.pop() if len(answers) == 1 else None

    def gap(
        self,
        first: dict[int, Evaluation],
        second: dict[int, Evaluation],
        lengths: Sequence[int],
        second_lengths: Sequence[int] | None = None,
    ) -> Gap:
        """First minus second loss over shared targets and seeds, as the mean over lengths of the paper."""
        pairs = [
            (self.results.length(a), self.results.length(b))
            for a, b in zip(lengths, lengths if second_lengths is None else second_lengths, strict=True)
        ]
        shared = sorted(first.keys() & second.keys())
        differences_SN = np.stack([
            np.mean([differences(first[seed].quantities(a), second[seed].quantities(b)) for a, b in pairs], axis=0)
            for seed in shared
        ])  # fmt: skip
        return _gap(differences_SN, first[shared[0]].units()[0])

    def between(self, model: str, other: str, corpus: str, lengths: Sequence[int]) -> Gap:
        """The loss of a model minus that of another."""
        return self.gap(*self._both(model, other, corpus), lengths)

    def repair(self, model: str, longer: int, corpus: str) -> Gap:
        """The loss at the longest length of a model trained on longer sequences minus that of the usual one."""
        long, usual = (self.each(model, corpus, trained) for trained in (longer, TRAINED))
        if not long.keys() & usual.keys():
            raise self.missing(model, corpus, longer, f", with a seed of {self.name(model)}")
        return self.gap(long, usual, LENGTHS[-1:])

    def growth(self, model: str, other: str, corpus: str) -> Gap:
        """The growth of a model's loss from L_tr to the longest length minus that of another model."""
        evaluations, reference = self._both(model, other, corpus)
        first, last = (self.results.length(length) for length in (LENGTHS[0], LENGTHS[-1]))
        shared = sorted(evaluations.keys() & reference.keys())
        growth_SN, reference_SN = (
            np.stack([differences(by_seed[seed].quantities(last), by_seed[seed].quantities(first)) for seed in shared])
            for by_seed in (evaluations, reference)
        )
        return _gap(growth_SN - reference_SN, evaluations[shared[0]].units()[0])

    def _both(self, model: str, other: str, corpus: str) -> tuple[dict[int, Evaluation], dict[int, Evaluation]]:
        """The evaluations of two models by seed; they share at least one seed."""
        first, second = (self.each(name, corpus) for name in (model, other))
        if not first.keys() & second.keys():
            raise self.missing(other, corpus, reason=f", with a seed of {self.name(model)}")
        return first, second

    def lower(
        self, corpus: str, pairs: Sequence[tuple[str, str]], lengths: Sequence[int], each: bool = False
    ) -> tuple[list[Answer], list[str]]:
        """Whether the first model of each pair has the lower loss, averaged over lengths or at each; and evidence.

        Significant in a sign-flip test over documents, Holm-corrected, and the same with each of two or more seeds.
        """
        groups = [[length] for length in lengths] if each else [lengths]
        cases = [(pair, group) for pair in pairs for group in groups]
        gaps = [self.between(*pair, corpus, group) for pair, group in cases]
        answers, lines = [], []
        for ((model, other), group), gap in zip(cases, corrected(gaps), strict=True):
            answers.append(gap.agreed(gap.lower(), lambda difference: difference < 0))
            at = f" at {self.results.length(group[0])}" if len(group) == 1 else ""
            names = f"{self.results.label(model)} minus {self.results.label(other)}{at}"
            seeds = by_seed(gap, lambda nats: f"{nats:+.4f}")
            lines.append(f"{names}: {gap.paired.difference:+.4f} nats ({tested(gap)}{seeds})")
        return answers, lines


def _gap(differences_SN: np.ndarray, units_N: np.ndarray) -> Gap:
    """A gap from the differences of each seed and target."""
    differences_N = differences_SN.mean(0)
    interval = bootstrap_difference(differences_N, units_N)[0]
    seeds = tuple(differences_SN.mean(1).tolist())
    return Gap(sign_flip(differences_N, units_N), interval, seeds, extent(differences_N, units_N))


def corrected(gaps: Sequence[Gap]) -> list[Gap]:
    """The gaps of one claim, with Holm-corrected p-values."""
    ps = holm([gap.paired.p for gap in gaps])
    return [gap._replace(paired=gap.paired._replace(p=p)) for gap, p in zip(gaps, ps, strict=True)]


def tested(gap: Gap) -> str:
    """The p-value of a gap as text, or why there is none."""
    return (gap.paired.reason or "no test") if gap.paired.p is None else f"p = {gap.paired.p:.2g}"


def by_seed(gap: Gap, written: Callable[[float], str]) -> str:
    """The differences by seed, as a suffix of an evidence line."""
    noun = "seeds" if len(gap.seeds) > 1 else "one seed"
    return f"; {noun} {', '.join(map(written, gap.seeds))}" if gap.seeds else ""


def shares(values: Sequence[float]) -> str:
    """The range of some shares, in percent."""
    low, high = f"{min(values):.1%}", f"{max(values):.1%}"
    return low if low == high else f"{low} to {high}"


def times(ratio: float) -> str:
    """A ratio of perplexities as text."""
    return f"× {ratio:.3f}" if ratio < 10 else f"× {ratio:.3g}"


def plateau(losses: dict[int, np.ndarray]) -> int:
    """The shortest length from which on perplexity stays within 1 % of that at the longest length."""
    lengths = sorted(losses)
    last = float(losses[lengths[-1]].mean())
    onset = lengths[-1]
    for length in reversed(lengths):
        if abs(float(losses[length].mean()) - last) > SMALL:
            break
        onset = length
    return onset
