"""Chart of the report: the share of a single token by its distance."""

import math
from collections.abc import Sequence

import numpy as np

from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report


def profile_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """Share of a single token against its distance."""
    series = []
    for measurement in measurements:
        distances, means = profile(measurement.field.shares())
        colour, marker = colours[id(measurement)]
        series.append(report.Series(measurement.name, distances, means, colour, marker=marker))
    chart = report.Chart(
        "Share of a single token by its distance",
        report.Axis("distance from the prediction (tokens)", log=True, format="tokens"),
        report.Axis("share of one token", log=True, toggle=True, format="percent"),
        series,
        (),
        "Averaged over bins that grow with the distance. A straight line is a power law.",
    )
    return [report.Heading("Influence by distance"), chart]


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
