"""Biases of keys and sinks in attention: the shift that a block subtracts from both, and the softmax with a sink."""

import torch
from torch import Tensor

from fieldlens.kernels.layout import BlockLayout, rows_per_block

DECAY_ROWS = 128
"""Maximum number of queries in a block with biases of keys, which a block holds relative to those of its own tokens."""


def rows_of_blocks(layout: BlockLayout, key_bias: Tensor | None) -> int:
    """Queries per block of the fused kernel."""
    rows = rows_per_block(layout.keys_per_block)
    return rows if key_bias is None else min(rows, DECAY_ROWS)


def block_shift(key_bias_BHS: Tensor, queries: slice, keys: slice) -> Tensor:
    """The bias of a key in the middle of a block's own tokens, (B, H, 1): differences from it are small, hence exact.

    Biases are float64, because they may be sums over the whole text; subtracting a constant leaves weights as they are.
    """
    middle = max(keys.start, keys.stop - 1 - (queries.stop - queries.start) // 2)
    return key_bias_BHS[:, :, middle : middle + 1]


def block_sink(sink_BHT: Tensor, queries: slice, shift: Tensor | None) -> Tensor:
    """The sink of a block's queries, in reverse order, relative to the same shift: (B, H, t)."""
    sink_BHt = sink_BHT[:, :, queries].flip(2)
    return sink_BHt if shift is None else sink_BHt - shift


def softmax_with_sink(scores: Tensor, sink: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Softmax of scores, (…, s), with one more logit in the denominator, (…, 1): the weights, and that of the sink."""
    if sink is None:
        return torch.softmax(scores, -1), None
    weights = torch.softmax(torch.cat([scores, sink.to(scores.dtype).expand(*scores.shape[:-1], 1)], -1), -1)
    return weights[..., :-1], weights[..., -1:]
