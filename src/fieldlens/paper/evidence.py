"""Evidence for claims: differences of losses against a bound, context use, headroom and receptive fields.

Lengths are multiples of the training length L_tr, models and corpora have the paper's names, differences are in nats.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import (
    CONSTANT,
    Interval,
    bootstrap_difference,
    differences,
    paired_t,
    sign_flip,
    smallest_p,
)
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.receptive.field import ReceptiveField

Answer = bool | None
"""Yes, no, or None if the results do not decide it."""

ALPHA = 0.05
MIN_USE = 0.01
"""A model uses its context if its loss falls surely by this from L_tr/2 to L_tr, in nats."""
BETWEEN_CORPUS = "github"
"""The corpus with several seeds: its spread between seeds stands for the others, where they have one seed."""


SEVERAL_SEEDS = ("sandwich", "alibi", "kerple")
"""Models with several seeds that do not break down past L_tr; Rotary, which does, is left out."""


class Missing(Exception):
    """Results that a claim needs are not available."""


class NotTestable(Exception):
    """The results cannot test a claim; the message is the reason."""


class Run(NamedTuple):
    """A model of the paper, and the multiple of L_tr that it is trained on."""

    model: str
    trained: float = 1


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A difference of losses in nats, and the claim that it is at most, or at least, a bound.

    p is of a two-sided test that the difference is the bound: signs flipped by document, and between models also a
    t-test over seeds, of which the larger p counts.
    """

    name: str
    difference: float
    bound: float
    at_most: bool
    seeds: tuple[float, ...]
    interval: Interval
    p: float | None
    reason: str = ""
    """Why there is no p."""
    paired_p: float | None = None
    """p of a t-test over seeds, where there are three; shown beside p, it decides nothing."""

    def answer(self) -> Answer:
        """Whether the difference lies on the claimed side of the bound: significantly, and with each seed."""
        if self.p is None or self.p >= ALPHA:
            return None
        sides = {(difference <= self.bound) is self.at_most for difference in (self.difference, *self.seeds)}
        return sides.pop() if len(sides) == 1 else None

    def open(self) -> str:
        """Why the comparison decides nothing."""
        if self.p is None:
            return self.reason
        return "not significant" if self.p >= ALPHA else "seeds disagree"

    def line(self) -> str:
        """The comparison as a line of evidence."""
        low, high = (f"{math.exp(min(nats, 700)):.3f}" if math.isfinite(nats) else "?" for nats in self.interval)
        test = self.reason or "no test" if self.p is None else f"p = {self.p:.2g}"
        seeds = ", ".join(times(seed) for seed in self.seeds)
        beside = "" if self.paired_p is None else f", t over seeds p = {self.paired_p:.2g}"
        side = "at most" if self.at_most else "at least"
        claimed = f"{side} {times(self.bound)}"
        return f"{self.name}: {times(self.difference)} ({low} to {high}), {claimed}: {test}; seeds {seeds}{beside}"


