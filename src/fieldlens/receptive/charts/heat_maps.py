"""Heat maps of the report: the share of each token, shown in the text."""

from collections.abc import Sequence

from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report


def heat_maps(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """The share of each token, shown in the text."""
    any_heats = any(measurement.heats for measurement in measurements)
    blocks: list[report.Block] = [report.Heading("Heat maps")] if any_heats else []
    for measurement in measurements:
        panes = {}
        for number, heat in enumerate(measurement.heats, 1):
            caption = f"Earlier tokens hold {heat.earlier:.0%} of the gradient." if heat.earlier > 0.005 else ""
            title = f"Share of each token in the prediction of the outlined token, {measurement.name}"
            colour, _ = colours[id(measurement)]
            panes[str(number)] = [report.Heat(title, heat.tokens, heat.shares, heat.target, colour, caption)]
        if panes:
            blocks.append(report.Tabs(f"{measurement.name}: targets", panes))
    return blocks
