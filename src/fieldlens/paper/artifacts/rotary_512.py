"""Cumulative gradient of Rotary, which exceeds the training length."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from fieldlens.paper.artifacts.sec3 import CumulativeGradients
from fieldlens.paper.diagrams import position_curves
from fieldlens.reporting.plots import Curve


class Rotary(CumulativeGradients):
    name, corpus, models = "rotary_512", "arxiv", ("rotary",)
    title = "Cumulative gradient of Rotary on ArXiv"

    def picture(self, curves: Sequence[Curve]) -> Figure:
        return position_curves(curves)
