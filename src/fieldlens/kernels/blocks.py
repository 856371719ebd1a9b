"""Attention in blocks of queries with public PyTorch operators, with gradients for learned biases."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldlens.kernels.layout import BlockLayout, rows_per_block

LEARNED_ROWS = 64
"""Queries per block in backward, which materialises the scores of a block; 64 was the best of 32 … 256."""


class BlockAttention(torch.autograd.Function):
    """softmax(q·kᵀ/√K + bias)·v in blocks of queries; backward recomputes each block."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, layout: BlockLayout) -> Tensor:
        out = torch.empty_like(q)
        fixed = bias.detach()  # with a mask that requires gradients the kernel would fall back to T × S memory
        for queries, keys in layout.blocks(rows_per_block(layout.keys_per_block)):
            mask = layout.mask(fixed, queries, keys)
            rows = masked_attention(q[:, :, queries].flip(2), k[:, :, keys], v[:, :, keys], mask)
            out[:, :, queries] = layout.zero_fully_masked(rows, queries).flip(2)
        ctx.save_for_backward(q, k, v, bias)
        ctx.layout = layout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias = ctx.saved_tensors
        layout: BlockLayout = ctx.layout
        dtype, scale = bias.dtype, q.shape[-1] ** -0.5
        d_q = torch.empty_like(q, dtype=dtype)
        d_k, d_v = torch.zeros_like(k, dtype=dtype), torch.zeros_like(v, dtype=dtype)
        d_bias = torch.zeros_like(bias) if ctx.needs_input_grad[3] else None
        for queries, keys in layout.blocks(LEARNED_ROWS):
            q_i, k_i, v_i = (
                q[:, :, queries].flip(2).to(dtype) * scale,
                k[:, :, keys].to(dtype),
                v[:, :, keys].to(dtype),
            )
            d_out_i = layout.zero_fully_masked(d_out[:, :, queries].flip(2).to(dtype), queries)
            scores = torch.matmul(q_i, k_i.transpose(2, 3)).add_(layout.mask(bias, queries, keys))
            weights = torch.softmax(scores, -1)
            d_v[:, :, keys] += torch.matmul(weights.transpose(2, 3), d_out_i)
            d_scores = torch.matmul(d_out_i, v_i.transpose(2, 3)).mul_(weights)
            d_scores.addcmul_(weights, d_scores.sum(-1, keepdim=True), value=-1)
            if d_bias is not None:
                layout.reduce_grad(d_scores, d_bias, queries, keys)
            d_q[:, :, queries] = torch.matmul(d_scores, k_i).flip(2)
            d_k[:, :, keys] += torch.matmul(d_scores.transpose(2, 3), q_i)
        return d_q.mul_(scale).to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), d_bias, None


def masked_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """softmax(q·kᵀ/√K + mask)·v, with a gradient for the mask if it requires one."""
    if mask.dtype == q.dtype and not mask.requires_grad:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # Half-precision inputs have a float32 bias, which not every kernel accepts.
    scores = torch.matmul(q.to(mask.dtype) * q.shape[-1] ** -0.5, k.to(mask.dtype).transpose(2, 3)) + mask
    return torch.matmul(torch.softmax(scores, -1), v.to(mask.dtype)).to(q.dtype)
