"""Medley: a scheme on blocks of scores in one file. Each query mixes three curves of distance, each key weakens them.

Run: FIELDLENS_PLUGINS=examples/medley.py fieldlens schemes medley
"""

from typing import Literal

import torch
from torch import Tensor, nn

from fieldlens.schemes import Scheme, ScoreBlock


class Medley(Scheme):
    """logit = q·k/√K - g_h(x_j) Σ_c π_hc(x_i) s_hc f_c(Δ): π is a softmax, g a sigmoid or 1.

    The curves f are Δ/scale, ln(1 + Δ) and Δ/(Δ + scale).
    """

    name, label, source = "medley", "Medley", "this example"
    per_layer = True

    def __init__(
        self, heads: int, head_width: int, *, scale: float = 16.0, gate: Literal["key", "none"] = "key"
    ) -> None:
        super().__init__(heads, head_width)
        width = heads * head_width
        self.scale = scale
        self.mix_HCD = nn.Parameter(0.02 * torch.randn(heads, 3, width))
        self.slope_HC = nn.Parameter(torch.ones(heads, 3))
        self.gate_HD = nn.Parameter(0.02 * torch.randn(heads, width)) if gate == "key" else None

    @torch.no_grad()
    def project(self) -> None:
        self.slope_HC.clamp_(min=0)

    def query_features(self, x_BTD: Tensor) -> Tensor:
        mix_BHTC = torch.einsum("btd,hcd->bhtc", x_BTD, self.mix_HCD.to(x_BTD.dtype)).softmax(-1)
        return mix_BHTC * self.slope_HC.to(x_BTD.dtype)[:, None]

    def key_features(self, x_BSD: Tensor) -> Tensor:
        if self.gate_HD is None:
            return x_BSD.new_ones(len(x_BSD), len(self.mix_HCD), x_BSD.shape[1], 1)
        return (x_BSD @ self.gate_HD.to(x_BSD.dtype).T).transpose(1, 2).sigmoid()[..., None]

    def attention_logits(self, block: ScoreBlock) -> Tensor:
        distances_B1ts = block.distances.clamp(min=0).to(block.scores_BHts.dtype)[:, None]
        curves = (distances_B1ts / self.scale, distances_B1ts.log1p(), distances_B1ts / (distances_B1ts + self.scale))
        penalty_BHts = sum(block.q_features_BHtF[..., c, None] * curve for c, curve in enumerate(curves))
        return block.scores_BHts - penalty_BHts * block.k_features_BHsF[:, :, None, :, 0]
