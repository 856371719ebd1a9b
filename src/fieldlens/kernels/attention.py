"""Exact causal attention with a positional scheme. selection.py chooses the kernel; extension also calls cpu_flash.

Neither forward nor backward materialises an H·T·S tensor, including gradients of learned biases: see layout.py.
Schemes that compute with scores materialise one block of queries at a time: see general.py.
"""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.kernels import cpu_flash
from fieldlens.kernels.blocks import BlockAttention, OneMaskAttention, attend_whole, masked_attention
from fieldlens.kernels.content import KeyColumns, Update, key_bias, query_features, sums_at_queries
from fieldlens.kernels.flex import TooManyShapes, attend_flex, bias_form
from fieldlens.kernels.general import ScoreTerms, attend_general
from fieldlens.kernels.layout import (
    FEW,
    BlockLayout,
    Contiguous,
    Layout,
    OneMask,
    Scattered,
    check_positions,
    make_layout,
)
from fieldlens.kernels.rotary import RotaryTable, accumulation_dtype, apply_rotary, rotary_tables
from fieldlens.kernels.selection import Case, choose_kernel, wants_flex
from fieldlens.schemes.base import BiasForm, Scheme, widest_float
from fieldlens.schemes.window import check_window, min_window


def bias_table(scheme: Scheme, reach: int, like: Tensor) -> Tensor | None:
    """Biases of a scheme for distances 0..reach-1, in the dtype of `like` but at least float32: (H, N)."""
    table_HN = scheme.bias(torch.arange(reach, device=like.device))
    if table_HN is not None and table_HN.shape not in ((scheme.heads, reach), (1, reach)):
        expected = f"({scheme.heads}, {reach}) or (1, {reach})"
        raise BadInput(f"the bias of scheme '{scheme.name}' has shape {tuple(table_HN.shape)}, expected {expected}")
    return None if table_HN is None else table_HN.to(accumulation_dtype(like))


class Terms(NamedTuple):
    """What a scheme contributes to the attention of a layer, computed from positions and shared by layers."""

    scheme: Scheme
    layout: Layout
    bias: Tensor | None
    """Biases by distance as the layout expands them; for schemes that compute with scores, their table."""
    q_rotation: RotaryTable | None
    k_rotation: RotaryTable | None
    q_scale: Tensor | None
    """Factors of the queries, broadcastable to (B, H, T, 1)."""
    sink_H: Tensor | None
    new_positions: Tensor
    """Positions of the keys that are not yet in the cache."""
    q_positions: Tensor
    k_positions: Tensor
    plain: bool
    """Whether neither the input of the layer nor its scores matter, and there is no sink."""
    form: BiasForm | None
    """The bias in closed form, where a kernel may compute it."""


def scheme_terms(
    scheme: Scheme,
    q_positions: Tensor,
    new_positions: Tensor,
    k_positions: Tensor,
    like: Tensor,
    layout: Layout,
    table_HN: Tensor | None,
    copy: Terms | None = None,
) -> Terms:
    """The terms of a scheme for a layout of these positions, and its `bias_table` of at least the layout's reach.

    `copy` has the terms of a scheme with the same tables, at the same positions.
    """
    options = scheme.softmax_options
    sink_H = scheme.sink_logit() if scheme.has_sink else options.sink_H if options is not None else None
    if copy is not None:
        q_scale = _query_scale(scheme, q_positions, copy.layout, like)
        return copy._replace(scheme=scheme, q_scale=q_scale, sink_H=sink_H)
    if scheme.takes_scores:
        layout = Scattered(torch.atleast_2d(q_positions), torch.atleast_2d(k_positions), layout.window)
    plain = sink_H is None and not scheme.takes_scores and not scheme.takes_input
    bias = table_HN if scheme.takes_scores else expand_bias(table_HN, layout, like, plain)
    rotations = rotary_tables(scheme, q_positions, new_positions, k_positions, like)
    q_scale = _query_scale(scheme, q_positions, layout, like)
    form = bias_form(scheme, table_HN is not None, like) if wants_flex(like.device) else None
    return Terms(
        scheme, layout, bias, *rotations, q_scale, sink_H, new_positions, q_positions, k_positions, plain, form
    )


