"""ALiBi: a bias that decreases linearly with distance, with a different slope per head."""

import math
from typing import Literal

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import BiasForm, Scheme, widest_float

MAX_SHIFT = 100


def geometric(heads: int) -> list[float]:
    """Slopes as in the paper, for any number of heads: 2^(-8n/H) for n = 1..H."""
    return [2.0 ** (-8 * n / heads) for n in range(1, heads + 1)]


def interpolated(heads: int) -> list[float]:
    """Slopes as in the ALiBi code: those for the power of two P ≤ H, then every second one of those for 2P."""
    power = 2 ** int(math.log2(heads))
    return geometric(power) + geometric(2 * power)[::2][: heads - power]


def line(distance: Tensor, slope: Tensor) -> Tensor:
    return -slope * distance


class ALiBi(Scheme):
    """bias_h(Δ) = -m_h·Δ,  m_h = 2^-(8n/H + shift) for head n.

    `same=h` gives every head the slope 2^-h instead. `slopes=official` uses the slopes of the ALiBi code, which differ
    from the paper's when H is not a power of two. `slope_floor` is a minimum slope, applied last: 0.01 is the hidden
    clamp that makes three columns of the paper's tables identical.
    """

    name = "alibi"
    label = "ALiBi"
    source = "Press et al. 2022, arXiv:2108.12409"
    colour = "#0072B2"
    marker = "^"

    def __init__(
        self,
        heads: int,
        head_width: int,
        *,
        shift: float = 0.0,
        same: float | None = None,
        slopes: Literal["paper", "official"] = "paper",
        slope_floor: float = 0.0,
    ) -> None:
        super().__init__(heads, head_width)
        if same is not None and shift != 0:
            raise BadInput(f"alibi: shift={shift:g} and same={same:g} cannot be combined")
        if same is not None and slopes != "paper":
            raise BadInput(f"alibi: slopes={slopes} and same={same:g} cannot be combined")
        if max(abs(shift), abs(same or 0)) > MAX_SHIFT:
            raise BadInput(f"alibi: shift and same must be within ±{MAX_SHIFT}, got {shift:g} and {same or 0:g}")
        if slope_floor < 0:
            raise BadInput(f"alibi: slope_floor must be at least 0, got {slope_floor:g}")
        base = [2.0**-same] * heads if same is not None else (geometric if slopes == "paper" else interpolated)(heads)
        self.slopes = [max(slope * 2.0**-shift, slope_floor) for slope in base]

    def bias(self, distances_N: Tensor) -> Tensor:
        distances_N = widest_float(distances_N)
        return -torch.tensor(self.slopes, dtype=distances_N.dtype, device=distances_N.device)[:, None] * distances_N

    def bias_form(self) -> BiasForm:
        return BiasForm(line, (torch.tensor(self.slopes, dtype=torch.float64),))
