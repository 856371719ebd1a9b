"""Claims about Sandwich and the schemes like it."""

import math
from collections.abc import Sequence

import numpy as np

from fieldlens.paper.artifacts.different_d import MODELS as DIMENSIONS
from fieldlens.paper.artifacts.openweb_github_arxiv import LEARNED
from fieldlens.paper.artifacts.sandwich_kerple_t5_receptive import ALIKE, OTHERS
from fieldlens.paper.claims import Outcome, claim, over, settled
from fieldlens.paper.evidence import Evidence, share, sure
from fieldlens.paper.fields import distance
from fieldlens.paper.scale import LENGTHS, TRAINED
from fieldlens.paper.shelf import ALL
from fieldlens.statistics import holm, sign_flip
from fieldlens.verdict import ALPHA

ABOUT = (0.5, 0.7)
COMPARABLE = 0.05
RIVALS = ("alibi", "sinusoidal", "rotary")

SIGNS = {1: True, -1: False, 0: None}
"""Whether a sign is the one wanted; nothing is neither."""


def _beside_sandwich(
    evidence: Evidence, corpus: str, models: Sequence[str], lengths: Sequence[int]
) -> tuple[list[int], list[str]]:
    """The sign of each model's mean loss over some lengths less Sandwich's: 0 unless significant; and in words."""
    own, here = evidence.losses("sandwich", corpus), [evidence.shelf.length(length) for length in lengths]
    tests = []
    for model in models:
        other = evidence.losses(model, corpus)
        differences_N = np.mean([other.quantities(n) - own.quantities(n) for n in here], axis=0)
        tests.append(sign_flip(differences_N, own.units()[0]))
    ps = [1.0 if p is None else p for p in holm([found.p for found in tests])]
    signs = [int(np.sign(found.difference)) * (p < ALPHA) for found, p in zip(tests, ps, strict=True)]
    named = zip(models, tests, ps, strict=True)
    return signs, [f"{evidence.shelf.spec(m)}: {t.difference:+.4f} nats to sandwich (p = {p:.2g})" for m, t, p in named]


@claim(
    "sandwich-improves", 13,
    "Sandwich predicts better from more than L_tr tokens: it uses what lies beyond.",
    "Its loss is significantly lower than at L_tr at some length past it (documents flipped, Holm). Higher ones alone, "
    "or none that differs by 1 %, decide against it.",
)  # fmt: skip
def sandwich_improves(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool | None, list[str]]:
        found = evidence.verdict("sandwich", corpus)
        lower, higher, still = evidence.moves("sandwich", corpus)
        best = min(found["evidence"], key=lambda row: row["ratio"])
        return (True if lower else False if higher or still else None), [
            f"{found['verdict']}; at best × {best['ratio']:.3g}, with {best['length']} tokens"
        ]

    return over(evidence, ALL, test)


