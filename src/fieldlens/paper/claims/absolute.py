"""Claims about Rotary and Sinusoidal."""

import math

from fieldlens.paper.artifacts.sinusoidal_128_512 import TRAININGS, jump, spans
from fieldlens.paper.claims import Outcome, agreed, claim, over, settled
from fieldlens.paper.evidence import Answer, Evidence, shares, times
from fieldlens.paper.results import ALL
from fieldlens.receptive.field import ReceptiveField

HALF = 0.5
TALL, AHEAD = 2.0, 1.25
RINGING = 0.05


@claim(
    "leave-the-field", 12,
    "Rotary and Sinusoidal fail to focus on the most recent L_tr tokens, and to extrapolate.",
    f"Both have less than {HALF:.0%} of their gradient within L_tr, with each seed, and explode.",
)  # fmt: skip
def leave_the_field(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        found: list[Answer] = []
        said = []
        for model in ("rotary", "sinusoidal"):
            inside = evidence.inside(model, corpus)
            found += [agreed([one < HALF for one in inside]), evidence.explodes(model, corpus)]
            said.append(f"{model}: {shares(inside)} inside, {times(evidence.worst(model, corpus))}")
        return settled(found), said

    return over(evidence, ALL, test)


@claim(
    "sinusoidal-jumps", 13,
    "Sinusoidal looks at the position where its training sequences ended: the gradient jumps at L_tr.",
    "At both training lengths, of all spans of L_tr / 16 before the most recent L_tr tokens the heaviest lies within "
    f"L_tr / 4 of position L_tr, holds {TALL:g} times the mean, and {AHEAD:g} times the heaviest elsewhere. One "
    f"elsewhere that holds {AHEAD:g} times as much, or less than {TALL / AHEAD:g} times the mean there, decides "
    "against it. Seeds must agree.",
)  # fmt: skip
def sinusoidal_jumps(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        each = [_jumps(evidence, corpus, trained) for trained in TRAININGS]
        return settled([found for found, _ in each]), [said for _, words in each for said in words]

    return over(evidence, ("arxiv",), test, "a heaviest span that stands out, and is the same with each seed")


def _jumps(evidence: Evidence, corpus: str, trained: int) -> tuple[Answer, list[str]]:
    """Whether it jumps, if all seeds say the same; and what each says."""
    here = evidence.results.length(trained)
    each = {seed: _jump(field, here) for seed, field in evidence.fields("sinusoidal", corpus, trained).items()}
    return agreed([found for found, _ in each.values()]), [f"seed {seed}, {said}" for seed, (_, said) in each.items()]


def _jump(field: ReceptiveField, here: int) -> tuple[Answer, str]:
    found = spans(field, here)
    near = {place: times for place, times in found.items() if abs(place - here) <= here / 4}
    best, other = max(near, key=near.__getitem__), max((p for p in found if p not in near), key=found.__getitem__)
    ahead = near[best] / found[other]
    said = f"L_tr {here}: {near[best]:.1f} times the mean at {best}, {found[other]:.1f} at {other}"
    if ahead >= AHEAD and near[best] >= TALL:
        return True, said
    return False if ahead <= 1 / AHEAD or near[best] < TALL / AHEAD else None, said


@claim(
    "rotary-rings", 5,
    "Rotary looks back at distances one of its wavelengths apart, wherever its training sequences ended.",
    "Of all spans of L_tr / 16 before the most recent L_tr tokens, the heaviest, and the heaviest at least L_tr / 2 "
    f"from it, each hold {TALL:g} times the mean, and lie a wavelength 2π·10000^(2i/K) apart within {RINGING:.0%}, "
    "with each seed.",
    ours=True,
)  # fmt: skip
def rotary_rings(evidence: Evidence) -> Outcome:
    recipe = evidence.results.study.whole[0].recipe
    width = recipe.width // recipe.heads
    waves = [2 * math.pi * 10_000 ** (2 * i / width) for i in range(width // 2)]

    here = evidence.results.trained

    def rings(field: ReceptiveField) -> tuple[bool, str]:
        found, (first, _) = spans(field, here), jump(field, here)
        second = max((place for place in found if abs(place - first) >= here / 2), key=found.__getitem__)
        apart = abs(second - first)
        wave = min(waves, key=lambda one: abs(math.log(one / apart)))
        tall = min(found[first], found[second]) >= TALL
        places = [f"{found[place]:.1f} times the mean {field.length - place} back" for place in (first, second)]
        said = f"{', '.join(places)}: {apart} apart; the nearest wavelength is {wave:.1f}"
        return tall and abs(apart / wave - 1) <= RINGING, said

    def test(corpus: str) -> tuple[Answer, list[str]]:
        each = {seed: rings(field) for seed, field in evidence.fields("rotary", corpus).items()}
        said = [f"seed {seed}, {words}" for seed, (_, words) in each.items()]
        return agreed([found for found, _ in each.values()]), said

    return over(evidence, ALL, test)
