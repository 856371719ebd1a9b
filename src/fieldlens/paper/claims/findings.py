"""Findings of our own."""

import math

import torch

from fieldlens.paper.artifacts.arxiv_openwebtext2 import MODELS, WINDOWS
from fieldlens.paper.artifacts.diagonal_8 import fits
from fieldlens.paper.artifacts.heatmap_8 import LENGTH
from fieldlens.paper.artifacts.sinusoidal_128_512 import jump, spans
from fieldlens.paper.claims import Finding, claim
from fieldlens.paper.evidence import Evidence, NotTestable, Run, agreed
from fieldlens.paper.printed import cells
from fieldlens.paper.results import TWO_CORPORA
from fieldlens.paper.scale import LENGTHS
from fieldlens.receptive.field import ReceptiveField, cumulative
from fieldlens.reporting.plots import bias_by_distance
from fieldlens.schemes.smoothed import PRINTED, RECENT_POINTS
from fieldlens.schemes.spec import parse, scheme

FLOOR = 0.01
IDENTICAL_COLUMNS = ("shift:6", "shift:8", "same:8")
MIN_PEAK, WAVELENGTH_TOLERANCE = 2.0, 0.05


@claim(
    "slope-floor",
    "Three columns of the paper's tables are the same numbers; slopes kept from falling below 0.01, which makes three "
    "models one, would explain it.",
    "Δ = 6, Δ = 8 and h = 8 are printed alike at every length of both tables; with slope_floor=0.01 their biases are "
    "equal, and without one they are not.",
    ours=True,
)  # fmt: skip
def slope_floor(evidence: Evidence, corpus: str) -> Finding:
    alike = all(
        len({cells(f"tab:{name}")[name, model, length].value for model in IDENTICAL_COLUMNS}) == 1
        for name in TWO_CORPORA
        for length in LENGTHS
    )
    specs = ("alibi:shift=6", "alibi:shift=8", "alibi:same=8")
    floored, free = (
        [bias_by_distance(scheme(spec + suffix, 12, 64), 512) for spec in specs]
        for suffix in (f",slope_floor={FLOOR}", "")
    )
    same, other = (all(torch.equal(bias, group[0]) for bias in group) for group in (floored, free))
    words = {True: "yes", False: "no"}
    lines = [f"printed alike: {words[alike]}; biases equal with the floor: {words[same]}, without: {words[other]}"]
    return Finding((), [alike and same and not other], lines)


@claim(
    "two-fits",
    "The printed log curve fits the whole row of Sandwich, not its 50 nearest points as the footnote says.",
    f"Least squares on all {LENGTH} points lies nearer to the printed constants than on the nearest {RECENT_POINTS}.",
    ours=True,
)  # fmt: skip
def two_fits(evidence: Evidence, corpus: str) -> Finding:
    by_points = fits()
    errors = {points: max(abs(a - b) for a, b in zip(fit, PRINTED, strict=True)) for points, fit in by_points.items()}
    lines = [f"{points} points: {a:.4f}·log(1 + Δ) {b:+.4f}" for points, (a, b) in by_points.items()]
    return Finding((), [errors[LENGTH] < errors[RECENT_POINTS]], lines)


@claim(
    "exact-reach",
    "R layers with a window of w keys reach exactly R(w - 1) + 1 tokens back, not R·w.",
    "In every window model that was measured farther than that, the gradient is exactly zero before it, and not at it.",
    runs=[WINDOWS[0]], uses=[], ours=True,
)  # fmt: skip
def exact_reach(evidence: Evidence, corpus: str) -> Finding:
    layers = evidence.results.layers
    answers, lines = [], []
    for model in WINDOWS:
        field, window = evidence.results.field(model, corpus), parse(evidence.results.spec(model))[1]["window"]
        reach = layers * (window - 1) + 1
        if field is None or reach >= field.length:
            continue
        oldest = int((field.norms_NT[field.defined] > 0).any(0).argmax())
        answers.append(field.length - oldest == reach)
        lines.append(f"w = {window}: {field.length - oldest}, by the formula {reach} (the paper's {layers * window})")
    if not answers:
        raise NotTestable("no window whose reach is shorter than the field measured")
    return Finding((), answers, lines)


@claim(
    "erf-as-printed",
    "The ERF as printed, min{m | c_m > .99}, is 1 for every model; the figures mean the maximum.",
    "Computed as printed from every measured curve of the three experiments it is 1.",
    runs=[WINDOWS[-1]], uses=[], ours=True,
)  # fmt: skip
def erf_as_printed(evidence: Evidence, corpus: str) -> Finding:
    fields = [evidence.results.field(model, corpus) for model in MODELS]
    erfs = [int((cumulative(field.shares()) > 0.99).argmax()) + 1 for field in fields if field is not None]
    return Finding((), [set(erfs) == {1}], [f"{len(erfs)} curves: {sorted(set(erfs))}"])


@claim(
    "rotary-rings",
    "Rotary looks back at distances one of its wavelengths apart, wherever its training sequences ended.",
    "Of all spans of L_tr / 16 before the most recent L_tr tokens, the heaviest, and the heaviest at least L_tr / 2 "
    f"from it, each hold {MIN_PEAK:g} times the mean, and lie a wavelength 2π·10000^(2i/K) apart within "
    f"{WAVELENGTH_TOLERANCE:.0%}, with each seed.",
    runs=["rotary"], ours=True,
)  # fmt: skip
def rotary_rings(evidence: Evidence, corpus: str) -> Finding:
    recipe = evidence.results.study.whole[0].recipe
    width = recipe.width // recipe.heads
    waves = [2 * math.pi * 10_000 ** (2 * i / width) for i in range(width // 2)]
    fields = evidence.fields(Run("rotary"), corpus)
    outcomes = {seed: _rings(field, evidence.results.trained, waves) for seed, field in fields.items()}
    lines = [f"seed {seed}, {line}" for seed, (_, line) in outcomes.items()]
    return Finding((), [agreed([answer for answer, _ in outcomes.values()])], lines)


def _rings(field: ReceptiveField, length: int, waves: list[float]) -> tuple[bool, str]:
    """Whether the two heaviest spans lie a wavelength apart; and the evidence."""
    weights, (first, _) = spans(field, length), jump(field, length)
    second = max((place for place in weights if abs(place - first) >= length / 2), key=weights.__getitem__)
    apart = abs(second - first)
    wave = min(waves, key=lambda wavelength: abs(math.log(wavelength / apart)))
    heavy = min(weights[first], weights[second]) >= MIN_PEAK
    peaks = [f"{weights[peak]:.1f} times the mean {field.length - peak} back" for peak in (first, second)]
    line = f"{', '.join(peaks)}: {apart} apart; the nearest wavelength is {wave:.1f}"
    return heavy and abs(apart / wave - 1) <= WAVELENGTH_TOLERANCE, line
