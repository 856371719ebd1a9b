"""T5 bias: one learned scalar per head and bucket of distances."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import MAX_SIZE, Scheme, widest_float


def bucket(distances_N: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Bucket of each distance: one distance each in the first half, then logarithmic; the last is unbounded."""
    exact = buckets // 2
    ratio_N = widest_float(distances_N.clamp(min=exact)) / exact
    # The epsilon puts a distance exactly on a boundary into the upper bucket, however the logarithm is rounded.
    steps_N = torch.log(ratio_N) / math.log(max_distance / exact) * (buckets - exact) + 1e-9
    return torch.where(distances_N < exact, distances_N, (exact + steps_N.long()).clamp(max=buckets - 1))


class T5(Scheme):
    """bias_h(Δ) = s·table[bucket(Δ), h].

    `scale=authors`: s = √K and a Xavier-normal table, the model behind the paper's numbers.
    `scale=original`: s = 1 and a table with standard deviation D^-½.
    """

    name = "t5"
    label = "T5 bias"
    source = "Raffel et al. 2020, arXiv:1910.10683"
    colour = "#CC79A7"
    marker = "v"

    def __init__(
        self,
        heads: int,
        head_width: int,
        *,
        buckets: int = 32,
        max_distance: int = 128,
        scale: Literal["authors", "original"] = "authors",
    ) -> None:
        super().__init__(heads, head_width)
        if not 2 <= buckets <= MAX_SIZE:
            raise BadInput(f"t5: buckets must be between 2 and {MAX_SIZE}, got {buckets}")
        if buckets // 2 >= max_distance:
            raise BadInput(f"t5: max_distance must be greater than buckets/2 = {buckets // 2}, got {max_distance}")
        self.buckets, self.max_distance = buckets, max_distance
        self.factor = math.sqrt(head_width) if scale == "authors" else 1.0
        self.table_NH = nn.Parameter(torch.empty(buckets, heads))
        if scale == "authors":
            nn.init.xavier_normal_(self.table_NH)
        else:
            nn.init.normal_(self.table_NH, std=(heads * head_width) ** -0.5)

    def bias(self, distances_N: Tensor) -> Tensor:
        rows_NH = widest_float(self.table_NH)[bucket(distances_N, self.buckets, self.max_distance)]
        return rows_NH.T * self.factor
