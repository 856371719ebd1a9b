"""Heat maps of what schemes add to the scores of a text."""

from collections.abc import Sequence

from matplotlib.figure import Figure
from torch import Tensor

from fieldlens.reporting.plots import literal, new_figure

MAX_LABELS = 40
"""Up to this many tokens are written along the axes."""


def score_matrices(panels: Sequence[tuple[str, Tensor]], tokens: Sequence[str]) -> Figure:
    """One panel per title and matrix, (T, T): queries as rows, keys as columns, empty where a key is not seen."""
    figure, axes = new_figure(len(panels), "Added to the score of a key (column) by a query (row) of this text")
    for panel, (title, matrix_TT) in zip(axes, panels, strict=True):
        image = panel.imshow(matrix_TT.numpy(), cmap="viridis", interpolation="nearest", aspect="auto")
        figure.colorbar(image, ax=panel, shrink=0.8).ax.tick_params(labelsize=6)
        panel.set_title(literal(title), fontsize=8)
        if len(tokens) <= MAX_LABELS:
            labels = [literal(token) for token in tokens]
            panel.set_xticks(range(len(tokens)), labels, rotation=90, fontsize=5)
            panel.set_yticks(range(len(tokens)), labels, fontsize=5)
        panel.set_xlabel("key", fontsize=7)
        panel.set_ylabel("query", fontsize=7)
    return figure
