"""xPos: rotary whose queries and keys are also stretched, so that scores decay with distance."""

import math

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import Scheme, widest_float

LARGEST_EXPONENT = 80.0
"""exp(±80) and its products with weights are finite in float32."""


class XPos(Scheme):
    """Rotary, with pair j of a query at position n multiplied by ζ_j^(n/scale_base) and that of a key divided by it.

    Scores of pair j decay as ζ_j^(Δ/scale_base), ζ_j = (2j/K + 0.4) / 1.4. Positions up to
    63·scale_base are allowed: beyond, the factors overflow float32.
    """

    name = "xpos"
    label = "xPos"
    source = "Sun et al. 2023, arXiv:2212.10554"
    colour = "#1F5FA8"
    marker = "p"

    def __init__(self, heads: int, head_width: int, *, base: float = 10000.0, scale_base: float = 512.0) -> None:
        super().__init__(heads, head_width)
        if head_width % 2:
            raise BadInput(f"xpos: the head width must be even, got {head_width}")
        for name, value in (("base", base), ("scale_base", scale_base)):
            if value <= 0:
                raise BadInput(f"xpos: {name} must be greater than 0, got {value:g}")
        self.base, self.scale_base = base, scale_base

    def angles(self, positions: Tensor) -> Tensor:
        return widest_float(positions)[..., None] * self.base ** -self._exponents(positions)

    def magnitudes(self, positions: Tensor) -> Tensor:
        limit = int(LARGEST_EXPONENT * self.scale_base / math.log(1.4 / 0.4))
        if int(positions.max()) > limit:
            raise BadInput(f"xpos: position {int(positions.max())} is beyond {limit}: increase scale_base")
        logarithms_F = ((self._exponents(positions) + 0.4) / 1.4).log()
        return (widest_float(positions)[..., None] / self.scale_base * logarithms_F).exp()

    def _exponents(self, positions: Tensor) -> Tensor:
        return widest_float(torch.arange(0, self.head_width, 2, device=positions.device)) / self.head_width