@claim(
    "sandwich-spreads", 14,
    "About 60 % of Sandwich's gradient lies within the most recent L_tr tokens, the rest beyond.",
    f"Between {ABOUT[0]:.0%} and {ABOUT[1]:.0%} inside, measured at 4 L_tr.",
)  # fmt: skip
def sandwich_spreads(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        found = evidence.field("sandwich", corpus).within(evidence.shelf.trained)
        return ABOUT[0] <= found <= ABOUT[1], [f"{share(found)} inside"]

    return over(evidence, ("arxiv",), test)


@claim(
    "sandwich-best", 15,
    "Past L_tr Sandwich is the best of the schemes without parameters.",
    "At each of × 2 … × 16 none of ALiBi, Sinusoidal, Rotary is significantly lower, and at some length Sandwich is "
    "significantly lower than each (documents flipped, Holm).",
)  # fmt: skip
def sandwich_best(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool | None, list[str]]:
        own = evidence.losses("sandwich", corpus)
        pairs = [(rival, length) for rival in RIVALS for length in LENGTHS[1:]]
        tests = [evidence.difference(evidence.losses(rival, corpus), own, length) for rival, length in pairs]
        certain = [p is not None and p < ALPHA for p in holm([found.p for found in tests])]
        worse = [
            (*pair, found)
            for pair, found, sure in zip(pairs, tests, certain, strict=True)
            if sure and found.difference < 0
        ]
        beaten = {
            pair[0] for pair, found, sure in zip(pairs, tests, certain, strict=True) if sure and found.difference > 0
        }
        said = [f"significantly better than {', '.join(sorted(beaten)) or 'none'} at some length"]
        said += [
            f"{rival} is better at {evidence.shelf.length(n)} by {-found.difference:.3f} nats"
            for rival, n, found in worse
        ]
        return (False if worse else True if beaten == set(RIVALS) else None), said

    return over(evidence, ALL, test)


@claim(
    "sandwich-comparable", 16,
    "At L_tr itself Sandwich is comparable to the other schemes without parameters.",
    f"Its perplexity is at most {COMPARABLE:.0%} above the best of them.",
)  # fmt: skip
def sandwich_comparable(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        own = evidence.perplexity("sandwich", corpus, TRAINED)
        others = {rival: evidence.perplexity(rival, corpus, TRAINED) for rival in RIVALS}
        best = min(others, key=others.__getitem__)
        return own <= (1 + COMPARABLE) * others[best], [f"{own:.3g}, and {others[best]:.3g} of {best}"]

    return over(evidence, ALL, test)


@claim(
    "dims-128", 17,
    "d̄ = 128 is the best; smaller and larger are worse.",
    "Over × 1 … × 16 its mean loss is significantly lower than that of 32, 64 and 256 (documents flipped, Holm).",
    decides="more seeds here; the paper's size, with 12 heads of 64 dimensions: study paper-full",
)  # fmt: skip
def dims_128(evidence: Evidence) -> Outcome:
    others = [model for model in DIMENSIONS if model != "sandwich"]

    def test(corpus: str) -> tuple[bool | None, list[str]]:
        signs, said = _beside_sandwich(evidence, corpus, others, LENGTHS)
        return settled([SIGNS[sign] for sign in signs]), said

    return over(evidence, ("arxiv",), test)


@claim(
    "falls-then-rises", 18,
    "Perplexity of Sandwich, KERPLE and T5 falls with the length, and rises again at very long ones.",
    "Of each: the lowest of × 1 … × 16 is neither the first nor the last, and both ends are significantly higher; an "
    "end that is the lowest decides against it.",
)  # fmt: skip
def falls_then_rises(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool | None, list[str]]:
        found: list[bool | None] = []
        said = []
        for model in ("sandwich", "kerple", "t5"):
            one = evidence.losses(model, corpus)
            means = {length: float(one.quantities(evidence.shelf.length(length)).mean()) for length in LENGTHS}
            lowest = min(means, key=means.__getitem__)
            ends = [evidence.difference(one, one, end, lowest) for end in (LENGTHS[0], LENGTHS[-1])]
            between = lowest not in (LENGTHS[0], LENGTHS[-1])
            found.append(False if not between else True if all(map(sure, ends)) else None)
            rises = math.exp(means[LENGTHS[-1]] - means[lowest])
            said.append(f"{evidence.shelf.spec(model)}: lowest at {evidence.shelf.length(lowest)}, then × {rises:.3g}")
        return settled(found), said

    return over(evidence, ALL, test)


@claim(
    "learned-better", 19,
    "Schemes with learned parameters, KERPLE and T5, reach lower perplexities than Sandwich.",
    "Both have a lower mean loss over × 1 … × 4, significantly (documents flipped, Holm).",
)  # fmt: skip
def learned_better(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool | None, list[str]]:
        signs, said = _beside_sandwich(evidence, corpus, LEARNED, LENGTHS[:3])
        return settled([SIGNS[-sign] for sign in signs]), said

    return over(evidence, ALL, test)


@claim(
    "smoothed-alike", 21,
    "The log curve through Sandwich predicts as well as Sandwich.",
    f"Perplexities differ by at most {COMPARABLE:.0%} at each of × 1 … × 16.",
)  # fmt: skip
def smoothed_alike(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        ratios = [
            evidence.perplexity("smoothed", corpus, n) / evidence.perplexity("sandwich", corpus, n) for n in LENGTHS
        ]
        worst = max(ratios, key=lambda ratio: abs(math.log(ratio)))
        return abs(worst - 1) <= COMPARABLE, [f"at most × {worst:.3f}"]

    return over(evidence, ALL, test)


@claim(
    "one-pattern", 22,
    "Sandwich, Smoothed, KERPLE and T5 share one pattern of receptive field, unlike ALiBi and windows.",
    "The largest distance between two of the four curves is smaller than the smallest from one of them to ALiBi or a "
    "window.",
)  # fmt: skip
def one_pattern(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        alike = {model: evidence.field(model, corpus) for model in ALIKE}
        others = {model: evidence.field(model, corpus) for model in OTHERS}
        pairs = [(a, b) for n, a in enumerate(ALIKE) for b in ALIKE[n + 1 :]]
        within = {pair: distance(alike[pair[0]], alike[pair[1]]) for pair in pairs}
        across = {(a, b): distance(alike[a], others[b]) for a in ALIKE for b in OTHERS}
        far, close = max(within, key=within.__getitem__), min(across, key=across.__getitem__)
        said = [
            f"{far[0]} and {far[1]} are {within[far]:.3f} apart",
            f"{close[0]} and {evidence.shelf.spec(close[1])} {across[close]:.3f}",
        ]
        return within[far] < across[close], said

    return over(evidence, ("arxiv",), test)
