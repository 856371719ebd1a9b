"""Rotary: queries and keys are rotated by angles proportional to their positions."""

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import Scheme, widest_float


class Rotary(Scheme):
    """Rotates dimensions j and j + K/2 of queries and keys by m / base^(2j/K), so scores depend only on distance."""

    name = "rotary"
    label = "Rotary"
    source = "Su et al. 2021, arXiv:2104.09864"
    colour = "#56B4E9"
    marker = "P"

    def __init__(self, heads: int, head_width: int, *, base: float = 10000.0) -> None:
        super().__init__(heads, head_width)
        if head_width % 2:
            raise BadInput(f"rotary: the head width must be even, got {head_width}")
        if base <= 0:
            raise BadInput(f"rotary: base must be greater than 0, got {base:g}")
        self.base = base

    def angles(self, positions: Tensor) -> Tensor:
        exponents_F = widest_float(torch.arange(0, self.head_width, 2, device=positions.device)) / self.head_width
        return widest_float(positions)[..., None] * self.base**-exponents_F
