"""Findings of our own."""

import torch

from fieldlens.paper.artifacts.arxiv_openwebtext2 import MODELS, WINDOWS
from fieldlens.paper.artifacts.diagonal_8 import fits
from fieldlens.paper.artifacts.heatmap_8 import LENGTH
from fieldlens.paper.claims import Outcome, claim, over
from fieldlens.paper.evidence import Answer, Evidence, Missing, times
from fieldlens.paper.printed import CORPORA, cells
from fieldlens.paper.results import TWO_CORPORA
from fieldlens.paper.scale import LENGTHS
from fieldlens.receptive.field import cumulative
from fieldlens.reporting.plots import bias_by_distance
from fieldlens.schemes.smoothed import PRINTED, RECENT_POINTS
from fieldlens.schemes.spec import parse, scheme

FLOOR = 0.01
IDENTICAL_COLUMNS = ("shift:6", "shift:8", "same:8")


@claim(
    "slope-floor", 1,
    "Three columns of the paper's tables are the same numbers; slopes kept from falling below 0.01, which makes three "
    "models one, would explain it.",
    "Δ = 6, Δ = 8 and h = 8 are printed alike at every length of both tables; with slope_floor=0.01 their biases are "
    "equal, and without one they are not.",
    ours=True,
)  # fmt: skip
def slope_floor(evidence: Evidence) -> Outcome:
    alike = all(
        len({cells(f"tab:{corpus}")[corpus, model, length].value for model in IDENTICAL_COLUMNS}) == 1
        for corpus in TWO_CORPORA
        for length in LENGTHS
    )
    specs = ("alibi:shift=6", "alibi:shift=8", "alibi:same=8")
    floored, free = (
        [bias_by_distance(scheme(spec + suffix, 12, 64), 512) for spec in specs]
        for suffix in (f",slope_floor={FLOOR}", "")
    )
    same, other = (all(torch.equal(bias, biases[0]) for bias in biases) for biases in (floored, free))
    lines = [
        f"printed alike in {' and '.join(CORPORA[name] for name in TWO_CORPORA)}: {'yes' if alike else 'no'}",
        f"biases equal with the floor: {'yes' if same else 'no'}; without: {'yes' if other else 'no'}",
    ]
    lines += _trained(evidence)
    return Outcome("holds" if alike and same and not other else "does not hold", lines)


def _trained(evidence: Evidence) -> list[str]:
    """The effect of the floor on a trained model, if both runs are available."""
    try:
        with_floor, without = (
            evidence.worst(model, "arxiv") for model in ("alibi:shift=6,slope_floor=0.01", "shift:6")
        )
    except Missing:
        return []
    printed = cells("tab:arxiv")
    first, *later = (float(printed["arxiv", "shift:6", length].value) for length in LENGTHS)
    label = evidence.results.label("shift:6")
    growth = f"{label} grows at most {times(with_floor)} with the floor, {times(without)} without"
    return [f"trained, {growth}; printed, {times(max(later) / first)}: that growth is not explained"]


@claim(
    "two-fits", 2,
    "The printed log curve fits the whole row of Sandwich, not its 50 nearest points as the footnote says.",
    f"Least squares on all {LENGTH} points lies nearer to the printed constants than on the nearest {RECENT_POINTS}.",
    ours=True,
)  # fmt: skip
def two_fits(evidence: Evidence) -> Outcome:
    by_points = fits()
    errors = {points: max(abs(a - b) for a, b in zip(fit, PRINTED, strict=True)) for points, fit in by_points.items()}
    lines = [f"{points} points: {a:.4f}·log(1 + Δ) {b:+.4f}" for points, (a, b) in by_points.items()]
    return Outcome("holds" if errors[LENGTH] < errors[RECENT_POINTS] else "does not hold", lines)


@claim(
    "exact-reach", 3,
    "R layers with a window of w keys reach exactly R(w - 1) + 1 tokens back, not R·w.",
    "In every window model that was measured farther than that, the gradient is exactly zero before it, and not at it.",
    ours=True,
)  # fmt: skip
def exact_reach(evidence: Evidence) -> Outcome:
    layers = evidence.results.study.whole[0].recipe.layers

    def test(corpus: str) -> tuple[Answer, list[str]]:
        answers, lines = [], []
        for model in WINDOWS:
            field, window = evidence.results.field(model, corpus), parse(evidence.results.spec(model))[1]["window"]
            reach = layers * (window - 1) + 1
            if field is None or reach >= field.length:
                continue
            norms_NT = field.norms_NT[field.defined]
            oldest = int((norms_NT > 0).any(0).argmax())
            answers.append(field.length - oldest == reach)
            lines.append(
                f"w = {window}: {field.length - oldest}, by the formula {reach} (the paper's {layers * window})"
            )
        if not lines:
            raise evidence.missing(WINDOWS[0], corpus)
        return all(answers), lines

    return over(evidence, TWO_CORPORA, test)


@claim(
    "erf-as-printed", 4,
    "The ERF as printed, min{m | c_m > .99}, is 1 for every model; the figures mean the maximum.",
    "Computed as printed from every measured curve of the three experiments it is 1.",
    ours=True,
)  # fmt: skip
def erf_as_printed(evidence: Evidence) -> Outcome:
    def test(corpus: str) -> tuple[bool, list[str]]:
        fields = [evidence.results.field(model, corpus) for model in MODELS]
        erfs = [int((cumulative(field.shares()) > 0.99).argmax()) + 1 for field in fields if field is not None]
        if not erfs:
            raise evidence.missing(MODELS[0], corpus)
        return set(erfs) == {1}, [f"{len(erfs)} curves: {sorted(set(erfs))}"]

    return over(evidence, TWO_CORPORA, test)
