"""Claims about ALiBi's slopes."""

from fieldlens.paper.artifacts.arxiv_openwebtext2 import SAME, SHIFTS
from fieldlens.paper.claims import Outcome, claim, over
from fieldlens.paper.evidence import Evidence, share
from fieldlens.paper.shelf import ALL, MOST

MOSTLY = 0.9


def _grown(evidence: Evidence, models: tuple[str, ...], corpus: str) -> tuple[list[bool], str]:
    """Which models explode, and by how much each grows."""
    found = [evidence.explodes(model, corpus) for model in models]
    words = [f"{evidence.shelf.spec(model)} × {evidence.worst(model, corpus):.3g}" for model in models]
    return found, "largest perplexity past L_tr over that at L_tr: " + ", ".join(words)


@claim(
    "slope-values", 1,
    "Whether ALiBi extrapolates depends on how steep its slopes are, not on each head having a slope of its own.",
    "Of the shifted models, equally diverse, some explode and some do not; of those with one slope, some do not.",
)  # fmt: skip
def slope_values(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        diverse, said = _grown(evidence, SHIFTS, corpus)
        equal, more = _grown(evidence, SAME, corpus)
        return any(diverse) and not all(diverse) and not all(equal), [said, more]

    return over(evidence, MOST, test)


@claim(
    "large-slopes", 2,
    "With one slope for all heads, only steep slopes extrapolate.",
    "There is an h above which every model explodes and up to which none does, with models on both sides.",
)  # fmt: skip
def large_slopes(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        found, said = _grown(evidence, SAME, corpus)
        return found == sorted(found) and any(found) and not all(found), [said]

    return over(evidence, MOST, test)


@claim(
    "alibi-rises", 9,
    "ALiBi itself does not extrapolate: its perplexity rises past the training length.",
    "Its loss is significantly higher at some length past L_tr (documents flipped, Holm), and nowhere lower. Within "
    "1 % everywhere it does not rise.",
)  # fmt: skip
def alibi_rises(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool | None, list[str]]:
        lower, higher, still = evidence.moves("alibi", corpus)
        said = f"{evidence.verdict('alibi', corpus)['verdict']}, at most × {evidence.worst('alibi', corpus):.3g}"
        return (False if lower else True if higher else False if still else None), [said]

    return over(evidence, ALL, test)


@claim(
    "alibi-covered", 10,
    "The training length covers most of ALiBi's receptive field.",
    f"More than {MOSTLY:.0%} of its gradient lies within the most recent L_tr tokens.",
)  # fmt: skip
def alibi_covered(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        found = evidence.field("alibi", corpus).within(evidence.shelf.trained)
        return found > MOSTLY, [f"{share(found)} inside"]

    return over(evidence, ALL, test)
