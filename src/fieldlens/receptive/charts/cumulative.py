"""Chart of the report: the cumulative share of the gradient by the number of most recent tokens."""

from collections.abc import Sequence

import numpy as np

from fieldlens.receptive.charts.base import Colours, rounded
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report


def cumulative_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """Cumulative share of the gradient against the number of most recent tokens."""
    series, trained = [], {}
    for measurement in measurements:
        name, field, (colour, _) = measurement.name, measurement.field, colours[id(measurement)]
        curve = field.curve(measurement.spec)
        recent = list(range(1, len(curve.middle) + 1))
        middle, low, high = (rounded(line) for line in (curve.middle, curve.low, curve.high))
        series.append(report.Series(name, recent, middle, colour, low=low, high=high))
        if field.has_sink and field.stands_alone:
            rest = rounded(np.cumsum(field.shares(without_first=True)[::-1]))
            label = f"{name}, without the first token"
            series.append(report.Series(label, recent[: len(rest)], rest, colour, dash=True))
        if field.train_length and field.train_length <= field.length:
            trained[field.train_length] = report.Mark(field.train_length, f"trained at {field.train_length:,}")
    marks = [*trained.values(), report.Mark(0.99, "99%", "y")]
    chart = report.Chart(
        "Share of the gradient held by the most recent tokens",
        report.Axis("most recent tokens", log=True, toggle=True, format="tokens"),
        report.Axis("share of the gradient", format="percent", low=0, high=1),
        series,
        marks,
        "Line: mean over segments. Band: quartiles over segments.",
    )
    return [report.Heading("How far back it looks"), chart]
