"""Smoothed Sandwich: a logarithmic curve fitted to Sandwich."""

from typing import Literal

import torch
from torch import Tensor

from fieldlens.schemes.base import BiasForm, Scheme, widest_float
from fieldlens.schemes.sandwich import ratios, wave

PRINTED = (-0.825, -0.8)
RECENT_POINTS = 50


def log_fit(distances_N: Tensor, values_N: Tensor) -> tuple[float, float]:
    """Least-squares fit of values on [log(1 + Δ), 1]: (slope, constant)."""
    x_N, y_N = torch.log1p(distances_N.double()), values_N.double()
    centred_N = x_N - x_N.mean()
    slope = (centred_N * y_N).sum() / (centred_N**2).sum()
    return float(slope), float(y_N.mean() - slope * x_N.mean())


def logarithm(distance: Tensor, slope: Tensor, constant: Tensor) -> Tensor:
    return slope * torch.log1p(distance) + constant


class Smoothed(Scheme):
    """bias_h(Δ) = (a·log(1 + Δ) + b)·8/h,  h = 8n/H for head n.

    `fit=printed`: a = -0.825, b = -0.8, as printed in the paper, a fit over thousands of points.
    `fit=recent`: our least-squares fit to Sandwich at the 50 smallest distances, as the paper's footnote describes.
    """

    name = "smoothed"
    label = "Smoothed Sandwich"
    source = "Chi et al. 2023, arXiv:2212.10356"
    colour = "#E69F00"
    marker = "s"

    def __init__(self, heads: int, head_width: int, *, fit: Literal["printed", "recent"] = "printed") -> None:
        super().__init__(heads, head_width)
        if fit == "printed":
            self.slope, self.constant = PRINTED
        else:
            near_N = torch.arange(RECENT_POINTS, device="cpu")
            self.slope, self.constant = log_fit(near_N, wave(near_N, dims=128, first=0) / 8)

    def bias(self, distances_N: Tensor) -> Tensor:
        curve_N = self.slope * torch.log1p(widest_float(distances_N)) + self.constant
        return curve_N * 8 / ratios(self.heads).to(curve_N)[:, None]

    def bias_form(self) -> BiasForm:
        factors_H = 8 / ratios(self.heads)
        return BiasForm(logarithm, (self.slope * factors_H, self.constant * factors_H))
