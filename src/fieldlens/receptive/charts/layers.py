"""Chart of the report: the receptive field of each layer's output."""

from collections.abc import Sequence
from typing import Literal

from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report

PATTERNS: dict[float, bool | Literal["dots"]] = {0.5: "dots", 0.9: True, 0.99: False}
"""Levels, and whether their lines are dashed or dotted: they can be told apart without colour."""


def layer_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """The receptive field of each layer's output."""
    series = []
    for measurement in measurements:
        colour, marker = colours[id(measurement)]
        for level, pattern in PATTERNS.items():
            points = [(number, layer.erf(level)) for number, layer in measurement.layer_fields().items()]
            if points:
                numbers, tokens = zip(*points, strict=True)
                name = f"{measurement.name}, {level:.0%}"
                series.append(report.Series(name, numbers, tokens, colour, marker, dash=pattern, group=name))
    if not series:
        return []
    chart = report.Chart(
        "Receptive field of each layer's output",
        report.Axis("layer"),
        report.Axis("tokens", log=True, toggle=True, format="tokens"),
        series,
        (),
        "Gradient of the last position's hidden state along a random direction.",
    )
    return [report.Heading("Receptive field by layer"), chart]
