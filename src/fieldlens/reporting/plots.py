"""Matplotlib figures (PNG, SVG, PDF) with one colour and marker per scheme; the HTML report has its own charts."""

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colors, ticker
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.kernels.attention import bias_table
from fieldlens.kernels.layout import visible
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.discovery import registry
from fieldlens.schemes.spec import family

PANEL = (3.4, 2.5)
"""Width and height of one panel in inches: one column of a two-column page."""

FORMATS = ("png", "svg", "pdf")

STYLES = ("-", "--", "-.", ":")
FOREIGN = (
    ("#8C564B", "h"), ("#17BECF", "p"), ("#9A8700", "d"), ("#4B4B8F", "<"), ("#C44E52", ">"),
    ("#2E8B57", "s"), ("#B8478F", "^"), ("#6E6E6E", "D"), ("#D97706", "v"), ("#3F8FD0", "o"),
)  # fmt: skip
"""Colours and markers of models without a registered scheme."""


class Fit(NamedTuple):
    """A log curve fitted to a bias: slope·log(1 + Δ) + constant."""

    slope: float
    constant: float
    label: str


def shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """`count` tints of a colour, from light to full."""
    full = colors.to_rgb(colour)
    depths = [1.0] if count == 1 else [0.35 + 0.65 * n / (count - 1) for n in range(count)]
    return [tuple(1 - depth * (1 - channel) for channel in full) for depth in depths]  # type: ignore[misc]


def _darker(colour: str, count: int) -> list[tuple[float, float, float]]:
    """`count` shades of a colour, each darker than the previous one."""
    full = colors.to_rgb(colour)
    depths = [1 - 0.6 * (n + 1) / count for n in range(count)]
    return [tuple(depth * channel for channel in full) for depth in depths]  # type: ignore[misc]


