"""Cliff: your own positional scheme in one file. The scores of keys beyond an edge are lowered by a learned depth.

Run: FIELDLENS_PLUGINS=examples/cliff.py fieldlens schemes cliff:edge=32 --plot cliff.png
"""

import torch
from torch import Tensor, nn

from fieldlens.schemes import Scheme, widest_float


class Cliff(Scheme):
    """bias_h(Δ) = -depth_h for Δ ≥ edge, else 0."""

    name, label, source = "cliff", "Cliff", "this example"

    def __init__(self, heads: int, head_width: int, *, edge: int = 64) -> None:
        super().__init__(heads, head_width)
        self.edge, self.depth_H = edge, nn.Parameter(torch.ones(heads))

    def bias(self, distances_N: Tensor) -> Tensor:
        return -widest_float(self.depth_H)[:, None] * (distances_N >= self.edge)
