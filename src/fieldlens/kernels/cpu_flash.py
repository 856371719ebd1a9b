"""Attention in blocks of queries with the fused CPU kernel, whose operators are private to PyTorch."""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldlens.kernels.key_terms import block_shift, block_sink, rows_of_blocks
from fieldlens.kernels.layout import BlockLayout


class CpuFlashAttention(torch.autograd.Function):
    """`BlockAttention` for a fixed bias, with the fused forward and backward of the CPU kernel: no recomputation.

    Biases of keys are one more dimension of queries and keys. A sink b multiplies the output by σ(lse - b); the fused
    backward of this output with the normaliser log(e^lse + e^b) gives the gradients.
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
        width = q.shape[-1]
        if key_bias is not None:
            q, k, v = F.pad(q, (0, 1), value=width**0.5), F.pad(k, (0, 1)), F.pad(v, (0, 1))
        out, normalisers = torch.empty_like(q), []
        for queries, keys in layout.blocks(rows_of_blocks(layout, key_bias)):
            shift = _write_column(k, key_bias, queries, keys)
            mask = layout.mask(bias, queries, keys)
            rows, normaliser = _forward(q[:, :, queries].flip(2), k[:, :, keys], v[:, :, keys], mask, width**-0.5)
            if sink is not None:
                total = torch.logaddexp(normaliser, block_sink(sink, queries, shift).to(normaliser.dtype))
                rows, normaliser = rows * (normaliser - total).exp()[..., None], total
            out[:, :, queries] = layout.zero_fully_masked(rows, queries).flip(2)
            normalisers.append(normaliser)
        ctx.save_for_backward(q, k, v, bias, out, key_bias, sink, *normalisers)
        ctx.layout, ctx.width = layout, width
        return out if key_bias is None else out[..., :width]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, key_bias, sink, *normalisers = ctx.saved_tensors
        layout: BlockLayout = ctx.layout
        width = ctx.width
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        d_sink = None if sink is None else torch.empty_like(sink)
        if key_bias is not None:
            d_out, k = F.pad(d_out, (0, 1)), k.clone()  # the keys are written to
        blocks = layout.blocks(rows_of_blocks(layout, key_bias))
        for (queries, keys), normaliser in zip(blocks, normalisers, strict=True):
            shift = _write_column(k, key_bias, queries, keys)
            d_out_i = layout.zero_fully_masked(d_out[:, :, queries].flip(2), queries)
            out_i = out[:, :, queries].flip(2)
            d_q_i, d_k_i, d_v_i = _backward(
                d_out_i,
                q[:, :, queries].flip(2),
                k[:, :, keys],
                v[:, :, keys],
                out_i,
                normaliser,
                layout.mask(bias, queries, keys),
                width**-0.5,
            )
            d_q[:, :, queries] = d_q_i.flip(2)
            d_k[:, :, keys] += d_k_i
            d_v[:, :, keys] += d_v_i
            if sink is not None and d_sink is not None:
                weight = (block_sink(sink, queries, shift) - normaliser).exp()
                d_sink[:, :, queries] = (-weight * (d_out_i * out_i).sum(-1)).flip(2)
        if key_bias is None:
            return d_q, d_k, d_v, None, None, None, d_sink
        # the kernel multiplies by √K, the last dimension of queries, and by its scale 1/√K
        d_key_bias = d_k[..., -1].to(key_bias.dtype)
        return d_q[..., :width], d_k[..., :width], d_v[..., :width], None, None, d_key_bias, d_sink


def _write_column(k: Tensor, key_bias: Tensor | None, queries: slice, keys: slice) -> Tensor | None:
    """Write the biases of a block's keys into the last dimension of the keys; return what was subtracted from them."""
    if key_bias is None:
        return None
    shift = block_shift(key_bias, queries, keys)
    k[:, :, keys, -1] = key_bias[:, :, keys] - shift
    return shift


def _forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scale: float | None = None) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask, scale=scale)


def forward_only(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return _forward(q, k, v, mask)[0]


def with_normaliser(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The output and log Σ exp of the scores, (B, H, T, K) and (B, H, T), with which outputs can be combined."""
    return _forward(q, k, v, mask)


def _backward(
    d_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    normaliser: Tensor,
    mask: Tensor,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, out, normaliser, 0.0, False, attn_mask=mask, scale=scale
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
