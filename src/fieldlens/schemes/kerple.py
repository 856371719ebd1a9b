"""KERPLE: learned logarithmic or power kernels of the distance."""

from typing import Literal

import torch
from torch import Tensor, nn

from fieldlens.schemes.base import BiasForm, Scheme, widest_float

MINIMUM = 0.01
"""Lower bound of both parameters, as in the authors' code."""


def logarithm(distance: Tensor, p: Tensor, a: Tensor) -> Tensor:
    return -p * torch.log1p(a * distance)


class Kerple(Scheme):
    """kind=log: bias_h(Δ) = -p_h·log(1 + a_h·Δ);  kind=power: bias_h(Δ) = -a_h·Δ^p_h with p_h ≤ 2.

    Initialised with p ~ U(0, 2) and a ~ U(0, 1). Both are kept ≥ 0.01 by projection: a clamp in the graph would zero
    the gradient of a parameter at its bound.
    """

    name = "kerple"
    label = "KERPLE"
    source = "Chi et al. 2022, arXiv:2205.09921"
    colour = "#009E73"
    marker = "D"

    def __init__(self, heads: int, head_width: int, *, kind: Literal["log", "power"] = "log") -> None:
        super().__init__(heads, head_width)
        self.kind = kind
        self.p_H = nn.Parameter((2 * torch.rand(heads)).clamp(MINIMUM))
        self.a_H = nn.Parameter(torch.rand(heads).clamp(MINIMUM))

    @torch.no_grad()
    def project(self) -> None:
        for parameter_H, maximum in ((self.p_H, 2 if self.kind == "power" else None), (self.a_H, None)):
            clamped_H = parameter_H.clamp(MINIMUM, maximum)
            if not torch.equal(clamped_H, parameter_H):  # an in-place write would break a pending backward
                parameter_H.copy_(clamped_H)

    def bias(self, distances_N: Tensor) -> Tensor:
        p_H1, a_H1, distances_N = (
            widest_float(self.p_H)[:, None],
            widest_float(self.a_H)[:, None],
            widest_float(distances_N),
        )
        if self.kind == "log":
            return -p_H1 * torch.log1p(a_H1 * distances_N)
        return -a_H1 * distances_N**p_H1

    def bias_form(self) -> BiasForm | None:
        return BiasForm(logarithm, (self.p_H, self.a_H)) if self.kind == "log" else None
