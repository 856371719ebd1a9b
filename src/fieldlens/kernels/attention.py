"""Exact causal attention with a bias by distance: selects the kernel; context extension also calls cpu_flash.

Neither forward nor backward materialises an H·T·S tensor, including gradients of learned biases: see layout.py.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.kernels import cpu_flash
from fieldlens.kernels.blocks import BlockAttention, masked_attention
from fieldlens.kernels.layout import BlockLayout, Layout, OneMask, check_positions, make_layout
from fieldlens.kernels.rotary import accumulation_dtype, apply_rotary, rotary_table
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.window import check_window, min_window


def bias_table(scheme: Scheme, reach: int, like: Tensor) -> Tensor | None:
    """Biases of a scheme for distances 0..reach-1, in the dtype of `like` but at least float32: (H, N)."""
    table_HN = scheme.bias(torch.arange(reach, device=like.device))
    if table_HN is not None and table_HN.shape not in ((scheme.heads, reach), (1, reach)):
        expected = f"({scheme.heads}, {reach}) or (1, {reach})"
        raise BadInput(f"the bias of scheme '{scheme.name}' has shape {tuple(table_HN.shape)}, expected {expected}")
    return None if table_HN is None else table_HN.to(accumulation_dtype(like))


def expand_bias(table_HN: Tensor | None, layout: Layout, like: Tensor) -> Tensor | None:
    """The `bias` argument of `attend`, from a table by distance; None if plain causal attention suffices."""
    if table_HN is None:
        if layout.square:
            return None
        table_HN = torch.zeros(1, layout.reach, dtype=accumulation_dtype(like), device=like.device)
    return layout.expand(table_HN)


def attend(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor | None, layout: Layout) -> Tensor:
    """Attention over rotated queries and keys, with the result of `expand_bias` for this layout."""
    if bias is None:
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, is_causal=True)
    # The CPU kernel assumes stride 1 on the last axis and does not check it.
    q_BHTK, k_BHSK, v_BHSK = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHTK, k_BHSK, v_BHSK))
    if isinstance(layout, OneMask):
        return masked_attention(q_BHTK, k_BHSK, v_BHSK, bias)
    assert isinstance(layout, BlockLayout)
    fixed = not bias.requires_grad and bias.dtype == q_BHTK.dtype
    fused = fixed and q_BHTK.device.type == "cpu" and cpu_flash.available()
    if q_BHTK.shape[2] == 1 and not torch.is_grad_enabled():
        return _attend_single_query(q_BHTK, k_BHSK, v_BHSK, bias, layout, fused)
    return (cpu_flash.CpuFlashAttention if fused else BlockAttention).apply(q_BHTK, k_BHSK, v_BHSK, bias, layout)


def _attend_single_query(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bias: Tensor, layout: BlockLayout, fused: bool
) -> Tensor:
    """One query without gradients, as in generation: calls the kernel directly, without the autograd function."""
    ((queries, keys),) = layout.blocks(1)
    kernel = cpu_flash.forward_only if fused else masked_attention
    rows = kernel(q_BHTK, k_BHSK[:, :, keys], v_BHSK[:, :, keys], layout.mask(bias, queries, keys))
    return layout.zero_fully_masked(rows, queries)


def attention(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    scheme: Scheme,
    window: int | None = None,
    q_positions: Tensor | None = None,
    k_positions: Tensor | None = None,
) -> Tensor:
    """Exact causal attention with a positional scheme; queries and keys are not yet rotated: (B, H, T, K).

    By default the keys are at positions 0..S-1 and the queries are the last T of them. If both the argument `window`
    and the scheme's window are set, the smaller one applies. A key at a negative position is padding.
    """
    _check_inputs(q_BHTK, k_BHSK, v_BHSK, scheme)
    check_window(window)
    t, s = q_BHTK.shape[2], k_BHSK.shape[2]
    if k_positions is None:
        k_positions = torch.arange(s, device=k_BHSK.device)
    if q_positions is None:
        if t > s:
            raise BadInput(f"{t} queries for {s} keys: pass the positions of the queries as q_positions")
        q_positions = k_positions[..., s - t :]
    check_positions("q_positions", q_positions, q_BHTK.shape[0], t)
    check_positions("k_positions", k_positions, q_BHTK.shape[0], s)
    layout = make_layout(q_positions, k_positions, min_window(window, scheme.window))
    bias = expand_bias(bias_table(scheme, layout.reach, q_BHTK), layout, q_BHTK)
    q_BHTK = apply_rotary(q_BHTK, rotary_table(scheme.angles(q_positions), q_BHTK))
    k_BHSK = apply_rotary(k_BHSK, rotary_table(scheme.angles(k_positions), k_BHSK))
    return attend(q_BHTK, k_BHSK, v_BHSK, bias, layout)


def _check_inputs(q: Tensor, k: Tensor, v: Tensor, scheme: Scheme) -> None:
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape or q.shape[:2] != k.shape[:2] or q.shape[3] != k.shape[3]:
        raise BadInput(f"incompatible shapes: {shapes}")
    if not q.dtype == k.dtype == v.dtype:
        raise BadInput(f"q, k and v must have the same dtype, got {q.dtype}, {k.dtype} and {v.dtype}")
    if q.shape[2] < 1 or k.shape[2] < 1:
        raise BadInput(f"at least one query and one key are required, got {shapes}")
    if q.shape[1] != scheme.heads or q.shape[3] != scheme.head_width:
        expected = f"the scheme has {scheme.heads} heads of width {scheme.head_width}"
        raise BadInput(f"q has {q.shape[1]} heads of width {q.shape[3]}, but {expected}")
