"""Figures: drawn on a new figure, or on the Axes of the caller."""

import numpy as np
import pytest
from matplotlib.figure import Figure

from fieldlens.reporting.plots import Curve, Line, field_curves, figure_of, perplexity_lines, tints

LINE = Line("a", "alibi", [64, 128], [9.0, 10.0], [8.0, 9.0], [10.0, 11.0], 64)
CURVE = Curve("a", "alibi", np.linspace(0.1, 1, 16), np.linspace(0, 1, 16), np.linspace(0.2, 1, 16), 8)


@pytest.mark.parametrize(("draw", "rows"), [(perplexity_lines, [LINE]), (field_curves, [CURVE])])
def test_plots_draw_on_the_given_axes(draw, rows) -> None:  # type: ignore[no-untyped-def]
    figure = Figure()
    left, right = figure.subplots(1, 2)
    assert draw(rows, ax=right) is right
    assert right.get_legend() is not None
    assert not left.lines
    assert not figure.legends
    assert figure_of(right) is figure


def test_plots_create_a_figure_by_default() -> None:
    ax = perplexity_lines([LINE], "bits per byte")
    assert ax.get_ylabel() == "bits per byte"
    assert figure_of(ax).axes == [ax]
    assert len(figure_of(ax).legends) == 1


def test_many_models_can_be_told_apart() -> None:
    pairs = tints([None] * 25)
    assert len(set(pairs)) == 25
