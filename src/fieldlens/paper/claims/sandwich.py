"""Claims about Sandwich and the schemes like it."""

import math
from itertools import pairwise

import torch

from fieldlens.paper.artifacts.different_d import MODELS as DIMENSIONS
from fieldlens.paper.artifacts.heatmap_8 import HEADS, biases
from fieldlens.paper.artifacts.openweb_github_arxiv import LEARNED
from fieldlens.paper.artifacts.sandwich_kerple_t5_receptive import ALIKE, OTHERS
from fieldlens.paper.claims import SEEDS, VERDICT, Outcome, agreed, claim, over, settled
from fieldlens.paper.evidence import SMALL, Answer, Evidence, Gap, by_seed, corrected, shares, tested, times
from fieldlens.paper.fields import distance
from fieldlens.paper.results import ALL_CORPORA
from fieldlens.paper.scale import LENGTHS, TRAINED
from fieldlens.training.loss import LARGEST

SHARE_RANGE = (0.5, 0.7)
COMPARABLE = 0.05
RIVALS = ("alibi", "sinusoidal", "rotary")
ALIKE_ENOUGH = f"intervals that lie on one side of {COMPARABLE:.0%}, and two or more seeds that agree"
"""What decides whether models are alike."""


@claim(
    "sandwich-improves", 14,
    "Sandwich predicts better from more than L_tr tokens: it uses what lies beyond.",
    "Its loss is significantly lower than at L_tr at some length past it (documents flipped, Holm), with each seed. "
    "Higher ones alone, or surely none that differs by 1 %, decide against it.",
)  # fmt: skip
def sandwich_improves(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        verdict = evidence.verdict("sandwich", corpus)
        lower, higher, still = evidence.moves("sandwich", corpus)
        best = min(verdict["evidence"], key=lambda row: row["ratio"])
        return (False if still else True if lower else False if higher else None), [
            f"at best {times(best['ratio'])}, with {best['length']} tokens"
        ]

    return over(evidence, ALL_CORPORA, test)


@claim(
    "sandwich-spreads", 15,
    "About 60 % of Sandwich's gradient lies within the most recent L_tr tokens, the rest beyond.",
    f"Between {SHARE_RANGE[0]:.0%} and {SHARE_RANGE[1]:.0%} inside, measured at 4 L_tr, with each seed.",
)  # fmt: skip
def sandwich_spreads(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        inside = evidence.inside("sandwich", corpus)
        return agreed([SHARE_RANGE[0] <= share <= SHARE_RANGE[1] for share in inside]), [f"{shares(inside)} inside"]

    return over(evidence, ("arxiv",), test, "seeds that agree")


@claim(
    "sandwich-best", 16,
    "On ArXiv and GitHub Sandwich is better than every other scheme without parameters at each length past L_tr.",
    "At each of × 2 … × 16 its loss is lower than that of ALiBi, Sinusoidal and Rotary: significantly (documents "
    "flipped, Holm), and with each of two or more seeds. One that is higher so decides against it.",
)  # fmt: skip
def sandwich_best(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        pairs = [("sandwich", rival) for rival in RIVALS]
        answers, lines = evidence.lower(corpus, pairs, LENGTHS[1:], each=True)
        others = [line for answer, line in zip(answers, lines, strict=True) if answer is not True]
        return settled(answers), [f"lower in {answers.count(True)} of {len(answers)} cases", *others]

    return over(evidence, ("arxiv", "github"), test, SEEDS)


@claim(
    "sandwich-comparable", 17,
    "At L_tr itself Sandwich is comparable to the other schemes without parameters.",
    f"Its perplexity is at most {COMPARABLE:.0%} above that of each: the whole interval over documents lies below, and "
    "each of two or more seeds. Above for one, likewise, decides against it.",
)  # fmt: skip
def sandwich_comparable(evidence: Evidence) -> Outcome:
    limit = math.log1p(COMPARABLE)

    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers, lines = [], []
        for rival in RIVALS:
            gap = evidence.between("sandwich", rival, corpus, [TRAINED])
            answers.append(gap.agreed(gap.at_most(limit), lambda difference: difference <= limit))
            lines.append(f"× {_with_interval(gap)} of {rival}{by_seed(gap, _as_ratio)}")
        return settled(answers), lines

    return over(evidence, ALL_CORPORA, test, ALIKE_ENOUGH)


def _with_interval(gap: Gap) -> str:
    """A ratio of perplexities with its interval."""
    low, ratio, high = map(_as_ratio, (gap.interval.low, gap.paired.difference, gap.interval.high))
    return f"{ratio} ({low} to {high})"


def _as_ratio(nats: float) -> str:
    return f"{math.exp(min(nats, LARGEST)):.3f}" if math.isfinite(nats) else "?"


@claim(
    "dims-128", 19,
    "d̄ = 128 is the best; smaller and larger are worse.",
    "Over × 1 … × 16 its mean loss is lower than that of 32, 64 and 256: significantly (documents flipped, Holm), and "
    "with each of two or more seeds.",
    decides="more seeds here; the paper's size, with 12 heads of 64 dimensions: study paper-full",
)  # fmt: skip
def dims_128(evidence: Evidence) -> Outcome:
    others = [model for model in DIMENSIONS if model != "sandwich"]

    def test(corpus: str) -> tuple[Answer, list[str]]:
        pairs = [("sandwich", other) for other in others]
        answers, lines = evidence.lower(corpus, pairs, LENGTHS)
        return settled(answers), lines

    return over(evidence, ("arxiv",), test, SEEDS)


@claim(
    "dims-window", 18,
    "A larger d̄ makes the windowing stronger.",
    "Of the softmax of the bias alone (h = 8, 8,192 tokens), the most recent 512 tokens hold more with each "
    "doubling of d̄.",
)  # fmt: skip
def dims_window(evidence: Evidence) -> Outcome:
    recent = [float(torch.softmax(bias_HN[HEADS - 1], 0)[:TRAINED].sum()) for _, bias_HN in biases(*DIMENSIONS)]
    lines = [f"{model}: {share:.2%}" for model, share in zip(DIMENSIONS, recent, strict=True)]
    return Outcome(VERDICT[all(a < b for a, b in pairwise(recent))], lines)


@claim(
    "falls-then-rises", 20,
    "Perplexity of Sandwich, KERPLE and T5 falls with the length, and rises again at very long ones.",
    "Of each: at the best length between × 1 and × 16 the loss is significantly lower than at both (documents "
    "flipped, Holm), with each seed. One where it is significantly higher, or surely within 1 %, decides against it.",
)  # fmt: skip
def falls_then_rises(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        gaps, best_of = [], {}
        for model in ("sandwich", "kerple", "t5"):
            pooled, evaluations = evidence.losses(model, corpus), evidence.each(model, corpus)
            between = LENGTHS[1:-1]
            means = [float(pooled.quantities(evidence.results.length(length)).mean()) for length in between]
            best = best_of[model] = between[means.index(min(means))]
            gaps += [evidence.gap(evaluations, evaluations, [best], [end]) for end in (LENGTHS[0], LENGTHS[-1])]
        gaps = corrected(gaps)
        answers = [False if gap.rests(SMALL) else gap.falls() for gap in gaps]
        lines = []
        for (model, best), *ends in zip(best_of.items(), gaps[::2], gaps[1::2], strict=True):
            first, last = (f"× {_with_interval(gap)}, {tested(gap)}" for gap in ends)
            at = f"{evidence.results.label(model)} at {evidence.results.length(best)}"
            lines.append(f"{at}: {first}, of the first; {last}, of the last")
        return settled(answers), lines

    return over(evidence, ALL_CORPORA, test)


@claim(
    "learned-better", 21,
    "Schemes with learned parameters, KERPLE and T5, reach lower perplexities than Sandwich.",
    "Both have a lower mean loss over × 1 … × 4: significantly (documents flipped, Holm), and with each of two or more "
    "seeds.",
)  # fmt: skip
def learned_better(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        pairs = [(model, "sandwich") for model in LEARNED]
        answers, lines = evidence.lower(corpus, pairs, LENGTHS[:3])
        return settled(answers), lines

    return over(evidence, ALL_CORPORA, test, SEEDS)


@claim(
    "smoothed-alike", 23,
    "The log curve through Sandwich predicts as well as Sandwich.",
    f"Perplexities differ by at most {COMPARABLE:.0%} at each of × 1 … × 16: the whole interval over documents lies "
    "within, and each of two or more seeds. Outside at one length, likewise, decides against it.",
)  # fmt: skip
def smoothed_alike(evidence: Evidence) -> Outcome:
    limit = math.log1p(COMPARABLE)

    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers, lines = [], []
        for length in LENGTHS:
            gap = evidence.between("smoothed", "sandwich", corpus, [length])
            answers.append(gap.agreed(gap.within(limit), lambda difference: abs(difference) <= limit))
            lines.append(f"× {_with_interval(gap)} at {evidence.results.length(length)}{by_seed(gap, _as_ratio)}")
        return settled(answers), lines

    return over(evidence, ALL_CORPORA, test, ALIKE_ENOUGH)


@claim(
    "one-pattern", 24,
    "Sandwich, Smoothed, KERPLE and T5 share one pattern of receptive field, unlike ALiBi and windows.",
    "The largest distance between two of the four curves is smaller than the smallest from one of them to ALiBi or a "
    "window, with each of two or more seeds.",
)  # fmt: skip
def one_pattern(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        fields = {model: evidence.fields(model, corpus) for model in (*ALIKE, *OTHERS)}
        seeds = sorted(set.intersection(*(set(by_seed) for by_seed in fields.values())))
        if not seeds:
            raise evidence.missing("sandwich", corpus, reason=" and the others, with one seed in common")
        pairs = [(a, b) for n, a in enumerate(ALIKE) for b in ALIKE[n + 1 :]]
        answers, lines = [], []
        for seed in seeds:
            within = {(a, b): distance(fields[a][seed], fields[b][seed]) for a, b in pairs}
            across = {(a, b): distance(fields[a][seed], fields[b][seed]) for a in ALIKE for b in OTHERS}
            far, close = max(within, key=within.__getitem__), min(across, key=across.__getitem__)
            answers.append(within[far] < across[close])
            apart = f"{far[0]} and {far[1]} are {within[far]:.3f} apart"
            lines.append(f"seed {seed}: {apart}, {close[0]} and {evidence.results.label(close[1])} {across[close]:.3f}")
        return agreed(answers) if len(answers) > 1 else None, lines

    return over(evidence, ("arxiv",), test, "two or more seeds that agree")
