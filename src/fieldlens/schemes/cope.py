"""CoPE: positions count the tokens that a query selects, instead of all tokens."""

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import MAX_SIZE, Scheme, ScoreBlock


class CoPE(Scheme):
    """bias(i, j) = q_i·e[p_ij],  p_ij = min(Σ_{m=j}^{i} σ(q_i·k_m/√K), positions - 1), e interpolated between integers.

    e is learned, from 0, and shared by the heads of a layer.
    """

    name = "cope"
    label = "CoPE"
    source = "Golovneva et al. 2024, arXiv:2405.18719"
    per_layer = True
    colour = "#4D9221"
    marker = "h"

    def __init__(self, heads: int, head_width: int, *, positions: int = 64) -> None:
        super().__init__(heads, head_width)
        if not 2 <= positions <= MAX_SIZE:
            raise BadInput(f"cope: positions must be between 2 and {MAX_SIZE}, got {positions}")
        self.table_KN = nn.Parameter(torch.zeros(head_width, positions))

    def attention_logits(self, block: ScoreBlock) -> Tensor:
        largest = self.table_KN.shape[1] - 1
        positions_BHts = block.sum_from_key(block.scores_BHts.sigmoid()).clamp(max=largest)
        products_BHtN = block.q_BHtK @ self.table_KN.to(block.q_BHtK.dtype)
        below_BHts = positions_BHts.detach().floor().long()
        lower, upper = (products_BHtN.gather(3, index) for index in (below_BHts, (below_BHts + 1).clamp(max=largest)))
        return block.scores_BHts + torch.lerp(lower, upper, positions_BHts - below_BHts)
