"""Figures used only for the paper: small matrices, evaluation excerpts, cumulative gradient by position."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from torch import Tensor

from fieldlens.evaluation.protocols import Excerpt
from fieldlens.reporting.plots import STYLES, Curve, new_figure, tints

INPUT, TARGET, OUTSIDE = "#56B4E9", "#D55E00", "#EEEEEE"


def on_corpus(figure: Figure, label: str) -> Figure:
    """Add the corpus to the x label, since figures are often shown without a caption."""
    panel = figure.axes[0]
    panel.set_xlabel(f"{panel.get_xlabel()} — {label}", fontsize=7)
    return figure


def small_matrices(panels: Mapping[str, tuple[Tensor, bool]]) -> Figure:
    """Matrices of a few tokens, with queries as rows and keys as columns.

    A panel has a bias by distance, NaN where masked, and whether its cells show scores (q·k) instead of the bias.
    """
    figure, axes = new_figure(len(panels), across=1)
    for panel, (title, (line_N, scores)) in zip(axes, panels.items(), strict=True):
        count = len(line_N)
        minimum = float(np.nanmin(line_N.numpy())) or -1.0
        for query in range(count):
            for key in range(count):
                value = float(line_N[query - key]) if query >= key else float("nan")
                hidden = np.isnan(value)
                text = "-∞" if hidden else f"q{query + 1}·k{key + 1}" if scores else f"{abs(value):.3g}"
                sign = "-" if not (hidden or scores) and value < 0 else ""
                _cell(panel, key, query, sign + text, None if hidden else 0.3 if scores else 0.75 * value / minimum)
        panel.set_xlim(0, count)
        panel.set_ylim(count, 0)
        panel.set_aspect("equal")
        panel.set_xticks(np.arange(count) + 0.5, [str(n + 1) for n in range(count)])
        panel.set_yticks(np.arange(count) + 0.5, [str(n + 1) for n in range(count)])
        panel.set_xlabel("key n", fontsize=7)
        panel.set_ylabel("query m", fontsize=7)
        panel.set_title(title, fontsize=8)
    return figure


def _cell(panel: Axes, key: int, query: int, text: str, depth: float | None) -> None:
    """Draw a square, darker for a larger depth, grey without one."""
    colour = OUTSIDE if depth is None else (1 - 0.66 * depth, 1 - 0.3 * depth, 1 - 0.09 * depth)
    panel.add_patch(Rectangle((key, query), 1, 1, facecolor=colour, edgecolor="white", linewidth=1))
    ink = "#777777" if depth is None else "black"
    panel.text(key + 0.5, query + 0.5, text, fontsize=6, ha="center", va="center", color=ink)


def excerpt_rows(panels: Mapping[str, Sequence[Excerpt]]) -> Figure:
    """One panel per length, one row per target: its input tokens and the target."""
    figure, axes = new_figure(len(panels), across=1)
    width = max(excerpt.stop for excerpts in panels.values() for excerpt in excerpts) + 1
    for panel, (title, excerpts) in zip(axes, panels.items(), strict=True):
        first = min(excerpt.targets()[0].offset for excerpt in excerpts)
        for row, excerpt in enumerate(excerpts):
            targets = {target.offset for target in excerpt.targets()}
            for token in range(width):
                inside = excerpt.start <= token < excerpt.stop
                colour = TARGET if token in targets else INPUT if inside else OUTSIDE
                panel.add_patch(Rectangle((token, row), 1, 0.8, facecolor=colour, edgecolor="white", linewidth=0.8))
                if token in targets:
                    panel.text(token + 0.5, row + 0.4, str(token - first + 1), fontsize=7, ha="center", va="center")
        panel.set_xlim(0, width)
        panel.set_ylim(len(excerpts), -0.2)
        panel.set_xticks(np.arange(0, width, 2) + 0.5, [str(n + 1) for n in range(0, width, 2)])
        panel.set_yticks([])
        panel.spines["left"].set_visible(False)
        panel.set_xlabel("token of the document", fontsize=7)
        panel.set_title(title, fontsize=8)
    handles = [Rectangle((0, 0), 1, 1, facecolor=colour) for colour in (INPUT, TARGET)]
    figure.legend(handles, ["input", "target"], fontsize=7, frameon=False, loc="outside lower center", ncols=2)
    return figure


def position_curves(curves: Sequence[Curve]) -> Figure:
    """Cumulative gradient share of the tokens from each position on, with marks at L_tr and L - L_tr.

    L_tr is the last position of the training sequences; the most recent L_tr tokens begin at L - L_tr.
    """
    figure, (panel,) = new_figure(1)
    length = max(len(curve.middle) for curve in curves)
    for number, ((tint, _), curve) in enumerate(zip(tints([curve.spec for curve in curves]), curves, strict=True)):
        positions = np.arange(1, len(curve.middle) + 1)
        panel.plot(
            positions,
            curve.middle[::-1],
            color=tint,
            linewidth=1.2,
            linestyle=STYLES[number % len(STYLES)],
            label=curve.label,
        )
        panel.fill_between(positions, curve.low[::-1], curve.high[::-1], color=tint, alpha=0.15, linewidth=0)
    for trained in sorted({curve.train_length for curve in curves if curve.train_length}):
        for position, text in ((trained, f"L_tr = {trained}"), (length - trained, f"last {trained}")):
            panel.axvline(position, color="#777777", linewidth=0.8, linestyle=":")
            panel.annotate(
                text,
                (position, 1.0),
                xycoords=("data", "axes fraction"),
                fontsize=6,
                color="#555555",
                ha="center",
                va="bottom",
            )
    panel.yaxis.set_major_formatter(ticker.PercentFormatter(1))
    panel.set_ylim(0, 1.02)
    panel.set_xlim(1, length)
    panel.set_xlabel("position of the token, oldest first", fontsize=7)
    panel.set_ylabel("share of this and later tokens", fontsize=7)
    figure.legend(*panel.get_legend_handles_labels(), fontsize=6.5, frameon=False, loc="outside lower center", ncols=2)
    return figure
