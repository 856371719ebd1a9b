"""The charts and heat maps of the report on receptive fields."""

import math
from collections.abc import Sequence

import numpy as np

from fieldlens.receptive.advice import coverage
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report

Colours = dict[int, tuple[str, str]]
"""Colour and marker of each measurement, by its id()."""


def cumulative_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """Cumulative share of the gradient against the number of most recent tokens."""
    series, trained = [], {}
    for measurement in measurements:
        name, field, (colour, _) = measurement.name, measurement.field, colours[id(measurement)]
        curve = field.curve(measurement.spec)
        recent = list(range(1, len(curve.middle) + 1))
        middle, low, high = (_rounded(line) for line in (curve.middle, curve.low, curve.high))
        series.append(report.Series(name, recent, middle, colour, low=low, high=high, group=name))
        if field.has_sink and field.stands_alone:
            rest = _rounded(np.cumsum(field.shares(without_first=True)[::-1]))
            label = f"{name}, without the first token"
            series.append(report.Series(label, recent[: len(rest)], rest, colour, dash=True, group=name))
        if field.train_length and field.train_length <= field.length:
            trained[field.train_length] = report.Mark(field.train_length, f"trained at {field.train_length:,}")
    marks = [*trained.values(), report.Mark(0.99, "99%", "y")]
    chart = report.chart(
        "Share of the gradient held by the most recent tokens",
        report.Axis("most recent tokens", log=True, toggle=True, format="tokens"),
        report.Axis("share of the gradient", format="percent", low=0, high=1),
        series,
        marks,
        "Line: mean over segments. Band: quartiles over segments.",
    )
    return [report.heading("How far back it looks"), chart]


def profile_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """Share of a single token against its distance."""
    series = []
    for measurement in measurements:
        distances, means = profile(measurement.field.shares())
        colour, marker = colours[id(measurement)]
        series.append(report.Series(measurement.name, distances, means, colour, marker=marker))
    chart = report.chart(
        "Share of a single token by its distance",
        report.Axis("distance from the prediction (tokens)", log=True, format="tokens"),
        report.Axis("share of one token", log=True, toggle=True, format="percent"),
        series,
        (),
        "Averaged over bins that grow with the distance. A straight line is a power law.",
    )
    return [report.heading("Influence by distance"), chart]


def profile(shares_T: np.ndarray) -> tuple[list[float], list[float | None]]:
    """The mean share of a token at distance 1, 2, 3, 4–5, 6–8 …: bins that grow by a half."""
    recent = shares_T[::-1]
    distances, means = [], []
    start = 0
    while start < len(recent):
        stop = min(len(recent), max(start + 1, math.ceil(start * 1.5)))
        distances.append(math.sqrt((start + 1) * stop))
        means.append(float(recent[start:stop].mean()) or None)
        start = stop
    return distances, means


def layer_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """The receptive field of each layer's output."""
    series = []
    for measurement in measurements:
        colour, marker = colours[id(measurement)]
        for level in (0.5, 0.9, 0.99):
            points = [(number, layer.erf(level)) for number, layer in measurement.layer_fields().items()]
            if points:
                numbers, tokens = zip(*points, strict=True)
                name = f"{measurement.name}, {level:.0%}"
                series.append(report.Series(name, numbers, tokens, colour, marker, dash=level < 0.99, group=name))
    if not series:
        return []
    chart = report.chart(
        "Receptive field of each layer's output",
        report.Axis("layer"),
        report.Axis("tokens", log=True, toggle=True, format="tokens"),
        series,
        (),
        "Gradient of the last position's hidden state along a random direction.",
    )
    return [report.heading("Receptive field by layer"), chart]


def probe_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """How prediction and loss change as the context is cut, compared with the gradient."""
    series = []
    for measurement in measurements:
        if measurement.probe is None:
            continue
        name, (colour, marker) = measurement.name, colours[id(measurement)]
        cuts, divergences, losses = (measurement.probe[key] for key in ("cuts", "divergence", "loss"))
        kept = [1 - value / divergences[0] if divergences[0] > 0 else None for value in divergences]
        series.append(report.Series(f"{name}, by cutting", cuts, kept, colour, marker))
        worst, best = max(losses), min(losses)
        gained = [(worst - value) / (worst - best) if worst > best else None for value in losses]
        series.append(report.Series(f"{name}, by loss", cuts, gained, colour, dash=True))
        recent = _rounded(np.cumsum(measurement.field.shares()[::-1]))
        series.append(report.Series(f"{name}, by gradient", range(1, len(recent) + 1), recent, colour, dash=True))
    if not series:
        return []
    chart = report.chart(
        "Effect of the most recent tokens, with and without gradients",
        report.Axis("most recent tokens kept", log=True, toggle=True, format="tokens"),
        report.Axis("relative to the full context", format="percent"),
        series,
        (),
        "By cutting: 1 - KL(full context ‖ last tokens) / KL(full context ‖ last token). "
        "By loss: share of the largest reduction in loss.",
    )
    return [report.heading("Effect of cutting the context"), chart]


def check_blocks(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """Perplexity by context length and by sliding window, and what coverage predicted."""
    checks = [(measurement, measurement.check) for measurement in measurements if measurement.check is not None]
    if not checks:
        return []
    series, rows = [], []
    for measurement, check in checks:
        name, (colour, marker) = measurement.name, colours[id(measurement)]
        points = check.contexts.rows()
        lengths, middle, low, high = ([row[key] for row in points] for key in ("length", "perplexity", "low", "high"))
        series.append(report.Series(f"{name}, context", lengths, middle, colour, marker, low, high))
        if check.windows:
            perplexities = [evaluation.table[check.longest] for evaluation in check.windows.values()]
            widths = list(check.windows)
            series.append(report.Series(f"{name}, window", widths, perplexities, colour, marker, dash=True))
        predicted = coverage(measurement.field)["predicts"] or "unknown"
        rows.append([name, predicted, check.contexts.verdict["verdict"] or "unknown"])
    trained = {measurement.field.train_length for measurement, _ in checks}
    chart = report.chart(
        "Perplexity by context length, and by sliding window at the full context",
        report.Axis("tokens", log=True, format="tokens"),
        report.Axis("perplexity", toggle=True),
        series,
        [report.Mark(length, f"trained at {length:,}") for length in sorted(filter(None, trained))],
        f"All points use the same targets. Band: 95% interval over {checks[0][1].contexts.units()[1]}.",
    )
    table = report.table(["model", "coverage predicts", "perplexity"], rows, "Prediction and measurement")
    return [report.heading("Check against perplexity"), chart, table]


def heat_maps(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """The share of each token, shown in the text."""
    any_heats = any(measurement.heats for measurement in measurements)
    blocks: list[report.Block] = [report.heading("Heat maps")] if any_heats else []
    for measurement in measurements:
        panes = {}
        for number, heat in enumerate(measurement.heats, 1):
            caption = f"Earlier tokens hold {heat.earlier:.0%} of the gradient." if heat.earlier > 0.005 else ""
            title = f"Share of each token in the prediction of the outlined token, {measurement.name}"
            colour, _ = colours[id(measurement)]
            panes[str(number)] = [report.heat(title, heat.tokens, heat.shares, heat.target, colour, caption)]
        if panes:
            blocks.append(report.tabs(f"{measurement.name}: targets", panes))
    return blocks


def _rounded(line: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") for value in line]
