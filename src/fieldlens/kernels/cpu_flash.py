"""Attention in blocks of queries with the fused CPU kernel, whose operators are private to PyTorch."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldlens.kernels.layout import BlockLayout, rows_per_block


class CpuFlashAttention(torch.autograd.Function):
    """`BlockAttention` for a fixed bias, with the fused forward and backward of the CPU kernel: no recomputation."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, layout: BlockLayout) -> Tensor:
        out, normalisers = torch.empty_like(q), []
        for queries, keys in layout.blocks(rows_per_block(layout.keys_per_block)):
            mask = layout.mask(bias, queries, keys)
            rows, normaliser = _forward(q[:, :, queries].flip(2), k[:, :, keys], v[:, :, keys], mask)
            out[:, :, queries] = layout.zero_fully_masked(rows, queries).flip(2)
            normalisers.append(normaliser)
        ctx.save_for_backward(q, k, v, bias, out, *normalisers)
        ctx.layout = layout
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, *normalisers = ctx.saved_tensors
        layout: BlockLayout = ctx.layout
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        blocks = layout.blocks(rows_per_block(layout.keys_per_block))
        for (queries, keys), normaliser in zip(blocks, normalisers, strict=True):
            d_q_i, d_k_i, d_v_i = _backward(
                layout.zero_fully_masked(d_out[:, :, queries].flip(2), queries),
                q[:, :, queries].flip(2),
                k[:, :, keys],
                v[:, :, keys],
                out[:, :, queries].flip(2),
                normaliser,
                layout.mask(bias, queries, keys),
            )
            d_q[:, :, queries] = d_q_i.flip(2)
            d_k[:, :, keys] += d_k_i
            d_v[:, :, keys] += d_v_i
        return d_q, d_k, d_v, None, None


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask)


def forward_only(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return _forward(q, k, v, mask)[0]


def with_normaliser(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The output and log Σ exp of the scores, (B, H, T, K) and (B, H, T), with which outputs can be combined."""
    return _forward(q, k, v, mask)


def _backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, normaliser: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, out, normaliser, 0.0, False, attn_mask=mask
    )


@cache
def available() -> bool:
    """Whether this version of PyTorch has the private operators with the expected signatures; they may change."""
    q = torch.ones(1, 1, 1, 2, device="cpu")
    try:
        out, normaliser = _forward(q, q, q, torch.zeros(1, 1, 1, 1, device="cpu"))
        grads = _backward(q, q, q, q, out, normaliser, torch.zeros(1, 1, 1, 1, device="cpu"))
    except (AttributeError, TypeError, RuntimeError):
        return False
    return len(grads) == 3 and bool((out == q).all())
