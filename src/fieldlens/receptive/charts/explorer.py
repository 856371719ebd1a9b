"""Section of the report: single targets, their text shaded by share, and their cumulative curves."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fieldlens.receptive.charts.base import Colours, rounded
from fieldlens.receptive.explorer.block import Explorer
from fieldlens.receptive.explorer.data import embed
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report

CURVE_POINTS = 96
"""Number of points of the mean curve of a model."""


def explorer(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """Single targets of every model: what it looked at."""
    models = [(_about(measurement, colours[id(measurement)][0]), measurement.targets) for measurement in measurements]
    data = embed([model for model in models if model[1]], measurements[0].about["asked"]["target"])
    return [report.Heading("What it looked at"), Explorer(data)] if data else []


def _about(measurement: Measurement, colour: str) -> dict[str, Any]:
    """Name and colour of a model, its mean curve, and the losses that were measured."""
    recent = np.cumsum(measurement.field.shares()[::-1])[: measurement.field.length]
    sizes = np.unique(np.geomspace(1, len(recent), CURVE_POINTS).round().astype(int))
    return {
        "name": measurement.name,
        "colour": colour,
        "train_length": measurement.field.train_length,
        "curve": {"tokens": sizes.tolist(), "share": rounded(recent[sizes - 1])},
        "losses": _losses(measurement),
    }


def _losses(measurement: Measurement) -> dict[str, Any] | None:
    """Mean losses in nats with the context cut to a number of tokens, and with a sliding window; None if unknown."""
    check, probe = measurement.check, measurement.probe
    if check is not None:
        contexts = {tokens: float(losses_N.double().mean()) for tokens, losses_N in check.contexts.losses.items()}
        windows = {w: float(e.losses[check.longest].double().mean()) for w, e in check.windows.items()}
        return {"contexts": _points(contexts), "windows": _points(windows), "targets": len(check.contexts.targets)}
    if probe is not None:
        contexts = dict(zip(probe["cuts"], probe["loss"], strict=True))
        return {"contexts": _points(contexts), "windows": [], "targets": len(measurement.field.norms_NT)}
    return None


def _points(losses: dict[int, float]) -> list[tuple[int, float]]:
    """Finite losses by number of tokens, ascending."""
    return [(tokens, float(f"{loss:.5g}")) for tokens, loss in sorted(losses.items()) if np.isfinite(loss)]
