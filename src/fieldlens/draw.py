"""The house style: one colour and marker per scheme, everywhere."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from matplotlib import colors
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from fieldlens.attend import bias_table
from fieldlens.errors import BadInput
from fieldlens.layout import visible
from fieldlens.schemes import Scheme

PANEL = (3.4, 2.5)
"""Inches of one panel: the column of a two-column page."""

FORMATS = ("png", "svg", "pdf")


class Fit(NamedTuple):
    """A log curve drawn over a bias: slope·log(1 + Δ) + constant."""

    slope: float
    constant: float
    label: str


def shades(colour: str, count: int) -> list[tuple[float, float, float]]:
    """So many tints of a colour, from light to full."""
    full = colors.to_rgb(colour)
    depths = [1.0] if count == 1 else [0.35 + 0.65 * n / (count - 1) for n in range(count)]
    return [tuple(1 - depth * (1 - channel) for channel in full) for depth in depths]  # type: ignore[misc]


def new_figure(panels: int, title: str = "") -> tuple[Figure, list[Axes]]:
    """A figure of some panels, at most three in a row."""
    columns = min(3, panels)
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
    """Refuse a name whose ending is no picture's."""
    if path.suffix[1:].lower() not in FORMATS:
        raise BadInput(f"cannot draw to {path}: the name must end in .{', .'.join(FORMATS)}")


def save(figure: Figure, path: Path) -> None:
    """Write a picture in the format of its ending."""
    check_format(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)


def bias_by_distance(scheme: Scheme, length: int, like: Tensor) -> Tensor:
    """What attention adds to scores in computations like this tensor's, nan where nothing is seen: (H, N)."""
    bias_HN = bias_table(scheme, length, like)
    if bias_HN is None:
        bias_HN = torch.zeros(scheme.heads, length, device=like.device)
    seen_N = visible(torch.arange(length, device=like.device), scheme.window)
    return torch.where(seen_N, bias_HN.detach(), torch.nan).cpu()


Biases = Sequence[tuple[Scheme, Tensor]]
"""Schemes, each with its bias by distance, (H, N)."""


def panels_of_heads(biases: Biases, log: bool) -> Figure:
    """One panel per scheme, one line per head: head 1 lightest."""
    figure, axes = new_figure(len(biases), "Bias added to the score of a key, by its distance; one line per head")
    for panel, (scheme, bias_HN) in zip(axes, biases, strict=True):
        for tint, line_N in zip(shades(scheme.colour, scheme.heads), bias_HN, strict=True):
            panel.plot(line_N.numpy(), color=tint, linewidth=0.8)
        start = ", before training" if any(True for _ in scheme.parameters()) else ""
        panel.set_title(scheme.spec + start, fontsize=8)
        _label_distance(panel, log)
    return figure


def one_head(biases: Biases, head: int, log: bool, fits: Sequence[Fit] = ()) -> Figure:
    """One panel, one line per scheme, for one head; log curves on top."""
    figure, (panel,) = new_figure(1)
    for index, (scheme, bias_HN) in enumerate(biases):
        alike = [other for other, (its, _) in enumerate(biases) if its.name == scheme.name]
        tint = shades(scheme.colour, len(alike))[alike.index(index)]
        panel.plot(bias_HN[head - 1].numpy(), color=tint, linewidth=1, label=scheme.spec)
    logs_N = torch.log1p(torch.arange(biases[0][1].shape[1], dtype=torch.float64))
    for fit, (colour, style) in zip(fits, (("#000000", "-"), ("#009E73", "--")), strict=False):
        panel.plot((fit.slope * logs_N + fit.constant).numpy(), color=colour, linestyle=style, lw=1, label=fit.label)
    _label_distance(panel, log)
    figure.legend(*panel.get_legend_handles_labels(), fontsize=6, frameon=False, loc="outside upper center", ncols=2)
    return figure


def matrices(biases: Biases, head: int) -> Figure:
    """One heat map per scheme: queries down, keys across, nothing above the diagonal."""
    figure, axes = new_figure(len(biases))
    length = biases[0][1].shape[1]
    positions_T = torch.linspace(0, length - 1, min(length, 512)).round().long()
    distances_TS = positions_T[:, None] - positions_T[None, :]
    for panel, (scheme, bias_HN) in zip(axes, biases, strict=True):
        line_N = _blurred(bias_HN[head - 1], length // len(positions_T))
        matrix_TS = line_N[distances_TS.clamp(min=0)].masked_fill(distances_TS < 0, torch.nan)
        image = panel.imshow(matrix_TS.numpy(), extent=(0, length, length, 0), cmap="viridis", interpolation="nearest")
        figure.colorbar(image, ax=panel, shrink=0.8).ax.tick_params(labelsize=6)
        panel.set_title(f"{scheme.spec}, head {head} of {scheme.heads}", fontsize=8)
        panel.set_xlabel("key position", fontsize=7)
        panel.set_ylabel("query position", fontsize=7)
    return figure


def _blurred(line_N: Tensor, pixel: int) -> Tensor:
    """The mean over the distances that fall into one pixel, or waves shorter than that would draw false stripes."""
    known = ~line_N.isnan()
    kernel = torch.ones(1, 1, 2 * (pixel // 2) + 1, dtype=line_N.dtype)
    sums, counts = (
        F.conv1d(values.to(line_N.dtype)[None, None], kernel, padding=pixel // 2)[0, 0]
        for values in (line_N.nan_to_num(), known)
    )
    return torch.where(known, sums / counts, torch.nan)


def _label_distance(panel: Axes, log: bool) -> None:
    if log:
        panel.set_xscale("symlog", linthresh=1)
    panel.set_xlabel("distance Δ (tokens)", fontsize=7)
    panel.set_ylabel("bias", fontsize=7)
