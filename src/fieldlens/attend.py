"""Exact causal attention with a bias by distance: the only place that calls a kernel.

No H·T·S tensor is ever made, forward or backward, to the inputs or to learned biases: see layout.py.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldlens.errors import BadInput
from fieldlens.layout import Layout, check_positions, layout, narrower
from fieldlens.schemes import Scheme, check_window

LEARNED_ROWS = 64
"""Queries per block where backward materialises the block's scores: 64 was the best of 32 … 256."""


def fused_rows(keys: int) -> int:
    """Queries per block of the fused kernel: the best of 64 … 512 at 128, 256, 512, 2048 and 8192 keys."""
    return min(256, max(64, keys // 4))


def bias_table(scheme: Scheme, reach: int, like: Tensor) -> Tensor | None:
    """A scheme's biases for distances 0..reach-1 in the type of the computation, never below float32: (H, N)."""
    table_HN = scheme.bias(torch.arange(reach, device=like.device))
    if table_HN is not None and table_HN.shape not in ((scheme.heads, reach), (1, reach)):
        wanted = f"one row for each of {scheme.heads} heads, or one for all, of {reach} distances"
        raise BadInput(f"the bias of scheme '{scheme.name}' has the shape {tuple(table_HN.shape)}: {wanted}")
    return None if table_HN is None else table_HN.to(_wide(like))


def spread_bias(table_HN: Tensor | None, where: Layout, like: Tensor) -> Tensor | None:
    """What `attend` adds to scores: None when plain causal attention is all there is to do."""
    if table_HN is None:
        if where.square:
            return None
        table_HN = torch.zeros(1, where.reach, dtype=_wide(like), device=like.device)
    return where.spread(table_HN)


Rotation = tuple[Tensor, Tensor]
"""Cosines and sines of the angles by which queries or keys are turned."""


def rotation(angles: Tensor | None, like: Tensor) -> Rotation | None:
    """Cosines and sines of a scheme's angles, (T, K/2) or (B, T, K/2), shaped to turn (B, H, T, K)."""
    if angles is None:
        return None
    angles = angles if angles.ndim == 2 else angles[:, None]
    return angles.cos().to(_wide(like)), angles.sin().to(_wide(like))


def turn(x_BHTK: Tensor, by: Rotation | None) -> Tensor:
    """Turn the pairs (j, j + K/2) of each vector."""
    if by is None:
        return x_BHTK
    cos, sin = by
    left, right = x_BHTK.to(cos.dtype).chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x_BHTK.dtype)


def attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor | None, where: Layout) -> Tensor:
    """Attention of turned queries and keys, with the bias that `spread_bias` made for this layout."""
    if bias is None:
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, is_causal=True)
    # The kernel reads along the last axis with steps of one, and says nothing when they are not.
    q_BHTK, k_BHSK, v_BHSK = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHTK, k_BHSK, v_BHSK))
    fused = not bias.requires_grad and bias.dtype == q_BHTK.dtype and q_BHTK.device.type == "cpu" and fused_works()
    if q_BHTK.shape[2] == 1 and not torch.is_grad_enabled():
        return _one(q_BHTK, k_BHSK, v_BHSK, bias, where, fused)
    return (_Fused if fused else _Blocks).apply(q_BHTK, k_BHSK, v_BHSK, bias, where)


def _one(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor, where: Layout, fused: bool) -> Tensor:
    """One query and no gradients, as when text is generated: the same kernel without the frame around it."""
    ((queries, keys),) = where.blocks(1)
    kernel = _fused_rows if fused else _kernel
    rows = kernel(q_BHTK, k_BHSK[:, :, keys], v_BHSK[:, :, keys], where.mask(bias, queries, keys))
    return _blank(rows, where, queries)


def attention(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    scheme: Scheme,
    window: int | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
) -> Tensor:
    """Exact causal attention under a scheme; queries and keys not yet turned: (B, H, T, K).

    Without positions the keys are 0..S-1 and the queries the last T of them. Of a window given here and one in the
    scheme the smaller counts. A key at a negative position is padding.
    """
    _check(q_BHTK, k_BHSK, v_BHSK, scheme)
    check_window(window)
    t, s = q_BHTK.shape[2], k_BHSK.shape[2]
    if k_positions is None:
        k_positions = torch.arange(s, device=k_BHSK.device)
    if q_positions is None:
        if t > s:
            raise BadInput(f"{t} queries for {s} keys: say where the queries stand with q_positions")
        q_positions = k_positions[..., s - t :]
    check_positions("q_positions", q_positions, q_BHTK.shape[0], t)
    check_positions("k_positions", k_positions, q_BHTK.shape[0], s)
    where = layout(q_positions, k_positions, narrower(window, scheme.window))
    bias = spread_bias(bias_table(scheme, where.reach, q_BHTK), where, q_BHTK)
    q_BHTK = turn(q_BHTK, rotation(scheme.angles(q_positions), q_BHTK))
    k_BHSK = turn(k_BHSK, rotation(scheme.angles(k_positions), k_BHSK))
    return attend(q_BHTK, k_BHSK, v_BHSK, bias, where)


