"""Claims about ALiBi's slopes."""

from collections.abc import Sequence

from fieldlens.paper.artifacts.arxiv_openwebtext2 import SAME, SHIFTS
from fieldlens.paper.claims import Outcome, agreed, claim, over, settled
from fieldlens.paper.evidence import Answer, Evidence, shares, times
from fieldlens.paper.shelf import ALL, MOST

MOSTLY = 0.9


def _grown(evidence: Evidence, models: tuple[str, ...], corpus: str) -> tuple[list[Answer], str]:
    """Which models explode, and by how much each grows."""
    found = [evidence.explodes(model, corpus) for model in models]
    words = [f"{evidence.shelf.spec(model)} {times(evidence.worst(model, corpus))}" for model in models]
    return found, "largest perplexity past L_tr over that at L_tr: " + ", ".join(words)


def _some(found: Sequence[Answer], wanted: bool) -> Answer:
    """Whether at least one is as wanted."""
    return True if wanted in found else None if None in found else False


@claim(
    "slope-values", 1,
    "Whether ALiBi extrapolates depends on how steep its slopes are, not on each head having a slope of its own.",
    "Of the shifted models, equally diverse, some explode and some do not; of those with one slope, some do not.",
)  # fmt: skip
def slope_values(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        diverse, said = _grown(evidence, SHIFTS, corpus)
        equal, more = _grown(evidence, SAME, corpus)
        return settled([_some(diverse, True), _some(diverse, False), _some(equal, False)]), [said, more]

    return over(evidence, MOST, test)


@claim(
    "large-slopes", 2,
    "With one slope for all heads, only steep slopes extrapolate.",
    "There is an h above which every model explodes and up to which none does, with models on both sides.",
)  # fmt: skip
def large_slopes(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found, said = _grown(evidence, SAME, corpus)
        return settled([in_order(found), _some(found, True), _some(found, False)]), [said]

    return over(evidence, MOST, test)


def in_order(found: Sequence[Answer]) -> Answer:
    """Whether all that do not explode come before all that do; the uncertain matter only between the two."""
    known = [one for one in found if one is not None]
    if known != sorted(known):
        return False
    either = [[other if one is None else one for one in found] for other in (False, True)]
    return True if all(filled == sorted(filled) for filled in either) else None


@claim(
    "alibi-rises", 10,
    "ALiBi itself does not extrapolate: its perplexity rises past the training length.",
    "Its loss is significantly higher at some length past L_tr (documents flipped, Holm), with each seed, and nowhere "
    "lower. Surely within 1 % everywhere it does not rise.",
)  # fmt: skip
def alibi_rises(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        lower, higher, still = evidence.moves("alibi", corpus)
        verdict = evidence.verdict("alibi", corpus)["verdict"]
        said = f"perplexity {verdict}, at most {times(evidence.worst('alibi', corpus))}"
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