class Evidence:
    """Quantities of the results of a study."""

    def __init__(self, results: PaperResults) -> None:
        self.results = results

    def length(self, multiple: float) -> int:
        """A multiple of L_tr in tokens."""
        return round(self.results.trained * multiple)

    def label(self, run: Run) -> str:
        """The name of a run in lines of evidence."""
        longer = f" trained on {self.length(run.trained)}" if run.trained != 1 else ""
        return f"{self.results.label(run.model)}{longer}"

    def evaluations(self, run: Run, corpus: str, **criteria: Any) -> dict[int, Evaluation]:
        """The evaluations of a run by seed, without those that diverged."""
        by_seed = self.results.evaluations(run.model, corpus, round(TRAINED * run.trained), **criteria)
        complete = {seed: evaluation for seed, evaluation in by_seed.items() if evaluation.losses}
        if not complete:
            raise self.missing(run, corpus)
        return complete

    def planned(self, run: Run, corpus: str) -> bool:
        """Whether the study contains a run."""
        return bool(self.results.jobs([run.model], [corpus], round(TRAINED * run.trained)))

    def available(self, run: Run, corpus: str) -> bool:
        """Whether a run has a result that did not diverge."""
        by_seed = self.results.evaluations(run.model, corpus, round(TRAINED * run.trained))
        return any(evaluation.losses for evaluation in by_seed.values())

    def missing(self, run: Run, corpus: str) -> Missing:
        return Missing(f"{self.label(run)} on {self.results.corpus(corpus)}")

    def fields(self, run: Run, corpus: str) -> dict[int, ReceptiveField]:
        """The receptive fields of a run by seed."""
        fields = self.results.fields(run.model, corpus, round(TRAINED * run.trained))
        if not fields:
            raise Missing(f"the receptive field of {self.label(run)} on {self.results.corpus(corpus)}")
        return fields

    def field(self, run: Run, corpus: str) -> ReceptiveField:
        """The receptive field of a run over the segments of all seeds."""
        fields = list(self.fields(run, corpus).values())
        return dataclasses.replace(fields[0], norms_NT=np.concatenate([field.norms_NT for field in fields]))

    def inside(self, model: str, corpus: str) -> list[float]:
        """The share of the gradient within the most recent L_tr tokens, for each seed."""
        return [field.within(self.results.trained) for field in self.fields(Run(model), corpus).values()]

    def context_use(self, run: Run, corpus: str) -> tuple[bool, str]:
        """Whether a model uses its context: its loss falls surely by MIN_USE from half its L_tr on, with each seed."""
        return self._fall(run, corpus, run.trained / 2, run.trained)

    def headroom(self, corpus: str) -> tuple[bool, str]:
        """Whether Sandwich trained on 4 L_tr gains surely MIN_USE from L_tr to 4 L_tr."""
        return self._fall(Run("sandwich", 4), corpus, 1, 4)

    def _fall(self, run: Run, corpus: str, short: float, long: float) -> tuple[bool, str]:
        by_seed = self._with_lengths(run, corpus, short, long)
        gap = self._change("", by_seed, short, long, -MIN_USE, True)
        low = -gap.interval.high
        enough = low >= MIN_USE and all(difference <= -MIN_USE for difference in gap.seeds)
        lengths = f"{self.length(short)} to {self.length(long)}"
        return enough, f"{self.label(run)}: {-gap.difference:+.3f} nats gained from {lengths}, surely {low:+.3f}"

    def _with_lengths(self, run: Run, corpus: str, *multiples: float) -> dict[int, Evaluation]:
        """The evaluations by seed that have some lengths: the study's main one, or else one made for short lengths."""
        by_seed = self.evaluations(run, corpus)
        lengths = {self.length(multiple) for multiple in multiples}
        if all(lengths <= evaluation.losses.keys() for evaluation in by_seed.values()):
            return by_seed
        return self.evaluations(run, corpus, lengths=[self.length(run.trained * factor) for factor in (0.5, 1, 2)])

    def change(
        self, run: Run, corpus: str, start: float, end: float, *, bound: float, at_most: bool, **criteria: Any
    ) -> Comparison:
        """The change of one model's loss from one length to another: documents are the units."""
        name = f"{self.label(run)} from {self.length(start)} to {self.length(end)}"
        return self._change(name, self.evaluations(run, corpus, **criteria), start, end, bound, at_most)

    def _change(
        self, name: str, by_seed: dict[int, Evaluation], start: float, end: float, bound: float, at_most: bool
    ) -> Comparison:
        differences_SN = _differences(by_seed, by_seed, [(self.length(end), self.length(start))])
        return _comparison(name, differences_SN, next(iter(by_seed.values())).units()[0], bound, at_most)

    def steady(
        self, run: Run, corpus: str, start: float, end: float, limit: float, **criteria: Any
    ) -> list[Comparison]:
        """Two comparisons: the loss changes by at most a limit, up and down."""
        return [
            self.change(run, corpus, start, end, bound=limit, at_most=True, **criteria),
            self.change(run, corpus, start, end, bound=-limit, at_most=False, **criteria),
        ]

    def protocols(
        self,
        run: Run,
        corpus: str,
        at: float,
        first: dict[str, Any],
        second: dict[str, Any],
        bound: float,
        at_most: bool,
    ) -> Comparison:
        """The loss of one model by one evaluation minus that by another, on the same targets at the same length."""
        by_first, by_second = (self.evaluations(run, corpus, **criteria) for criteria in (first, second))
        differences_SN = _differences(by_first, by_second, [(self.length(at), self.length(at))])
        units_N = next(iter(by_first.values())).units()[0]
        return _comparison(f"{self.label(run)} at {self.length(at)}", differences_SN, units_N, bound, at_most)

    def contrast(
        self, run: Run, other: Run, corpus: str, at: Sequence[float], *, bound: float = 0.0, at_most: bool = True
    ) -> Comparison:
        """The loss of a model minus that of another, as the mean over lengths: documents and seeds are the units."""
        lengths = [self.length(multiple) for multiple in at]
        place = f"{lengths[0]}" if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
        name = f"{self.label(run)} minus {self.label(other)} at {place}"
        pairs = [(length, length) for length in lengths]
        first, second = (self.evaluations(each, corpus) for each in (run, other))
        return self._between(name, first, second, corpus, pairs, [], bound, at_most)

    def growth(
        self, run: Run, other: Run, corpus: str, start: float, end: float, *, bound: float = 0.0, at_most: bool = True
    ) -> Comparison:
        """The change of a model's loss from one length to another, minus that of another model."""
        name = f"growth of {self.label(run)} minus {self.label(other)} from {self.length(start)} to {self.length(end)}"
        first, second = (self.evaluations(each, corpus) for each in (run, other))
        late, early = ([(length, length)] for length in (self.length(end), self.length(start)))
        return self._between(name, first, second, corpus, late, early, bound, at_most)

    def _between(
        self,
        name: str,
        first: dict[int, Evaluation],
        second: dict[int, Evaluation],
        corpus: str,
        pairs: list[tuple[int, int]],
        minus: list[tuple[int, int]],
        bound: float,
        at_most: bool,
    ) -> Comparison:
        differences_SN = _differences(first, second, pairs)
        if minus:
            differences_SN = differences_SN - _differences(first, second, minus)
        units_N = next(iter(first.values())).units()[0]
        comparison = _comparison(name, differences_SN, units_N, bound, at_most)
        values = [
            [_mean(one, pairs) - (_mean(one, minus) if minus else 0.0) for one in by.values()] for by in (first, second)
        ]
        p_seeds, reason = self._seed_p(comparison.difference - bound, values, corpus)
        if p_seeds is None or comparison.p is None:
            return dataclasses.replace(comparison, p=None, reason=comparison.reason or reason)
        return dataclasses.replace(comparison, p=max(p_seeds, comparison.p))

    def _seed_p(self, difference: float, values: list[list[float]], corpus: str) -> tuple[float | None, str]:
        """p of a t-test over seeds with pooled variance; with single seeds, the variance is that of other models."""
        groups = values if all(len(group) > 1 for group in values) else self._seed_groups(corpus)
        freedom = sum(len(group) - 1 for group in groups)
        if not freedom:
            return None, "one seed, and no model with several"
        variance = sum(statistics.variance(group) * (len(group) - 1) for group in groups) / freedom
        error = math.sqrt(variance * sum(1 / len(group) for group in values))
        if error == 0:
            return None, "seeds do not differ"
        from scipy import stats

        return float(2 * stats.t.sf(abs(difference) / error, freedom)), ""

    def _seed_groups(self, corpus: str) -> list[list[float]]:
        """The losses at L_tr by seed, of each model with several seeds on a corpus, or else on the main one."""
        length = self.length(1)
        for name in (corpus, BETWEEN_CORPUS):
            groups = []
            for model in SEVERAL_SEEDS:
                by_seed = self.results.evaluations(model, name)
                losses = [float(one.quantities(length).mean()) for one in by_seed.values() if length in one.losses]
                if len(losses) > 1:
                    groups.append(losses)
            if groups:
                return groups
        return []


