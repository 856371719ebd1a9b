"""Inkling: each query mixes a bank of curves over distance into a bias of its own."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import MAX_SIZE, Scheme, ScoreBlock


class Inkling(Scheme):
    """bias_h(i, Δ) = r_h(x_i)·B[:, Δ] for Δ < extent, else 0;  r_h is linear with `rank` outputs, B is learned.

    x is the normalised input of the layer. With `floor=N`, scores and biases are multiplied by
    1 + alpha·ln(max(1, n/N)), where n is the number of keys that the query sees.
    """

    name = "inkling"
    label = "Inkling"
    source = "transformers 5, models/inkling, InklingRelativeLogits"
    per_layer = True
    colour = "#5E3C99"
    marker = "8"
    examples = ("inkling:extent=20", "inkling:alpha=0.5,floor=4")

    def __init__(
        self,
        heads: int,
        head_width: int,
        *,
        rank: int = 16,
        extent: int = 1024,
        floor: int | None = None,
        alpha: float = 0.1,
    ) -> None:
        super().__init__(heads, head_width)
        for name, value in (("rank", rank), ("extent", extent)):
            if not 1 <= value <= MAX_SIZE:
                raise BadInput(f"inkling: {name} must be between 1 and {MAX_SIZE}, got {value}")
        if floor is not None and floor < 1:
            raise BadInput(f"inkling: floor must be at least 1, got {floor}")
        self.extent, self.floor, self.alpha = extent, floor, alpha
        self.mix_HRD = nn.Parameter(torch.empty(heads, rank, heads * head_width).normal_(std=0.02))
        self.curves_RN = nn.Parameter(torch.empty(rank, extent).normal_(std=0.02))

    def query_features(self, x_BTD: Tensor) -> Tensor:
        dtype = torch.promote_types(x_BTD.dtype, torch.float32)
        mixed_BTX = F.linear(x_BTD.to(dtype), self.mix_HRD.flatten(0, 1).to(dtype))
        return mixed_BTX.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attention_logits(self, block: ScoreBlock) -> Tensor:
        assert block.q_features_BHtF is not None
        distances_B1ts = block.distances[:, None]
        nearest = min(self.extent, 1 + int(distances_B1ts.max().clamp(min=0)))
        curves_BHtN = block.q_features_BHtF @ self.curves_RN[:, :nearest].to(block.scores_BHts.dtype)
        index_BHts = distances_B1ts.clamp(0, nearest - 1).expand(*curves_BHtN.shape[:3], -1)
        bias_BHts = curves_BHtN.gather(3, index_BHts).masked_fill(distances_B1ts >= self.extent, 0)
        logits_BHts = block.scores_BHts + bias_BHts
        if self.floor is None:
            return logits_BHts
        visible_Bt = block.visible_Bts.sum(-1).to(logits_BHts.dtype)
        factor_Bt = 1 + self.alpha * (visible_Bt / self.floor).clamp(min=1).log()
        return logits_BHts * factor_Bt[:, None, :, None]
