"""Claims about how the gradient is distributed over the context, measured at 4 L_tr."""

import numpy as np

from fieldlens.paper.artifacts.sandwich_kerple_t5_receptive import ALIKE, OTHERS
from fieldlens.paper.artifacts.sinusoidal_128_512 import spans
from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Answer, Evidence, Missing, Run, agreed, shares
from fieldlens.paper.fields import distance
from fieldlens.receptive.field import ReceptiveField

MIN_PEAK, MIN_LEAD = 2.0, 1.25
"""Weight of a peak over the mean, and over the heaviest span elsewhere."""


@claim(
    "leave-the-field",
    "Rotary and Sinusoidal fail to focus on the most recent L_tr tokens.",
    "Both have less than 50 % of their gradient within L_tr, with each seed.",
    runs=["rotary", "sinusoidal"],
)  # fmt: skip
def leave_the_field(evidence: Evidence, corpus: str) -> Finding:
    inside = {model: evidence.inside(model, corpus) for model in ("rotary", "sinusoidal")}
    answers = [agreed([share < 0.5 for share in by_seed]) for by_seed in inside.values()]
    return Finding((), answers, [f"{model}: {shares(by_seed)} inside" for model, by_seed in inside.items()])


@claim(
    "sinusoidal-jumps",
    "Sinusoidal looks at the position where its training sequences ended: the gradient jumps at L_tr.",
    "At both training lengths, L_tr and L_tr/4: of all spans of L_tr / 16 before the most recent L_tr tokens the "
    f"heaviest lies within L_tr / 4 of position L_tr, holds {MIN_PEAK:g} times the mean, and {MIN_LEAD:g} times the "
    f"heaviest elsewhere. One elsewhere that holds {MIN_LEAD:g} times as much, or less than {MIN_PEAK / MIN_LEAD:g} "
    "times the mean there, decides against it. Seeds must agree.",
    runs=["sinusoidal", Run("sinusoidal", 0.25)],
)  # fmt: skip
def sinusoidal_jumps(evidence: Evidence, corpus: str) -> Finding:
    answers, lines = [], []
    for trained in (1, 0.25):
        length, fields = evidence.length(trained), evidence.fields(Run("sinusoidal", trained), corpus)
        outcomes = {seed: _jump(field, length) for seed, field in fields.items()}
        lines += [f"seed {seed}, {line}" for seed, (_, line) in outcomes.items()]
        answers.append(agreed([answer for answer, _ in outcomes.values()]))
    return Finding((), answers, lines)


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
    "sandwich-spreads",
    "About 60 % of Sandwich's gradient lies within the most recent L_tr tokens, the rest beyond.",
    "Between 50 % and 70 % inside, with each seed.",
    runs=["sandwich"],
)  # fmt: skip
def sandwich_spreads(evidence: Evidence, corpus: str) -> Finding:
    inside = evidence.inside("sandwich", corpus)
    return Finding((), [agreed([0.5 <= share <= 0.7 for share in inside])], [f"{shares(inside)} inside"])


@claim(
    "near-linear-segment",
    "Sandwich's cumulative gradient is almost linear from L_tr/2 to L_tr back: it was trained to average there.",
    "Over that span the curve leaves its chord by at most 10 % of its rise, and by less than ALiBi's does, with each "
    "seed.",
    runs=["sandwich", "alibi"],
)  # fmt: skip
def near_linear_segment(evidence: Evidence, corpus: str) -> Finding:
    bends = {
        model: [_bend(field, evidence.length(1)) for field in evidence.fields(Run(model), corpus).values()]
        for model in ("sandwich", "alibi")
    }
    answers = [agreed([bend <= 0.1 for bend in bends["sandwich"]]), max(bends["sandwich"]) < min(bends["alibi"])]
    return Finding((), answers, [f"{model}: leaves its chord by {shares(values)}" for model, values in bends.items()])


def _bend(field: ReceptiveField, length: int) -> float:
    """The largest distance of the cumulative curve from its chord from L_tr/2 to L_tr back, over the rise there."""
    curve = np.cumsum(field.shares()[::-1])[length // 2 - 1 : length]
    chord = np.linspace(curve[0], curve[-1], len(curve))
    return float(abs(curve - chord).max() / (curve[-1] - curve[0]))


@claim(
    "one-pattern",
    "Sandwich, Smoothed, KERPLE and T5 share one pattern of receptive field, unlike ALiBi and windows.",
    "The largest distance between two of the four curves is smaller than the smallest from one of them to ALiBi or to "
    "the window of 80, with each seed that all of them have.",
    runs=[*ALIKE, *OTHERS], uses=[*ALIKE, "alibi"],
)  # fmt: skip
def one_pattern(evidence: Evidence, corpus: str) -> Finding:
    fields = {model: evidence.fields(Run(model), corpus) for model in (*ALIKE, *OTHERS)}
    seeds = sorted(set.intersection(*(set(by_seed) for by_seed in fields.values())))
    if not seeds:
        raise Missing("a seed that all models have")
    pairs = [(a, b) for n, a in enumerate(ALIKE) for b in ALIKE[n + 1 :]]
    answers, lines = [], []
    for seed in seeds:
        within = {(a, b): distance(fields[a][seed], fields[b][seed]) for a, b in pairs}
        across = {(a, b): distance(fields[a][seed], fields[b][seed]) for a in ALIKE for b in OTHERS}
        far, close = max(within, key=within.__getitem__), min(across, key=across.__getitem__)
        answers.append(within[far] < across[close])
        apart = f"{far[0]} and {far[1]} are {within[far]:.3f} apart"
        lines.append(f"seed {seed}: {apart}, {close[0]} and {evidence.results.label(close[1])} {across[close]:.3f}")
    return Finding((), [agreed(answers)], lines)
