"""Claims about ALiBi's slopes."""

import math
from collections.abc import Sequence
from itertools import product

from fieldlens.paper.artifacts.arxiv_openwebtext2 import SAME, SHIFTS
from fieldlens.paper.claims import SEEDS, Outcome, agreed, claim, over, settled
from fieldlens.paper.evidence import SMALL, Answer, Evidence, by_seed, corrected, shares, tested, times
from fieldlens.paper.results import ALL_CORPORA, TWO_CORPORA

MIN_COVERED = 0.9


def _growth_line(evidence: Evidence, models: tuple[str, ...], corpus: str) -> str:
    """Evidence line with the growth of each model."""
    ratios = [f"{evidence.results.label(model)} {times(evidence.worst(model, corpus))}" for model in models]
    return "largest perplexity past L_tr over that at L_tr: " + ", ".join(ratios)


@claim(
    "slope-values", 1,
    "Whether ALiBi extrapolates depends on how steep its slopes are, not on each head having a slope of its own.",
    "From L_tr to 16 L_tr the flattest of the shifted models, as diverse as ALiBi itself, grows by 1 % or more beyond "
    "ALiBi: significantly (documents flipped, Holm), and with each of two or more seeds. The steepest with one slope "
    "for all surely does not, with each of them.",
)  # fmt: skip
def slope_values(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        flat, steep = corrected([evidence.growth(model, "alibi", corpus) for model in (SHIFTS[-1], SAME[0])])
        more = True if flat.certain and flat.paired.difference >= SMALL else False if flat.at_most(SMALL) else None
        answers = [
            flat.agreed(more, lambda difference: difference >= SMALL),
            steep.agreed(steep.at_most(SMALL), lambda difference: difference <= SMALL),
        ]
        lines = [
            f"{evidence.results.label(model)} grows × {math.exp(gap.paired.difference):.3f} as much as ALiBi "
            f"({tested(gap)}{by_seed(gap, lambda nats: f'{math.exp(nats):.3f}')})"
            for model, gap in ((SHIFTS[-1], flat), (SAME[0], steep))
        ]
        return settled(answers), [*lines, *(_growth_line(evidence, models, corpus) for models in (SHIFTS, SAME))]

    return over(evidence, TWO_CORPORA, test, SEEDS)


@claim(
    "large-slopes", 2,
    "With one slope for all heads, only steep slopes extrapolate.",
    "There is an h above which every model is significantly worse past L_tr by 1 % or more, and up to which surely "
    "none is, with models on both sides; each seed must agree.",
)  # fmt: skip
def large_slopes(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        return in_order([evidence.breaks(model, corpus) for model in SAME]), [_growth_line(evidence, SAME, corpus)]

    return over(evidence, TWO_CORPORA, test)


def in_order(answers: Sequence[Answer]) -> Answer:
    """Whether the answers are some False, then some True; None if that depends on the undecided ones."""
    choices = [(False, True) if answer is None else (answer,) for answer in answers]
    ordered = {list(case) == sorted(case) and len(set(case)) == 2 for case in product(*choices)}
    return ordered.pop() if len(ordered) == 1 else None


@claim(
    "alibi-rises", 10,
    "ALiBi itself does not extrapolate: its perplexity rises past the training length.",
    "Its loss is significantly higher at some length past L_tr (documents flipped, Holm), with each seed, and nowhere "
    "lower. Surely within 1 % everywhere it does not rise.",
)  # fmt: skip
def alibi_rises(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        lower, higher, still = evidence.moves("alibi", corpus)
        line = f"at most {times(evidence.worst('alibi', corpus))}"
        return (False if still or lower else True if higher else None), [line]

    return over(evidence, ALL_CORPORA, test)


@claim(
    "alibi-covered", 11,
    "The training length covers most of ALiBi's receptive field.",
    f"More than {MIN_COVERED:.0%} of its gradient lies within the most recent L_tr tokens, with each seed.",
)  # fmt: skip
def alibi_covered(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        inside = evidence.inside("alibi", corpus)
        return agreed([share > MIN_COVERED for share in inside]), [f"{shares(inside)} inside"]

    return over(evidence, ALL_CORPORA, test)
