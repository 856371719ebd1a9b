"""The last row of Sandwich's heat map, with log curves fitted to it."""

import torch

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.artifacts.heatmap_8 import HEADS, LENGTH, biases
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.plots import Fit, one_head
from fieldlens.reporting.table import Table
from fieldlens.schemes.sandwich import wave
from fieldlens.schemes.smoothed import PRINTED, RECENT_POINTS, log_fit


def fits() -> dict[int, tuple[float, float]]:
    """Least-squares fit of the row on [log(1 + Δ), 1], by the number of nearest points fitted."""
    by_points = {}
    for points in (LENGTH, RECENT_POINTS):
        distances_N = torch.arange(points)
        by_points[points] = log_fit(distances_N, wave(distances_N, dims=128, first=0) / 8)
    return by_points


class Diagonal(Artifact):
    name, kind, stand_ins = "diagonal_8", "figure", False
    title = "The last row of Sandwich at compression ratio 8, and log curves through it"

    def draw(self, results: PaperResults) -> Drawn:
        ours, rows = fits(), [["as printed", f"{PRINTED[0]:.4f}", f"{PRINTED[1]:.4f}"]]
        rows += [[f"nearest {points:,} points", f"{a:.4f}", f"{b:.4f}"] for points, (a, b) in ours.items()]
        curves = [Fit(*PRINTED, "paper: -0.825·log(1 + Δ) - 0.8")]
        a, b = ours[RECENT_POINTS]
        curves.append(Fit(a, b, f"nearest 50: {a:.3f}·log(1 + Δ) {'+' if b > 0 else '-'} {abs(b):.3f}"))
        figure = one_head(biases("sandwich"), HEADS, False, curves)
        records = [dict(zip(("fit", "slope", "constant"), row, strict=True)) for row in rows]
        return Drawn([Table(["log curve", "slope", "constant"], rows, "two fits")], {"": figure}, records)