def new_figure(panels: int, title: str = "", across: int = 3) -> tuple[Figure, list[Axes]]:
    """Create a figure with the given number of panels, at most `across` per row."""
    columns = min(across, panels)
    rows = -(-panels // columns)
    figure = Figure(figsize=(columns * PANEL[0], rows * PANEL[1] + 0.3), layout="constrained", dpi=160)
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for spare in axes[panels:]:
        spare.remove()
    for panel in axes[:panels]:
        panel.tick_params(labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
    if title:
        figure.suptitle(title, fontsize=9)
    return figure, axes[:panels]


def check_format(path: Path) -> None:
    """Raise BadInput if the file name has no supported image format."""
    if path.suffix[1:].lower() not in FORMATS:
        raise BadInput(f"cannot save the figure to {path}: the file name must end in .{', .'.join(FORMATS)}")


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format given by the file name."""
    check_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def figure_of(ax: Axes) -> Figure:
    """The Figure that contains an Axes."""
    return ax.figure.figure


EXACT = torch.empty(0, dtype=torch.float64)


def bias_by_distance(scheme: Scheme, length: int, like: Tensor = EXACT) -> Tensor:
    """The bias that attention adds to scores, with the dtype and device of `like`; NaN where masked: (H, N)."""
    bias_HN = bias_table(scheme, length, like)
    if bias_HN is None:
        bias_HN = torch.zeros(scheme.heads, length, device=like.device)
    visible_N = visible(torch.arange(length, device=like.device), scheme.window)
    return torch.where(visible_N, bias_HN.detach(), torch.nan).cpu()


Biases = Sequence[tuple[Scheme, Tensor]]
"""Pairs of a scheme and its bias by distance, (H, N)."""


def panels_of_heads(biases: Biases, log: bool) -> Figure:
    """One panel per scheme, one line per head; head 1 is the lightest."""
    figure, axes = new_figure(len(biases), "Bias added to the score of a key, by its distance; one line per head")
    for panel, (scheme, bias_HN) in zip(axes, biases, strict=True):
        for tint, line_N in zip(shades(tints([scheme.spec])[0][0], scheme.heads), bias_HN, strict=True):
            panel.plot(line_N.numpy(), color=tint, linewidth=0.8)
        start = ", before training" if any(True for _ in scheme.parameters()) else ""
        panel.set_title(literal(scheme.spec + start), fontsize=8)
        _label_distance(panel, log)
    return figure


def one_head(
    biases: Biases, head: int, log: bool, fits: Sequence[Fit] = (), names: Sequence[str] | None = None
) -> Figure:
    """The bias of one head: one panel, one line per scheme, with fitted log curves."""
    figure, (panel,) = new_figure(1)
    colours = tints([scheme.spec for scheme, _ in biases])
    for index, ((scheme, bias_HN), (tint, _)) in enumerate(zip(biases, colours, strict=True)):
        panel.plot(bias_HN[head - 1].numpy(), color=tint, linewidth=1, label=names[index] if names else scheme.spec)
    logs_N = torch.log1p(torch.arange(biases[0][1].shape[1], dtype=torch.float64))
    for fit, (colour, style) in zip(fits, cycle((("#000000", "-"), ("#009E73", "--"))), strict=False):
        panel.plot((fit.slope * logs_N + fit.constant).numpy(), color=colour, linestyle=style, lw=1, label=fit.label)
    panel.set_title(f"head {head} of {biases[0][0].heads}", fontsize=8)
    _label_distance(panel, log)
    _legend(panel)
    return figure


def matrices(biases: Biases, head: int) -> Figure:
    """One heat map per scheme: queries as rows, keys as columns, empty above the diagonal."""
    figure, axes = new_figure(len(biases))
    length = biases[0][1].shape[1]
    positions_T = torch.linspace(0, length - 1, min(length, 512)).round().long()
    distances_TS = positions_T[:, None] - positions_T[None, :]
    for panel, (scheme, bias_HN) in zip(axes, biases, strict=True):
        line_N = _blurred(bias_HN[head - 1], length // len(positions_T))
        matrix_TS = line_N[distances_TS.clamp(min=0)].masked_fill(distances_TS < 0, torch.nan)
        image = panel.imshow(matrix_TS.numpy(), extent=(0, length, length, 0), cmap="viridis", interpolation="nearest")
        bar = figure.colorbar(image, ax=panel, shrink=0.8)
        bar.set_label("bias", fontsize=7)
        bar.ax.tick_params(labelsize=6)
        panel.set_title(literal(f"{scheme.spec}, head {head} of {scheme.heads}"), fontsize=8)
        panel.set_xlabel("key position", fontsize=7)
        panel.set_ylabel("query position", fontsize=7)
    return figure


def _blurred(line_N: Tensor, pixel: int) -> Tensor:
    """Average over the distances that share a pixel, to avoid aliasing."""
    finite = ~line_N.isnan()
    kernel = torch.ones(1, 1, 2 * (pixel // 2) + 1, dtype=line_N.dtype)
    sums, counts = (
        F.conv1d(values.to(line_N.dtype)[None, None], kernel, padding=pixel // 2)[0, 0]
        for values in (line_N.nan_to_num(), finite)
    )
    return torch.where(finite, sums / counts, torch.nan)


def _label_distance(panel: Axes, log: bool) -> None:
    if log:
        panel.set_xscale("symlog", linthresh=1)
    panel.set_xlabel("distance Δ (tokens)", fontsize=7)
    panel.set_ylabel("bias", fontsize=7)


class Line(NamedTuple):
    """Perplexity of one model by context length, with a confidence band."""

    label: str
    spec: str | None
    lengths: Sequence[int]
    middle: Sequence[float | None]
    low: Sequence[float | None]
    high: Sequence[float | None]
    train_length: int | None


def perplexity_lines(lines: Sequence[Line], quantity: str = "perplexity", ax: Axes | None = None) -> Axes:
    """Plot perplexity, or bits per byte, against context length, one line per model; return the Axes.

    Draws on `ax` if given, else on a new figure. The x axis is logarithmic, and so is the y axis if values differ by
    more than a factor of 4. Training lengths are marked.
    """
    panel = _new_axes() if ax is None else ax
    for (tint, marker), line in zip(tints([line.spec for line in lines]), lines, strict=True):
        middle = [math.nan if value is None else value for value in line.middle]
        panel.plot(line.lengths, middle, color=tint, marker=marker, markersize=3.5, linewidth=1, label=line.label)
        if None not in line.low and None not in line.high:
            panel.fill_between(line.lengths, line.low, line.high, color=tint, alpha=0.1, linewidth=0)  # type: ignore[arg-type]
    _mark_training(panel, [line.train_length for line in lines], max(max(line.lengths) for line in lines))
    panel.set_xscale("log", base=2)
    lengths = sorted({length for line in lines for length in line.lengths})
    panel.set_xticks(lengths, [str(length) for length in lengths])
    panel.minorticks_off()
    values = [value for line in lines for value in line.middle if value is not None] or [1.0]
    if max(values) > 4 * min(values):
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        panel.yaxis.set_minor_formatter(ticker.NullFormatter())
    # The limits follow the lines, not the bands, which are much wider.
    margin = min(1.25, max(1.02, math.sqrt(max(values) / min(values))))
    panel.set_ylim(min(values) / margin, max(values) * margin)
    panel.set_xlabel("context length (tokens)", fontsize=7)
    panel.set_ylabel(quantity, fontsize=7)
    _legend(panel, outside=ax is None)
    return panel


def growth_lines(lines: Sequence[Line]) -> Figure:
    """Plot perplexity relative to each model's own at its training length; values above 1.5 are cut off."""
    relative, maximum = [], 1.5
    for line in lines:
        base = next((v for n, v in zip(line.lengths, line.middle, strict=True) if n == line.train_length), None)
        if base:
            middle = [None if value is None else value / base for value in line.middle]
            relative.append(line._replace(middle=middle, low=[None] * len(middle), high=[None] * len(middle)))
    panel = perplexity_lines(relative or lines, "perplexity over that at L_tr")
    if relative:
        panel.set_yscale("linear")
        values = [value for line in relative for value in line.middle if value is not None and value <= maximum]
        panel.set_ylim(min(values) - 0.03, min(maximum, max(values) + 0.03))
    return figure_of(panel)


class Curve(NamedTuple):
    """Cumulative share of the 1, 2, 3 … most recent tokens, with the quartiles over segments."""

    label: str
    spec: str | None
    middle: np.ndarray
    low: np.ndarray
    high: np.ndarray
    train_length: int | None


def field_curves(curves: Sequence[Curve], ax: Axes | None = None) -> Axes:
    """Plot the cumulative share of the gradient against the number of most recent tokens; return the Axes.

    Draws on `ax` if given, else on a new figure. ERF(99%) and training lengths are marked.
    """
    panel = _new_axes() if ax is None else ax
    level = 0.99
    families = [(curve.spec or "").split(":")[0] for curve in curves]
    colours = tints([curve.spec for curve in curves])
    for number, ((tint, marker), curve) in enumerate(zip(colours, curves, strict=True)):
        recent = np.arange(1, len(curve.middle) + 1)
        # variants of one scheme also differ in line style
        style = STYLES[families[:number].count(families[number]) % len(STYLES)]
        panel.plot(recent, curve.middle, color=tint, linewidth=1, linestyle=style, label=curve.label)
        panel.fill_between(recent, curve.low, curve.high, color=tint, alpha=0.15, linewidth=0)
        reached = int((curve.middle <= level + 1e-9).sum())
        if reached < len(recent):
            panel.plot(recent[reached], curve.middle[reached], marker=marker, color=tint, markersize=4)
    panel.axhline(level, color="#777777", linewidth=0.6, linestyle="--")
    _mark_training(panel, [curve.train_length for curve in curves], max(len(curve.middle) for curve in curves))
    panel.set_xscale("log", base=2)
    panel.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    panel.yaxis.set_major_formatter(ticker.PercentFormatter(1))
    panel.set_ylim(0, 1.02)
    panel.set_xlabel("most recent tokens", fontsize=7)
    panel.set_ylabel("share of the gradient", fontsize=7)
    _legend(panel, outside=ax is None)
    return panel


def _new_axes() -> Axes:
    _, (panel,) = new_figure(1)
    return panel


def _legend(panel: Axes, outside: bool = True) -> None:
    """Add a legend: above the panel of a figure of our own, inside an Axes that belongs to the caller."""
    handles, names = panel.get_legend_handles_labels()
    labels = list(map(literal, names))
    if not outside:
        panel.legend(handles, labels, fontsize=6, frameon=False)
        return
    longest = max((len(label) for label in labels), default=0)
    columns = 3 if longest <= 18 else 2 if longest <= 32 else 1
    figure = figure_of(panel)
    figure.legend(handles, labels, fontsize=6, frameon=False, loc="outside upper center", ncols=columns)


def literal(text: str) -> str:
    """A text that Matplotlib shows as it is: a dollar sign would begin a formula."""
    return text.replace("$", r"\$")


def _mark_training(panel: Axes, lengths: Sequence[int | None], longest: int) -> None:
    """Draw a dotted line at each training length within the axis."""
    for length in sorted({length for length in lengths if length and length <= longest}):
        panel.axvline(length, color="#777777", linewidth=0.8, linestyle=":")
        panel.annotate(
            "trained", (length, 1), xycoords=("data", "axes fraction"), fontsize=6, color="#777777", ha="center"
        )


def tints(specs: Sequence[str | None]) -> list[tuple[str, str]]:
    """A colour and a marker per model: the scheme's own, lighter for variants before it and darker for those after."""
    pairs, foreign = [], 0
    families = [family(spec) if spec else None for spec in specs]
    for index, name in enumerate(families):
        cls = registry().get(name or "")
        if cls is None or not cls.colour:
            cycle, place = divmod(foreign, len(FOREIGN))
            colour, marker = FOREIGN[place][0], FOREIGN[(place + cycle) % len(FOREIGN)][1]  # no pair occurs twice
            foreign += 1
        else:
            variants = [other for other, another in enumerate(families) if another == name]
            base = next((place for place, other in enumerate(variants) if specs[other] == name), len(variants) - 1)
            palette = shades(cls.colour, base + 1) + _darker(cls.colour, len(variants) - base - 1)
            colour, marker = colors.to_hex(palette[variants.index(index)]), cls.marker
        pairs.append((colour, marker))
    return pairs