def expand_bias(table_HN: Tensor | None, layout: Layout, like: Tensor, plain: bool = True) -> Tensor | None:
    """The `bias` argument of the kernels, from a table by distance; None if plain causal attention suffices."""
    if table_HN is None:
        if layout.square and plain:
            return None
        table_HN = torch.zeros(1, layout.reach, dtype=accumulation_dtype(like), device=like.device)
    return layout.expand(table_HN)


def _query_scale(scheme: Scheme, q_positions: Tensor, layout: Layout, like: Tensor) -> Tensor | None:
    """The factors of the queries: of the scheme, its constant, and those of the option `logits`."""
    factor = None if scheme.score_factor == 1 else like.new_full((1, 1, 1), scheme.score_factor, dtype=torch.float64)
    if scheme.scales_queries or scheme.softmax_options is not None:
        visible_B1T = widest_float(layout.visible_counts().clamp(min=1))[:, None]
        factors = [scheme.query_scale(torch.atleast_2d(q_positions)[:, None], visible_B1T)]
        factors += [scheme.softmax_options.query_scale(visible_B1T)] if scheme.softmax_options is not None else []
        for other in factors:
            factor = other if factor is None else factor if other is None else factor * other
    if factor is None:
        return None
    shape = factor.shape
    if (
        factor.ndim > 3
        or shape[-1] not in (1, q_positions.shape[-1])
        or (factor.ndim > 1 and shape[-2] not in (1, scheme.heads))
    ):
        expected = f"(batch, {scheme.heads}, {q_positions.shape[-1]})"
        raise BadInput(f"query_scale() of scheme '{scheme.name}' returned shape {tuple(shape)}, expected {expected}")
    return factor.to(accumulation_dtype(like))[..., None]


def scale_queries(q_BHTK: Tensor, terms: Terms) -> Tensor:
    return q_BHTK if terms.q_scale is None else (q_BHTK * terms.q_scale).to(q_BHTK.dtype)


def attend(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, terms: Terms, x_BSD: Tensor | None, update: Update | None = None
) -> Tensor:
    """Attention of a layer from queries and keys that are not yet rotated.

    `x_BSD` is the input of the layer, which some schemes need; `update` appends new keys and values to a cache.
    """
    if torch.is_autocast_enabled(q_BHTK.device.type):  # it would round scores before biases are added
        with torch.autocast(q_BHTK.device.type, enabled=False):
            return attend(q_BHTK, k_BHSK, v_BHSK, terms, x_BSD, update)
    q_BHTK, k_BHSK = apply_rotary(q_BHTK, terms.q_rotation), apply_rotary(k_BHSK, terms.k_rotation)
    q_BHTK = scale_queries(q_BHTK, terms)
    if terms.plain:
        if update is not None:
            k_BHSK, v_BHSK = update(k_BHSK, v_BHSK)
        return attend_kernel(q_BHTK, k_BHSK, v_BHSK, terms.bias, terms.layout, form=terms.form)
    return _attend_with_content(q_BHTK, k_BHSK, v_BHSK, terms, x_BSD, update)


def _attend_with_content(
    q: Tensor, k: Tensor, v: Tensor, terms: Terms, x_BSD: Tensor | None, update: Update | None
) -> Tensor:
    """Attention with what the scheme computes from the input of the layer, with sinks, or with its own logits."""
    scheme, columns, q_features, bias_BHS, sums_BHS = terms.scheme, None, None, None, None
    if scheme.takes_input:
        if x_BSD is None:
            raise BadInput(f"scheme '{scheme.name}' needs the input of the layer: pass it as x_BSD")
        columns = KeyColumns(scheme, x_BSD, None if terms.layout.ordered else torch.atleast_2d(terms.new_positions) < 0)
        k, v = columns.update(k, v, update)
        q_features = query_features(scheme, x_BSD[:, -q.shape[2] :])
        bias_BHS, sums_BHS = key_bias(columns, None if terms.layout.ordered else torch.atleast_2d(terms.k_positions))
    elif update is not None:
        k, v = update(k, v)
    sink_BHT = None
    if terms.sink_H is not None:
        sink_BHT = widest_float(terms.sink_H)[None, :, None].expand(len(q), -1, q.shape[2])
        if sums_BHS is not None:  # sinks do not decay: take back what the biases of keys leave out
            positions = torch.atleast_2d(terms.q_positions), torch.atleast_2d(terms.k_positions)
            sink_BHT = sink_BHT - sums_at_queries(sums_BHS, *positions)
    if scheme.takes_scores:
        assert isinstance(terms.layout, Scattered)
        k_features = None if columns is None else columns.parts.get("key_features")
        score_terms = ScoreTerms(terms.bias, bias_BHS, sink_BHT, q_features, k_features)
        return attend_general(scheme, q, k, v, terms.layout, score_terms)
    return attend_kernel(q, k, v, terms.bias, terms.layout, bias_BHS, sink_BHT, terms.form)