def _check(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise BadInput(f"shapes do not fit: {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        raise BadInput(f"types do not fit: q {q.dtype}, k {k.dtype}, v {v.dtype}")
    if q.shape[2] < 1 or k.shape[2] < 1:
        raise BadInput(f"at least one query and one key are needed: {shapes}")
    if q.shape[1] != scheme.heads or q.shape[3] != scheme.head_width:
        wanted = f"the scheme has {scheme.heads} of width {scheme.head_width}"
        raise BadInput(f"q has {q.shape[1]} heads of width {q.shape[3]}, {wanted}")


class _Blocks(torch.autograd.Function):
    """softmax(q·kᵀ/√K + bias)·v in blocks of queries, by public operators; backward computes each block again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, where: Layout) -> Tensor:
        out = torch.empty_like(q)
        fixed = bias.detach()  # a mask that needs gradients would send the kernel down its T × S path
        for queries, keys in where.blocks(fused_rows(where.keys_at_once)):
            mask = where.mask(fixed, queries, keys)
            rows = _kernel(q[:, :, queries].flip(2), k[:, :, keys], v[:, :, keys], mask)
            out[:, :, queries] = _blank(rows, where, queries).flip(2)
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
            d_out_i = _blank(d_out[:, :, queries].flip(2).to(wide), where, queries)
            scores = torch.matmul(q_i, k_i.transpose(2, 3)).add_(where.mask(bias, queries, keys))
            shares = torch.softmax(scores, -1)
            d_v[:, :, keys] += torch.matmul(shares.transpose(2, 3), d_out_i)
            d_scores = torch.matmul(d_out_i, v_i.transpose(2, 3)).mul_(shares)
            d_scores.addcmul_(shares, d_scores.sum(-1, keepdim=True), value=-1)
            if d_bias is not None:
                where.fold(d_scores, d_bias, queries, keys)
            d_q[:, :, queries] = torch.matmul(d_scores, k_i).flip(2)
            d_k[:, :, keys] += torch.matmul(d_scores.transpose(2, 3), q_i)
        return d_q.mul_(scale).to(q.dtype), d_k.to(k.dtype), d_v.to(v.dtype), d_bias, None


class _Fused(torch.autograd.Function):
    """The same for a fixed bias, through the CPU kernel's own forward and backward: nothing is computed again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bias: Tensor, where: Layout) -> Tensor:
        out, normalisers = torch.empty_like(q), []
        for queries, keys in where.blocks(fused_rows(where.keys_at_once)):
            mask = where.mask(bias, queries, keys)
            rows, normaliser = _fused_forward(q[:, :, queries].flip(2), k[:, :, keys], v[:, :, keys], mask)
            out[:, :, queries] = _blank(rows, where, queries).flip(2)
            normalisers.append(normaliser)
        ctx.save_for_backward(q, k, v, bias, out, *normalisers)
        ctx.where = where
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, bias, out, *normalisers = ctx.saved_tensors
        where: Layout = ctx.where
        d_q, d_k, d_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        blocks = where.blocks(fused_rows(where.keys_at_once))
        for (queries, keys), normaliser in zip(blocks, normalisers, strict=True):
            d_q_i, d_k_i, d_v_i = _fused_backward(
                _blank(d_out[:, :, queries].flip(2), where, queries),
                q[:, :, queries].flip(2),
                k[:, :, keys],
                v[:, :, keys],
                out[:, :, queries].flip(2),
                normaliser,
                where.mask(bias, queries, keys),
            )
            d_q[:, :, queries] = d_q_i.flip(2)
            d_k[:, :, keys] += d_k_i
            d_v[:, :, keys] += d_v_i
        return d_q, d_k, d_v, None, None


def _blank(rows: Tensor, where: Layout, queries: slice) -> Tensor:
    """Zero the rows of queries that see nothing."""
    blind = where.blind(queries)
    return rows if blind is None else rows.masked_fill(blind, 0)


def _kernel(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    if mask.dtype == q.dtype:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # Half-precision inputs keep their float32 bias, which not every kernel accepts.
    scores = torch.matmul(q.to(mask.dtype), k.to(mask.dtype).transpose(2, 3)) * q.shape[-1] ** -0.5 + mask
    return torch.matmul(torch.softmax(scores, -1), v.to(mask.dtype)).to(q.dtype)


def _fused_forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, False, attn_mask=mask)


def _fused_rows(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return _fused_forward(q, k, v, mask)[0]


def _fused_backward(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, normaliser: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        d_out, q, k, v, out, normaliser, 0.0, False, attn_mask=mask
    )


@cache
def fused_works() -> bool:
    """Whether this torch has the private operators, as we know them: they have no stability promise."""
    q = torch.ones(1, 1, 1, 2, device="cpu")
    try:
        out, normaliser = _fused_forward(q, q, q, torch.zeros(1, 1, 1, 1, device="cpu"))
        grads = _fused_backward(q, q, q, q, out, normaliser, torch.zeros(1, 1, 1, 1, device="cpu"))
    except (AttributeError, TypeError, RuntimeError):
        return False
    return len(grads) == 3 and bool((out == q).all())


def _wide(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)
