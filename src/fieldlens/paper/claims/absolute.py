"""Claims about Rotary and Sinusoidal."""

import math

from fieldlens.paper.artifacts.sinusoidal_128_512 import TRAININGS, jump, spans
from fieldlens.paper.claims import Outcome, agreed, claim, over, settled
from fieldlens.paper.evidence import Answer, Evidence, shares, times
from fieldlens.paper.results import ALL_CORPORA
from fieldlens.receptive.field import ReceptiveField

HALF = 0.5
MIN_PEAK, MIN_LEAD = 2.0, 1.25
"""Weight of a peak over the mean, and over the heaviest span elsewhere."""
WAVELENGTH_TOLERANCE = 0.05


@claim(
    "leave-the-field", 12,
    "Rotary and Sinusoidal fail to focus on the most recent L_tr tokens, and to extrapolate.",
    f"Both have less than {HALF:.0%} of their gradient within L_tr, with each seed, and explode.",
)  # fmt: skip
def leave_the_field(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers: list[Answer] = []
        lines = []
        for model in ("rotary", "sinusoidal"):
            inside = evidence.inside(model, corpus)
            answers += [agreed([share < HALF for share in inside]), evidence.explodes(model, corpus)]
            lines.append(f"{model}: {shares(inside)} inside, {times(evidence.worst(model, corpus))}")
        return settled(answers), lines

    return over(evidence, ALL_CORPORA, test)


@claim(
    "sinusoidal-jumps", 13,
    "Sinusoidal looks at the position where its training sequences ended: the gradient jumps at L_tr.",
    "At both training lengths, of all spans of L_tr / 16 before the most recent L_tr tokens the heaviest lies within "
    f"L_tr / 4 of position L_tr, holds {MIN_PEAK:g} times the mean, and {MIN_LEAD:g} times the heaviest elsewhere. One "
    f"elsewhere that holds {MIN_LEAD:g} times as much, or less than {MIN_PEAK / MIN_LEAD:g} times the mean there, "
    "decides against it. Seeds must agree.",
)  # fmt: skip
def sinusoidal_jumps(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[Answer, list[str]]:
        outcomes = [_jumps(evidence, corpus, trained) for trained in TRAININGS]
        return settled([answer for answer, _ in outcomes]), [line for _, lines in outcomes for line in lines]

    return over(evidence, ("arxiv",), test, "a heaviest span that stands out, and is the same with each seed")


def _jumps(evidence: Evidence, corpus: str, trained: int) -> tuple[Answer, list[str]]:
    """Whether the gradient jumps at L_tr with each seed; and the evidence of each."""
    length = evidence.results.length(trained)
    outcomes = {seed: _jump(field, length) for seed, field in evidence.fields("sinusoidal", corpus, trained).items()}
    lines = [f"seed {seed}, {line}" for seed, (_, line) in outcomes.items()]
    return agreed([answer for answer, _ in outcomes.values()]), lines


def _jump(field: ReceptiveField, length: int) -> tuple[Answer, str]:
    """Whether the heaviest span is near position L_tr; and the evidence."""
    weights = spans(field, length)
    near = {position: weight for position, weight in weights.items() if abs(position - length) <= length / 4}
    best = max(near, key=near.__getitem__)
    other = max((position for position in weights if position not in near), key=weights.__getitem__)
    lead = near[best] / weights[other]
    line = f"L_tr {length}: {near[best]:.1f} times the mean at {best}, {weights[other]:.1f} at {other}"
    if lead >= MIN_LEAD and near[best] >= MIN_PEAK:
        return True, line
    return False if lead <= 1 / MIN_LEAD or near[best] < MIN_PEAK / MIN_LEAD else None, line


@claim(
    "rotary-rings", 5,
    "Rotary looks back at distances one of its wavelengths apart, wherever its training sequences ended.",
    "Of all spans of L_tr / 16 before the most recent L_tr tokens, the heaviest, and the heaviest at least L_tr / 2 "
    f"from it, each hold {MIN_PEAK:g} times the mean, and lie a wavelength 2π·10000^(2i/K) apart within "
    f"{WAVELENGTH_TOLERANCE:.0%}, with each seed.",
    ours=True,
)  # fmt: skip
def rotary_rings(evidence: Evidence) -> Outcome:
    recipe = evidence.results.study.whole[0].recipe
    width = recipe.width // recipe.heads
    waves = [2 * math.pi * 10_000 ** (2 * i / width) for i in range(width // 2)]
    length = evidence.results.trained

    def rings(field: ReceptiveField) -> tuple[bool, str]:
        weights, (first, _) = spans(field, length), jump(field, length)
        distant = [position for position in weights if abs(position - first) >= length / 2]
        second = max(distant, key=weights.__getitem__)
        apart = abs(second - first)
        wave = min(waves, key=lambda wavelength: abs(math.log(wavelength / apart)))
        heavy = min(weights[first], weights[second]) >= MIN_PEAK
        peaks = [f"{weights[peak]:.1f} times the mean {field.length - peak} back" for peak in (first, second)]
        line = f"{', '.join(peaks)}: {apart} apart; the nearest wavelength is {wave:.1f}"
        return heavy and abs(apart / wave - 1) <= WAVELENGTH_TOLERANCE, line

    def test(corpus: str) -> tuple[Answer, list[str]]:
        outcomes = {seed: rings(field) for seed, field in evidence.fields("rotary", corpus).items()}
        lines = [f"seed {seed}, {line}" for seed, (_, line) in outcomes.items()]
        return agreed([answer for answer, _ in outcomes.values()]), lines

    return over(evidence, ALL_CORPORA, test)
