"""FoX: every token has a gate per head that lowers the scores of all earlier keys."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fieldlens.schemes.alibi import geometric
from fieldlens.schemes.base import Scheme


class ForgettingTransformer(Scheme):
    """bias_h(i, j) = Σ_{m=j+1}^{i} ln σ(w_h·x_m + b_h), x the normalised input of the layer.

    # paper: b = 0; here: the slopes of ALiBi, σ(b_h) = exp(-2^(-8n/H)), so that far keys are visible from the start.
    """

    name = "fox"
    label = "FoX"
    source = "Lin et al. 2025, arXiv:2503.02130"
    per_layer = True
    exact_reach = False
    colour = "#B2182B"
    marker = "d"

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__(heads, head_width)
        self.weight_HD = nn.Parameter(torch.empty(heads, heads * head_width).normal_(std=0.02))
        slopes_H = torch.tensor(geometric(heads), dtype=torch.float64)
        self.bias_H = nn.Parameter(-torch.expm1(slopes_H).log().to(torch.get_default_dtype()))

    def log_decay(self, x_BSD: Tensor) -> Tensor:
        dtype = torch.promote_types(x_BSD.dtype, torch.float32)
        gates_BSH = F.linear(x_BSD.to(dtype), self.weight_HD.to(dtype), self.bias_H.to(dtype))
        return F.logsigmoid(gates_BSH).transpose(1, 2)
