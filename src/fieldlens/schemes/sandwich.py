"""Sandwich: the inner product of two sinusoidal embeddings, a function of their distance."""

from typing import Literal

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import MAX_SIZE, Scheme, widest_float

CHUNK = 2**14
"""Number of distances computed at once, which bounds memory."""


def ratios(heads: int) -> Tensor:
    """Compression ratios h = 8n/H for n = 1..H, float64."""
    return 8 * torch.arange(1, heads + 1, dtype=torch.float64) / heads


def wave(distances_N: Tensor, dims: int, first: int) -> Tensor:
    """Σ_i cos(Δ / 10000^(2i/d̄)) - d̄/2 over d̄/2 frequencies, i starting at `first`: (N,) -> (N,)."""
    exponents_F = widest_float(torch.arange(first, first + dims // 2, device=distances_N.device)) * 2 / dims
    frequencies_F = 10000.0**-exponents_F
    chunks = (torch.cos(widest_float(chunk_N)[:, None] * frequencies_F) - 1 for chunk_N in distances_N.split(CHUNK))
    return torch.cat([terms_NF.sum(-1) for terms_NF in chunks])


class Sandwich(Scheme):
    """bias_h(Δ) = (Σ_{i=0}^{d̄/2-1} cos(Δ / 10000^(2i/d̄)) - d̄/2) / h,  h = 8n/H for head n.

    `dims` is d̄. `first=1` starts the sum at i = 1, as in the paper's printed equation.
    # paper: the equation sums i = 1..d̄/2; here: i = 0.. as in its code listing, the only one that matches its figure.
    `ratios=learned` learns log h per head, initialised to the fixed values (the paper's future work).
    """

    name = "sandwich"
    label = "Sandwich"
    source = "Chi et al. 2023, arXiv:2212.10356"
    colour = "#D55E00"
    marker = "o"

    def __init__(
        self,
        heads: int,
        head_width: int,
        *,
        dims: int = 128,
        first: Literal[0, 1] = 0,
        ratios: Literal["fixed", "learned"] = "fixed",
    ) -> None:
        super().__init__(heads, head_width)
        if not 2 <= dims <= MAX_SIZE or dims % 2:
            raise BadInput(f"sandwich: dims must be an even number between 2 and {MAX_SIZE}, got {dims}")
        self.dims, self.first = dims, first
        self.log_ratios_H: nn.Parameter | None = None
        if ratios == "learned":
            self.log_ratios_H = nn.Parameter(_log_ratios(heads))

    def bias(self, distances_N: Tensor) -> Tensor:
        wave_N = wave(distances_N, self.dims, self.first)
        if self.log_ratios_H is None:
            return wave_N / ratios(self.heads).to(wave_N)[:, None]
        return wave_N * torch.exp(-widest_float(self.log_ratios_H))[:, None]


def _log_ratios(heads: int) -> Tensor:
    return ratios(heads).log().to(torch.get_default_dtype())