def _differences(
    first: dict[int, Evaluation], second: dict[int, Evaluation], pairs: Sequence[tuple[int, int]]
) -> np.ndarray:
    """First minus second loss of each shared seed and target, as the mean over pairs of lengths, (S, N)."""
    shared = sorted(first.keys() & second.keys())
    if not shared:
        raise Missing("two models with a seed in common")
    return np.stack([
        np.mean([differences(first[seed].quantities(a), second[seed].quantities(b)) for a, b in pairs], axis=0)
        for seed in shared
    ])  # fmt: skip


def _mean(evaluation: Evaluation, pairs: Sequence[tuple[int, int]]) -> float:
    return statistics.fmean(float(evaluation.quantities(length).mean()) for length, _ in pairs)


def _comparison(name: str, differences_SN: np.ndarray, units_N: np.ndarray, bound: float, at_most: bool) -> Comparison:
    """A comparison over documents, of losses pooled over seeds."""
    differences_N = differences_SN.mean(0)
    seeds_S = differences_SN.mean(1)
    test = sign_flip(differences_N - bound, units_N)
    p = smallest_p(len(set(units_N.tolist()))) if test.reason == CONSTANT else test.p
    interval = bootstrap_difference(differences_N, units_N)[0]
    paired_p = paired_t(seeds_S, np.full(len(seeds_S), bound)).p if len(seeds_S) >= 3 else None
    mean = float(differences_N.mean())
    return Comparison(name, mean, bound, at_most, tuple(seeds_S.tolist()), interval, p, test.reason, paired_p)


def settled(answers: Sequence[Answer]) -> Answer:
    """Combine answers: False if any is False, True if all are True, else None."""
    return False if False in answers else True if all(answers) else None


def agreed(answers: Sequence[Answer]) -> Answer:
    """The answer of all seeds if they agree, else None."""
    return answers[0] if len(set(answers)) == 1 else None


def shares(values: Sequence[float]) -> str:
    """The range of some shares, in percent."""
    low, high = f"{min(values):.1%}", f"{max(values):.1%}"
    return low if low == high else f"{low} to {high}"


def times(nats: float) -> str:
    """A difference of losses as a ratio of perplexities."""
    ratio = math.exp(min(nats, 700))
    return f"× {ratio:.3f}" if ratio < 10 else f"× {ratio:.3g}"
