"""Attention in blocks of queries with public PyTorch operators, with gradients for learned biases."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldlens.kernels.key_terms import block_shift, block_sink, softmax_with_sink
from fieldlens.kernels.layout import BlockLayout, rows_per_block
from fieldlens.schemes.base import widest_float

LEARNED_ROWS = 64
"""Queries per block where the scores of a block are materialised, as in backward; 64 was the best of 32 … 256."""


class BlockAttention(torch.autograd.Function):
    """softmax(q·kᵀ/√K + bias)·v in blocks of queries; backward recomputes each block.

    `key_bias` (B, H, S) is added to the scores of each key, `sink` (B, H, T) is one more logit of each query.
    """

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        bias: Tensor,
        layout: BlockLayout,
        key_bias: Tensor | None,
        sink: Tensor | None,
    ) -> Tensor:
        out = torch.empty_like(q)
        fixed = bias.detach()  # with a mask that requires gradients the kernel would fall back to T × S memory
        materialised = key_bias is not None or sink is not None
        for queries, keys in layout.blocks(LEARNED_ROWS if materialised else rows_per_block(layout.keys_per_block)):
            mask, sink_i = _block_terms(layout, fixed, key_bias, sink, queries, keys)
            rows = masked_attention(q[:, :, queries].flip(2), k[:, :, keys], v[:, :, keys], mask, sink_i)
            out[:, :, queries] = layout.zero_fully_masked(rows, queries).flip(2)
        ctx.save_for_backward(q, k, v, bias, key_bias, sink)
        ctx.layout = layout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, key_bias, sink = ctx.saved_tensors
        layout: BlockLayout = ctx.layout
        dtype, scale = bias.dtype, q.shape[-1] ** -0.5
        d_q = torch.empty_like(q, dtype=dtype)
        d_k, d_v = torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype)
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        d_key_bias, d_sink = (None if x is None else torch.zeros_like(x) for x in (key_bias, sink))
        for queries, keys in layout.blocks(LEARNED_ROWS):
            q_i, k_i, v_i = (
                q[:, :, queries].flip(2).to(dtype) * scale,
                k[:, :, keys].to(dtype),
                v[:, :, keys].to(dtype),
            )
            d_out_i = layout.zero_fully_masked(d_out[:, :, queries].flip(2).to(dtype), queries)
            mask, sink_i = _block_terms(layout, bias, key_bias, sink, queries, keys)
            scores = torch.matmul(q_i, k_i.transpose(2, 3)).add_(mask)
            weights, sink_weight = softmax_with_sink(scores, sink_i)
            d_v[:, :, keys] += torch.matmul(weights.transpose(2, 3), d_out_i)
            d_scores = torch.matmul(d_out_i, v_i.transpose(2, 3)).mul_(weights)
            sums = d_scores.sum(-1, keepdim=True)
            d_scores.addcmul_(weights, sums, value=-1)
            if d_bias is not None:
                layout.reduce_grad(d_scores, d_bias, queries, keys)
            if d_key_bias is not None:
                d_key_bias[:, :, keys] += d_scores.sum(2)
            if d_sink is not None and sink_weight is not None:
                d_sink[:, :, queries] = -(sink_weight * sums)[..., 0].flip(2).to(d_sink.dtype)
            d_q[:, :, queries] = torch.matmul(d_scores, k_i).flip(2)
            d_k[:, :, keys] += torch.matmul(d_scores.transpose(2, 3), q_i)
        return d_q.mul_(scale).to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), d_bias, None, d_key_bias, d_sink


def _block_terms(
    layout: BlockLayout, bias: Tensor, key_bias: Tensor | None, sink: Tensor | None, queries: slice, keys: slice
) -> tuple[Tensor, Tensor | None]:
    """The mask of a block, with the biases of its keys, and the sink of its queries: (B or 1, H or 1, t, s or 1)."""
    mask = layout.mask(bias, queries, keys)
    shift = None if key_bias is None else block_shift(key_bias, queries, keys)
    if key_bias is not None and shift is not None:
        mask = mask + (key_bias[:, :, keys] - shift)[:, :, None].to(mask.dtype)
    return mask, None if sink is None else block_sink(sink, queries, shift)[..., None].to(mask.dtype)


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, sink: Tensor | None = None) -> Tensor:
    """softmax(q·kᵀ/√K + mask)·v, with a gradient for the mask if it requires one, and for the sink, (B, H, T, 1)."""
    if mask.dtype == q.dtype and not mask.requires_grad and sink is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # Half-precision inputs have a float32 bias, which not every kernel accepts.
    scores = torch.matmul(q.to(mask.dtype) * q.shape[-1] ** -0.5, k.to(mask.dtype).transpose(2, 3)) + mask
    return torch.matmul(softmax_with_sink(scores, sink)[0], v.to(mask.dtype)).to(q.dtype)


def attend_whole(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor,
    layout: BlockLayout,
    key_bias: Tensor | None,
    sink: Tensor | None,
) -> Tensor:
    """The same as `BlockAttention` with one mask for all queries and without a backward pass of its own."""
    parts = []
    for queries, keys in layout.blocks(q.shape[2]):
        mask, sink_i = _block_terms(layout, bias, key_bias, sink, queries, keys)
        rows = masked_attention(q[:, :, queries].flip(2), k[:, :, keys], v[:, :, keys], mask, sink_i)
        parts.append(layout.zero_fully_masked(rows, queries).flip(2))
    return torch.cat(parts[::-1], 2)


class OneMaskAttention(torch.autograd.Function):
    """`masked_attention` with biases of keys, (B, H, S), and sinks, (B, H, T), for few queries and keys.

    It keeps the weights: for few tokens this is faster than to recompute them.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, key_bias: Tensor | None, sink: Tensor | None
    ) -> Tensor:
        dtype, ctx.dtype, ctx.scale = mask.dtype, q.dtype, q.shape[-1] ** -0.5
        q, k, v = q.to(dtype) * ctx.scale, k.to(dtype), v.to(dtype)
        scores = torch.matmul(q, k.transpose(2, 3)).add_(mask)
        if key_bias is not None:
            shift = block_shift(key_bias, slice(0, q.shape[2]), slice(0, k.shape[2]))
            scores.add_((key_bias - shift)[:, :, None].to(dtype))
            sink = None if sink is None else sink - shift
        weights, sink_weight = softmax_with_sink(scores, None if sink is None else sink[..., None])
        ctx.save_for_backward(q, k, v, weights, sink_weight)
        ctx.mask_shape = mask.shape
        return torch.matmul(weights, v).to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, weights, sink_weight = ctx.saved_tensors
        d_out = d_out.to(weights.dtype)
        d_v = torch.matmul(weights.transpose(2, 3), d_out)
        d_scores = torch.matmul(d_out, v.transpose(2, 3)).mul_(weights)
        sums = d_scores.sum(-1, keepdim=True)
        d_scores.addcmul_(weights, sums, value=-1)
        d_q, d_k = torch.matmul(d_scores, k).mul_(ctx.scale), torch.matmul(d_scores.transpose(2, 3), q)
        d_mask = d_scores.sum_to_size(ctx.mask_shape) if ctx.needs_input_grad[3] else None
        d_key_bias = widest_float(d_scores.sum(2)) if ctx.needs_input_grad[4] else None
        d_sink = None if sink_weight is None else widest_float(-(sink_weight * sums)[..., 0])
        return d_q.to(ctx.dtype), d_k.to(ctx.dtype), d_v.to(ctx.dtype), d_mask, d_key_bias, d_sink
