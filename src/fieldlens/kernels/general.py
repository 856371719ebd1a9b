"""Attention for schemes that compute with scores: blocks of queries with all their keys, materialised one at a time.

In training each block is recomputed in the backward pass, so memory is that of one block, O(t·S) for t queries.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fieldlens.core.errors import BadInput
from fieldlens.kernels.key_terms import block_shift, softmax_with_sink
from fieldlens.kernels.layout import Scattered, visible
from fieldlens.kernels.rotary import accumulation_dtype
from fieldlens.schemes.base import Scheme, ScoreBlock

ROWS = 64
"""Queries per block."""


class ScoreTerms(NamedTuple):
    """What is added to the scores: biases by distance, biases of keys, sinks of queries; and features of both."""

    table_HN: Tensor | None = None
    key_bias_BHS: Tensor | None = None
    sink_BHT: Tensor | None = None
    q_features_BHTF: Tensor | None = None
    k_features_BHSF: Tensor | None = None


def attend_general(
    scheme: Scheme, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, layout: Scattered, terms: ScoreTerms
) -> Tensor:
    """Attention with the `attention_logits` and `attention_weights` of a scheme."""
    out = [
        checkpoint(_attend_block, scheme, q_BHTK, k_BHSK, v_BHSK, layout, terms, queries, keys, use_reentrant=False)
        if torch.is_grad_enabled()
        else _attend_block(scheme, q_BHTK, k_BHSK, v_BHSK, layout, terms, queries, keys)
        for queries, keys in layout.blocks(ROWS)
    ]
    return torch.cat(out[::-1], 2)  # blocks run from the last queries to the first


def _attend_block(
    scheme: Scheme, q: Tensor, k: Tensor, v: Tensor, layout: Scattered, terms: ScoreTerms, queries: slice, keys: slice
) -> Tensor:
    """The outputs of a block of queries: (B, H, t, K)."""
    block, sink = score_block(q, k, layout, terms, queries, keys)
    weights = _weights(scheme, block, sink)
    return torch.matmul(weights, v[:, :, keys].to(weights.dtype)).to(q.dtype)


def score_block(
    q: Tensor, k: Tensor, layout: Scattered, terms: ScoreTerms, queries: slice, keys: slice
) -> tuple[ScoreBlock, Tensor | None]:
    """The scores of a block of queries, and their sinks relative to the same shift: (B, H, t, 1)."""
    dtype = accumulation_dtype(q)
    q_i, k_i = q[:, :, queries].to(dtype), k[:, :, keys].to(dtype)
    q_positions_Bt, k_positions_Bs = layout.q_positions_BT[:, queries], layout.k_positions_BS[:, keys]
    distances_Bts = q_positions_Bt[:, :, None] - k_positions_Bs[:, None]
    visible_Bts = visible(distances_Bts, layout.window) & (k_positions_Bs >= 0)[:, None]
    scores = torch.matmul(q_i * q.shape[-1] ** -0.5, k_i.transpose(2, 3))
    if terms.table_HN is not None:
        scores = scores + terms.table_HN[:, distances_Bts.clamp(0, terms.table_HN.shape[1] - 1)].transpose(0, 1)
    sink = None if terms.sink_BHT is None else terms.sink_BHT[:, :, queries, None]
    if terms.key_bias_BHS is not None:
        shift = block_shift(terms.key_bias_BHS, queries, keys)
        scores = scores + (terms.key_bias_BHS[:, :, keys] - shift)[:, :, None].to(dtype)
        sink = None if sink is None else sink - shift[..., None]
    q_features, k_features = terms.q_features_BHTF, terms.k_features_BHSF
    block = ScoreBlock(
        scores,
        q_i,
        k_i,
        None if q_features is None else q_features[:, :, queries].to(dtype),
        None if k_features is None else k_features[:, :, keys].to(dtype),
        q_positions_Bt,
        k_positions_Bs,
        visible_Bts,
    )
    return block, sink


def _weights(scheme: Scheme, block: ScoreBlock, sink: Tensor | None) -> Tensor:
    """Weights of a block, 0 for invisible keys and for queries that see no key."""
    logits = scheme.attention_logits(block)
    if logits.shape != block.scores_BHts.shape:
        expected, shape = tuple(block.scores_BHts.shape), tuple(logits.shape)
        raise BadInput(f"attention_logits() of scheme '{scheme.name}' returned shape {shape}, expected {expected}")
    visible_B1ts = block.visible_Bts[:, None]
    if scheme.overrides("attention_weights"):
        return scheme.attention_weights(logits, block.visible_Bts).masked_fill(~visible_B1ts, 0)
    seeing = visible_B1ts.any(-1, keepdim=True)
    masked = logits.masked_fill(~visible_B1ts, -torch.inf).masked_fill(~seeing, 0)
    return softmax_with_sink(masked, sink)[0].masked_fill(~visible_B1ts, 0)
