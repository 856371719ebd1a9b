"""Claims about ALiBi's slopes."""

import math
from collections.abc import Sequence
from itertools import product

from fieldlens.paper.artifacts.arxiv_openwebtext2 import SAME, SHIFTS
from fieldlens.paper.claims import SEEDS, Outcome, agreed, claim, over, settled
from fieldlens.paper.evidence import SMALL, Answer, Evidence, by_seed, corrected, shares, tested, times
from fieldlens.paper.results import ALL, MOST

MOSTLY = 0.9


def _grown(evidence: Evidence, models: tuple[str, ...], corpus: str) -> str:
    """How much each model grows, in words."""
    words = [f"{evidence.results.label(model)} {times(evidence.worst(model, corpus))}" for model in models]
    return "largest perplexity past L_tr over that at L_tr: " + ", ".join(words)


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
        more = True if flat.certain and flat.found.difference >= SMALL else False if flat.at_most(SMALL) else None
        found = [
            flat.agreed(more, lambda difference: difference >= SMALL),
            steep.agreed(steep.at_most(SMALL), lambda difference: difference <= SMALL),
        ]
        said = [
            f"{evidence.results.label(model)} grows × {math.exp(gap.found.difference):.3f} as much as ALiBi "
            f"({tested(gap)}{by_seed(gap, lambda nats: f'{math.exp(nats):.3f}')})"
            for model, gap in ((SHIFTS[-1], flat), (SAME[0], steep))
        ]
        return settled(found), [*said, *(_grown(evidence, models, corpus) for models in (SHIFTS, SAME))]

    return over(evidence, MOST, test, SEEDS)


@claim(
    "large-slopes", 2,
    "With one slope for all heads, only steep slopes extrapolate.",
    "There is an h above which every model is significantly worse past L_tr by 1 % or more, and up to which surely "
    "none is, with models on both sides; each seed must agree.",
)  # fmt: skip
def large_slopes(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        return in_order([evidence.breaks(model, corpus) for model in SAME]), [_grown(evidence, SAME, corpus)]

    return over(evidence, MOST, test)


def in_order(found: Sequence[Answer]) -> Answer:
    """Whether some do not break, and then all others do: if so however the uncertain ones turn out."""
    either = [(False, True) if one is None else (one,) for one in found]
    fits = {list(one) == sorted(one) and len(set(one)) == 2 for one in product(*either)}
    return fits.pop() if len(fits) == 1 else None


@claim(
    "alibi-rises", 10,
    "ALiBi itself does not extrapolate: its perplexity rises past the training length.",
    "Its loss is significantly higher at some length past L_tr (documents flipped, Holm), with each seed, and nowhere "
    "lower. Surely within 1 % everywhere it does not rise.",
)  # fmt: skip
def alibi_rises(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        lower, higher, still = evidence.moves("alibi", corpus)
        said = f"at most {times(evidence.worst('alibi', corpus))}"
        return (False if still or lower else True if higher else None), [said]

    return over(evidence, ALL, test)


@claim(
    "alibi-covered", 11,
    "The training length covers most of ALiBi's receptive field.",
    f"More than {MOSTLY:.0%} of its gradient lies within the most recent L_tr tokens, with each seed.",
)  # fmt: skip
def alibi_covered(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found = evidence.inside("alibi", corpus)
        return agreed([one > MOSTLY for one in found]), [f"{shares(found)} inside"]

    return over(evidence, ALL, test)
