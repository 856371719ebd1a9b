"""Sandwich as a heat map: the head whose compression ratio is 8."""

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.plots import bias_by_distance, matrices
from fieldlens.schemes.spec import scheme

HEADS, LENGTH = 12, 8192
"""With 12 heads, the last has h = 8."""


def biases(*specs: str) -> list[tuple]:
    """Schemes with their biases by distance."""
    schemes = [scheme(spec, HEADS, 64) for spec in specs]
    return [(instance, bias_by_distance(instance, LENGTH)) for instance in schemes]


class HeatMap(Artifact):
    name, kind, stand_ins = "heatmap_8", "figure", False
    title = "Sandwich at compression ratio 8, d̄ = 128"

    def draw(self, results: PaperResults) -> Drawn:
        figure = matrices(biases("sandwich"), HEADS)
        figure.axes[0].set_title("Sandwich, h = 8, d̄ = 128", fontsize=8)
        return Drawn(figures={"": figure})