def attend_kernel(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    bias: Tensor | None,
    layout: Layout,
    key_bias_BHS: Tensor | None = None,
    sink_BHT: Tensor | None = None,
    form: BiasForm | None = None,
) -> Tensor:
    """Attention over rotated queries and keys, with the result of `expand_bias` for this layout."""
    if bias is None:
        return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, is_causal=True)
    # The CPU kernel assumes stride 1 on the last axis and does not check it.
    q_BHTK, k_BHSK, v_BHSK = (x if x.stride(-1) == 1 else x.contiguous() for x in (q_BHTK, k_BHSK, v_BHSK))
    more = key_bias_BHS is not None or sink_BHT is not None
    if isinstance(layout, OneMask):
        if more:
            return OneMaskAttention.apply(q_BHTK, k_BHSK, v_BHSK, bias, key_bias_BHS, sink_BHT)
        return masked_attention(q_BHTK, k_BHSK, v_BHSK, bias)
    assert isinstance(layout, BlockLayout)
    case = _case(q_BHTK, bias, layout, sink_BHT, (q_BHTK, k_BHSK, v_BHSK, bias, key_bias_BHS, sink_BHT))
    kernel = choose_kernel(case).kernel
    if kernel == "flex":
        assert isinstance(layout, Contiguous)
        try:
            return attend_flex(q_BHTK, k_BHSK, v_BHSK, bias, layout, form, key_bias_BHS, sink_BHT)
        except TooManyShapes:
            warnings.warn("FlexAttention has been compiled for too many shapes: further ones use blocks", stacklevel=2)
            kernel = "blocks"
    if q_BHTK.shape[2] == 1 and not torch.is_grad_enabled() and not more and kernel != "sdpa":
        return _attend_single_query(q_BHTK, k_BHSK, v_BHSK, bias, layout, kernel == "cpu_flash")
    return KERNELS[kernel](q_BHTK, k_BHSK, v_BHSK, bias, layout, key_bias_BHS, sink_BHT)


KERNELS: dict[str, Callable[..., Tensor]] = {
    "cpu_flash": cpu_flash.CpuFlashAttention.apply,
    "blocks": BlockAttention.apply,
    "sdpa": attend_whole,
}


def _case(q: Tensor, bias: Tensor, layout: BlockLayout, sink: Tensor | None, inputs: tuple[Tensor | None, ...]) -> Case:
    """What the choice of a kernel depends on, for these inputs."""
    return Case(
        q.device,
        q.dtype,
        q.shape[3],
        consecutive=isinstance(layout, Contiguous) and layout.q_offset + layout.q_count == layout.k_count,
        few=q.shape[2] <= FEW,
        fixed=not bias.requires_grad and bias.dtype == q.dtype,
        gradient=torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs),
        sink=sink is not None,
    )


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
    x_BSD: Tensor | None = None,
) -> Tensor:
    """Exact causal attention with a positional scheme; queries and keys are not yet rotated: (B, H, T, K).

    By default the keys are at positions 0..S-1 and the queries are the last T of them. If both the argument `window`
    and the scheme's window are set, the smaller one applies. A key at a negative position is padding. Schemes that
    depend on content need `x_BSD`, the input of the layer at the keys; the queries are then the last T of them.
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
    table_HN = bias_table(scheme, layout.reach, q_BHTK)
    terms = scheme_terms(scheme, q_positions, k_positions, k_positions, q_BHTK, layout, table_HN)
    return attend(q_BHTK, k_BHSK, v_BHSK, terms, x_BSD)


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
