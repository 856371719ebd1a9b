"""Attention in blocks of queries by public operators, with gradients for learned biases."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldlens.kernels.layout import Layout, rows_per_block

LEARNED_ROWS = 64
"""Queries per block where backward materialises the block's scores: 64 was the best of 32 … 256."""


class BlockAttention(torch.autograd.Function):
    """softmax(q·kᵀ/√K + bias)·v in blocks of queries, by public operators; backward computes each block again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, where: Layout) -> Tensor:
        out = torch.empty_like(q)
        fixed = bias.detach()  # a mask that needs gradients would send the kernel down its T × S path
        for queries, keys in where.blocks(rows_per_block(where.keys_at_once)):
            mask = where.mask(fixed, queries, keys)
            rows = masked_attention(q[:, :, queries].flip(2), k[:, :, keys], v[:, :, keys], mask)
            out[:, :, queries] = where.zero_fully_masked(rows, queries).flip(2)
        ctx.save_for_backward(q, k, v, bias)
        ctx.where = where
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias = ctx.saved_tensors
        where: Layout = ctx.where
        wide, scale = bias.dtype, q.shape[-1] ** -0.5
        d_q = torch.empty_like(q, dtype=wide)
        d_k, d_v = torch.zeros_like(k, dtype=wide), torch.zeros_like(v, dtype=wide)
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        for queries, keys in where.blocks(LEARNED_ROWS):
            q_i, k_i, v_i = (
                q[:, :, queries].flip(2).to(wide) * scale,
                k[:, :, keys].to(wide),
                v[:, :, keys].to(wide),
            )
            d_out_i = where.zero_fully_masked(d_out[:, :, queries].flip(2).to(wide), queries)
            scores = torch.matmul(q_i, k_i.transpose(2, 3)).add_(where.mask(bias, queries, keys))
            shares = torch.softmax(scores, -1)
            d_v[:, :, keys] += torch.matmul(shares.transpose(2, 3), d_out_i)
            d_scores = torch.matmul(d_out_i, v_i.transpose(2, 3)).mul_(shares)
            d_scores.addcmul_(shares, d_scores.sum(-1, keepdim=True), value=-1)
            if d_bias is not None:
                where.reduce_grad(d_scores, d_bias, queries, keys)
            d_q[:, :, queries] = torch.matmul(d_scores, k_i).flip(2)
            d_k[:, :, keys] += torch.matmul(d_scores.transpose(2, 3), q_i)
        return d_q.mul_(scale).to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), d_bias, None


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == q.dtype:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # Half-precision inputs keep their float32 bias, which not every kernel accepts.
    scores = torch.matmul(q.to(mask.dtype), k.to(mask.dtype).transpose(2, 3)) * q.shape[-1] ** -0.5 + mask
    return torch.matmul(torch.softmax(scores, -1), v.to(mask.dtype)).to(q.dtype)
