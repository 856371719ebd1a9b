"""Sinusoidal: sines and cosines of the absolute position, added to the token embeddings."""

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import Scheme, widest_float


class Sinusoidal(Scheme):
    """p_m = scale·[sin(m / base^(2i/D)), cos(m / base^(2i/D))], i = 0..D/2-1: all sines, then all cosines."""

    name = "sinusoidal"
    label = "Sinusoidal"
    source = "Vaswani et al. 2017, arXiv:1706.03762"
    relative = False
    colour = "#7A4F9A"
    marker = "X"

    def __init__(self, heads: int, head_width: int, *, base: float = 10000.0, scale: float = 1.0) -> None:
        super().__init__(heads, head_width)
        self.width = heads * head_width
        if self.width % 2:
            raise BadInput(f"sinusoidal: the width must be even, got {self.width}")
        if base <= 0:
            raise BadInput(f"sinusoidal: base must be greater than 0, got {base:g}")
        self.base, self.scale = base, scale

    def embedding(self, positions: Tensor) -> Tensor:
        exponents_F = widest_float(torch.arange(0, self.width, 2, device=positions.device)) / self.width
        angles = widest_float(positions)[..., None] * self.base**-exponents_F
        return self.scale * torch.cat([angles.sin(), angles.cos()], -1)
