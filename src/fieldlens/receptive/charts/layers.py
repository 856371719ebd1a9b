"""Chart of the report: the receptive field of each layer's output."""

from collections.abc import Sequence

from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report


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
    chart = report.Chart(
        "Receptive field of each layer's output",
        report.Axis("layer"),
        report.Axis("tokens", log=True, toggle=True, format="tokens"),
        series,
        (),
        "Gradient of the last position's hidden state along a random direction.",
    )
    return [report.Heading("Receptive field by layer"), chart]
