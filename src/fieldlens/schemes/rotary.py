"""Rotary: queries and keys are turned by angles that grow with their positions."""

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import Scheme, widest_float


class Rotary(Scheme):
    """Dimensions j and j + K/2 of every query and key turn by m / base^(2j/K), so scores depend on distance only."""

    name = "rotary"
    label = "Rotary"
    source = "Su et al. 2021, arXiv:2104.09864"
    colour = "#56B4E9"
    marker = "P"

    def __init__(self, heads: int, head_width: int, *, base: float = 10000.0) -> None:
        super().__init__(heads, head_width)
        if head_width % 2:
            raise BadInput(f"rotary: the head width is {head_width}, but it turns pairs of dimensions: even is needed")
        if base <= 0:
            raise BadInput(f"rotary: base is {base:g}, but must exceed 0")
        self.base = base

    def angles(self, positions: Tensor) -> Tensor:
        exponents_F = widest_float(torch.arange(0, self.head_width, 2, device=positions.device)) / self.head_width
        return widest_float(positions)[..., None] * self.base**-exponents_F
