"""Claims about Rotary and Sinusoidal."""

from fieldlens.paper.artifacts.sinusoidal_128_512 import TRAININGS, jump
from fieldlens.paper.claims import Outcome, claim, over
from fieldlens.paper.evidence import Evidence, share
from fieldlens.paper.scale import TRAINED
from fieldlens.paper.shelf import ALL

TALL = 2.0


@claim(
    "leave-the-field", 11,
    "Rotary and Sinusoidal do not keep to the most recent L_tr tokens, and fail.",
    "Both have at most 99 % of their gradient within L_tr, and explode.",
)  # fmt: skip
def leave_the_field(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        found, said = [], []
        for model in ("rotary", "sinusoidal"):
            inside = evidence.field(model, corpus).within(evidence.shelf.trained)
            found.append(inside <= 0.99 and evidence.explodes(model, corpus))
            said.append(f"{model}: {share(inside)} inside, × {evidence.worst(model, corpus):.3g}")
        return all(found), said

    return over(evidence, ALL, test)


@claim(
    "sinusoidal-jumps", 12,
    "Sinusoidal looks at the position where its training sequences ended: the gradient jumps at L_tr.",
    "At both training lengths, of all spans of L_tr / 16 before the most recent L_tr tokens the heaviest lies within "
    f"L_tr / 4 of position L_tr, and holds {TALL:g} times the mean.",
)  # fmt: skip
def sinusoidal_jumps(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        each = [_jumps(evidence, "sinusoidal", corpus, trained) for trained in TRAININGS]
        return all(found for found, _ in each), [line for _, said in each for line in said]

    return over(evidence, ("arxiv",), test)


@claim(
    "rotary-jumps", 5,
    "Rotary too looks at the position where its training sequences ended, though it adds no position to its input.",
    "Of all spans of L_tr / 16 before the most recent L_tr tokens the heaviest lies within L_tr / 4 of position L_tr, "
    f"and holds {TALL:g} times the mean.",
    ours=True,
)  # fmt: skip
def rotary_jumps(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        return _jumps(evidence, "rotary", corpus, TRAINED)

    return over(evidence, ALL, test)


def _jumps(evidence: Evidence, model: str, corpus: str, trained: int) -> tuple[bool, list[str]]:
    here = evidence.shelf.length(trained)
    place, times = jump(evidence.field(model, corpus, trained), here)
    found = abs(place - here) <= here / 4 and times >= TALL
    return found, [f"L_tr {here}: heaviest at {place}, {times:.1f} times the mean"]
