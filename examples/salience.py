"""Salience: a content-dependent scheme in one file. Each token has a learned importance per head, read from its state.

Run: FIELDLENS_PLUGINS=examples/salience.py fieldlens schemes salience
"""

import torch
from torch import Tensor, nn

from fieldlens.schemes import Scheme


class Salience(Scheme):
    """bias_h(i, j) = w_h·x_j, x the normalised input of the layer: no position at all, only what a token is."""

    name, label, source = "salience", "Salience", "this example"
    per_layer = True

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__(heads, head_width)
        self.weight_HD = nn.Parameter(0.02 * torch.randn(heads, heads * head_width))

    def key_bias(self, x_BSD: Tensor) -> Tensor:
        return (x_BSD @ self.weight_HD.to(x_BSD.dtype).T).transpose(1, 2)
