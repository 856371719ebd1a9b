"""Exact causal attention with a bias by distance: the only place that calls a kernel.

No H·T·S tensor is ever made, forward or backward, to the inputs or to learned biases: see layout.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.kernels import cpu_flash
from fieldlens.kernels.blocks import BlockAttention, masked_attention
from fieldlens.kernels.layout import Layout, check_positions, layout
from fieldlens.kernels.rotary import accumulation_dtype, apply_rotary, rotary_table
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.window import check_window, min_window


def bias_table(scheme: Scheme, reach: int, like: Tensor) -> Tensor | None:
    """A scheme's biases for distances 0..reach-1 in the type of the computation, never below float32: (H, N)."""
    table_HN = scheme.bias(torch.arange(reach, device=like.device))
    if table_HN is not None and table_HN.shape not in ((scheme.heads, reach), (1, reach)):
        wanted = f"one row for each of {scheme.heads} heads, or one for all, of {reach} distances"
        raise BadInput(f"the bias of scheme '{scheme.name}' has the shape {tuple(table_HN.shape)}: {wanted}")
    return None if table_HN is None else table_HN.to(accumulation_dtype(like))


def expand_bias(table_HN: Tensor | None, where: Layout, like: Tensor) -> Tensor | None:
    """What `attend` adds to scores: None when plain causal attention is all there is to do."""
    if table_HN is None:
        if where.square:
            return None
        table_HN = torch.zeros(1, where.reach, dtype=accumulation_dtype(like), device=like.device)
    return where.expand(table_HN)


def attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor | None, where: Layout) -> Tensor:
    """Attention of turned queries and keys, with the bias that `spread_bias` made for this layout."""
    if bias is None:
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, is_causal=True)
    # The kernel reads along the last axis with steps of one, and says nothing when they are not.
    q_BHTK, k_BHSK, v_BHSK = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHTK, k_BHSK, v_BHSK))
    fixed = not bias.requires_grad and bias.dtype == q_BHTK.dtype
    fused = fixed and q_BHTK.device.type == "cpu" and cpu_flash.available()
    if q_BHTK.shape[2] == 1 and not torch.is_grad_enabled():
        return _one(q_BHTK, k_BHSK, v_BHSK, bias, where, fused)
    return (cpu_flash.CpuFlashAttention if fused else BlockAttention).apply(q_BHTK, k_BHSK, v_BHSK, bias, where)


def _one(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor, where: Layout, fused: bool) -> Tensor:
    """One query and no gradients, as when text is generated: the same kernel without the frame around it."""
    ((queries, keys),) = where.blocks(1)
    kernel = cpu_flash.forward_only if fused else masked_attention
    rows = kernel(q_BHTK, k_BHSK[:, :, keys], v_BHSK[:, :, keys], where.mask(bias, queries, keys))
    return where.zero_fully_masked(rows, queries)


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
    where = layout(q_positions, k_positions, min_window(window, scheme.window))
    bias = expand_bias(bias_table(scheme, where.reach, q_BHTK), where, q_BHTK)
    q_BHTK = apply_rotary(q_BHTK, rotary_table(scheme.angles(q_positions), q_BHTK))
    k_BHSK = apply_rotary(k_BHSK, rotary_table(scheme.angles(k_positions), k_BHSK))
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
