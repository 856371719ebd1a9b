"""Chart of the report: what remains of the prediction as the context is cut (--probe)."""

from collections.abc import Sequence

import numpy as np

from fieldlens.receptive.charts.base import Colours, rounded
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report


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
        recent = rounded(np.cumsum(measurement.field.shares()[::-1]))
        series.append(report.Series(f"{name}, by gradient", range(1, len(recent) + 1), recent, colour, dash="dots"))
    if not series:
        return []
    chart = report.Chart(
        "Effect of the most recent tokens, with and without gradients",
        report.Axis("most recent tokens kept", log=True, toggle=True, format="tokens"),
        report.Axis("relative to the full context", format="percent"),
        series,
        (),
        "By cutting: 1 - KL(full context ‖ last tokens) / KL(full context ‖ last token). "
        "By loss: share of the largest reduction in loss.",
    )
    return [report.Heading("Effect of cutting the context"), chart]
