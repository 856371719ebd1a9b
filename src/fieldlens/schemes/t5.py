"""T5 bias: one learned number per head and bucket of distances."""

import math
from typing import Literal

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import MOST, Scheme, widest_float


def bucket(distances_N: Tensor, buckets: int, max_distance: int) -> Tensor:
    """Half the buckets hold one distance each, the others grow logarithmically; the last takes all the rest."""
    single = buckets // 2
    ratio_N = widest_float(distances_N.clamp(min=single)) / single
    # The hair keeps distances that lie exactly on a boundary on its upper side, whatever the logarithm rounds to.
    steps_N = torch.log(ratio_N) / math.log(max_distance / single) * (buckets - single) + 1e-9
    return torch.where(distances_N < single, distances_N, (single + steps_N.long()).clamp(max=buckets - 1))


class T5(Scheme):
    """bias_h(Δ) = s·table[bucket(Δ), h].

    `scale=authors`: s = √K and a Xavier-normal table, the model behind the paper's numbers.
    `scale=original`: s = 1 and a table of standard deviation D^-½.
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
        if not 2 <= buckets <= MOST:
            raise BadInput(f"t5: buckets is {buckets}, but half of them hold single distances: 2 to {MOST}")
        if buckets // 2 >= max_distance:
            raise BadInput(f"t5: max_distance is {max_distance}, but must exceed buckets/2 = {buckets // 2}")
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
