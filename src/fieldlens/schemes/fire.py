"""FIRE: a small network of the distance relative to the query's position."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import MAX_SIZE, Scheme, ScoreBlock

EPSILON = 1e-6


class Fire(Scheme):
    """bias_h(i, Δ) = f_h(ψ(Δ) / ψ(max(L, i))),  ψ(x) = ln(1 + |c·x|), f a network with one hidden layer of ReLUs.

    c and L are learned, from 0.1 and `threshold`; `width` is that of the hidden layer. Each layer has its own network.
    Initial values, and one network per layer, are as in github.com/chuanyang-Zheng/DAPE.
    """

    name = "fire"
    label = "FIRE"
    source = "Li et al. 2024, arXiv:2310.04418"
    relative = False
    per_layer = True
    colour = "#F46D43"
    marker = "H"

    def __init__(self, heads: int, head_width: int, *, threshold: float = 512.0, width: int = 32) -> None:
        super().__init__(heads, head_width)
        if threshold <= 0:
            raise BadInput(f"fire: threshold must be greater than 0, got {threshold:g}")
        if not 1 <= width <= MAX_SIZE:
            raise BadInput(f"fire: width must be between 1 and {MAX_SIZE}, got {width}")
        self.threshold = threshold
        self.hidden, self.output = nn.Linear(1, width), nn.Linear(width, heads)
        self.c, self.multiplier = nn.Parameter(torch.tensor(0.1)), nn.Parameter(torch.tensor(1.0))

    def attention_logits(self, block: ScoreBlock) -> Tensor:
        dtype = block.scores_BHts.dtype
        longest_Bt1 = block.q_positions_Bt[..., None].to(dtype)
        longest_Bt1 = torch.maximum(longest_Bt1, (self.multiplier * self.threshold).abs().to(dtype))
        distances_Bts = block.distances.clamp(min=0).to(dtype)
        ratio_Bts = self._stretch(distances_Bts) / (self._stretch(longest_Bt1) + EPSILON)
        hidden_Btsf = F.relu(F.linear(ratio_Bts[..., None], self.hidden.weight.to(dtype), self.hidden.bias.to(dtype)))
        bias_BtsH = F.linear(hidden_Btsf, self.output.weight.to(dtype), self.output.bias.to(dtype))
        return block.scores_BHts + bias_BtsH.permute(0, 3, 1, 2)

    def _stretch(self, x: Tensor) -> Tensor:
        """ψ(x) = ln(1 + |c·x|)."""
        return torch.log1p((self.c.to(x.dtype) * x).abs())
