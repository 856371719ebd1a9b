"""Exact attention over the regions of an extension method, in blocks of queries; no H·T·S tensor is materialised.

A block of queries reads, for each region, only the keys of that region. The scores of the regions are put side by side
before the softmax, so that every visible key counts once.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from fieldlens.extension.base import Region
from fieldlens.kernels import cpu_flash

ROWS = 128
"""Queries per block; the best of 64 … 512 at 2048 tokens."""

FUSED_ROWS = 192
"""Queries per block of the fused kernel; the best of 128 … 512 at 2048 tokens."""

BiasAt = Callable[[Tensor], Tensor]
"""Biases at distances (t, s) of one text: (H, t, s)."""


@dataclass(frozen=True)
class RegionInputs:
    """Queries and keys as one region rotates them, (B, H, T, K) and (B, H, S, K)."""

    region: Region
    q: Tensor
    k: Tensor


@dataclass(frozen=True)
class Visibility:
    """Positions of queries and keys, (B or 1, T) and (B or 1, S), and what hides keys besides the regions."""

    q_positions: Tensor
    k_positions: Tensor
    mask: Tensor | None = None
    """Keys that the model itself lets queries see: (B or 1, 1, T, S)."""
    window: int | None = None

    def keys(self, region: Region, rows: slice) -> slice:
        """The keys that some query of a block may see in a region."""
        block = self.q_positions[:, rows]
        lowest, highest = block.min(), block.max()
        inside_BS = self.k_positions <= highest - region.low
        high = min((limit for limit in (region.high, self.window) if limit is not None), default=None)
        if high is not None:
            inside_BS = inside_BS & (self.k_positions > lowest - high)
        if region.first is not None:
            inside_BS = inside_BS & (self.k_positions < region.first)
        indices = inside_BS.any(0).nonzero()
        return slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 0)

    def visible(self, region: Region, rows: slice, keys: slice) -> Tensor:
        """Which keys of a block its queries see: (B or 1, 1, t, s)."""
        i_Bt1, j_B1s = self.q_positions[:, rows, None], self.k_positions[:, None, keys]
        inside = region.contains(i_Bt1, j_B1s) & (j_B1s >= 0)
        if self.window is not None:
            inside = inside & (i_Bt1 - j_B1s < self.window)
        return inside[:, None] if self.mask is None else inside[:, None] & self.mask[:, :, rows, keys]


def attend(
    inputs: Sequence[RegionInputs], v_BHSV: Tensor, visibility: Visibility, scale: float, bias_at: BiasAt | None = None
) -> Tensor:
    """Attention of queries over the keys of all regions: (B, H, T, V); arbitrary for a query without keys (padding)."""
    queries = visibility.q_positions.shape[1]
    recompute = torch.is_grad_enabled() and any(x.requires_grad for x in (v_BHSV, *(part.q for part in inputs)))
    if not recompute and bias_at is None and _can_fuse(inputs, v_BHSV):
        stretch = scale * v_BHSV.shape[-1] ** 0.5  # the kernel divides by the square root of the width
        stretched = inputs if stretch == 1 else [RegionInputs(part.region, part.q * stretch, part.k) for part in inputs]
        blocks = (slice(start, min(start + FUSED_ROWS, queries)) for start in range(0, queries, FUSED_ROWS))
        return torch.cat([_fused_block(stretched, v_BHSV, visibility, rows) for rows in blocks], 2)
    outputs = []
    for start in range(0, queries, ROWS):
        block = (inputs, v_BHSV, visibility, scale, bias_at, slice(start, min(start + ROWS, queries)))
        outputs.append(checkpoint(_attend_block, *block, use_reentrant=False) if recompute else _attend_block(*block))
    return torch.cat(outputs, 2)


def _can_fuse(inputs: Sequence[RegionInputs], v_BHSV: Tensor) -> bool:
    """Whether the fused CPU kernel takes these tensors; it gives no gradient of its normaliser."""
    wide = all(
        part.q.dtype in (torch.float32, torch.float64) and part.q.shape[-1] == v_BHSV.shape[-1] for part in inputs
    )
    return wide and v_BHSV.device.type == "cpu" and cpu_flash.available()


def _fused_block(inputs: Sequence[RegionInputs], v_BHSV: Tensor, visibility: Visibility, rows: slice) -> Tensor:
    """Attention of a block of queries, region by region: each output counts by its share of Σ exp of the scores."""
    outputs, normalisers = [], []
    for part in inputs:
        keys = visibility.keys(part.region, rows)
        if keys.stop == keys.start:
            continue
        hidden = ~visibility.visible(part.region, rows, keys)
        # finite: a row without keys in this region gets a normaliser so small that it does not count
        mask = torch.zeros(hidden.shape, dtype=v_BHSV.dtype).masked_fill_(hidden, torch.finfo(v_BHSV.dtype).min)
        q, k, v = (x if x.stride(-1) == 1 else x.contiguous() for x in (part.q, part.k, v_BHSV))
        output, normaliser = cpu_flash.with_normaliser(q[:, :, rows], k[:, :, keys], v[:, :, keys], mask)
        outputs.append(output)
        normalisers.append(normaliser)
    if not outputs:
        return v_BHSV.new_zeros(*inputs[0].q[:, :, rows].shape)
    if len(outputs) == 1:
        return outputs[0]
    shares = torch.softmax(torch.stack(normalisers), 0).to(v_BHSV.dtype)[..., None]
    return (torch.stack(outputs) * shares).sum(0)


def _attend_block(
    inputs: Sequence[RegionInputs],
    v_BHSV: Tensor,
    visibility: Visibility,
    scale: float,
    bias_at: BiasAt | None,
    rows: slice,
) -> Tensor:
    scores, values = [], []
    for part in inputs:
        keys = visibility.keys(part.region, rows)
        if keys.stop == keys.start:
            continue
        wide = torch.promote_types(part.q.dtype, torch.float32)
        scores_BHts = (part.q[:, :, rows].to(wide) * scale) @ part.k[:, :, keys].to(wide).transpose(2, 3)
        if bias_at is not None:
            m_ts = part.region.a(visibility.q_positions[0, rows, None]) - part.region.b(visibility.k_positions[0, keys])
            scores_BHts = scores_BHts + bias_at(m_ts)
        visible_Bts = visibility.visible(part.region, rows, keys)
        scores.append(scores_BHts.masked_fill(~visible_Bts, torch.finfo(wide).min))
        values.append(v_BHSV[:, :, keys])
    if not scores:
        return v_BHSV.new_zeros(*inputs[0].q[:, :, rows].shape[:3], v_BHSV.shape[-1])
    weights = torch.softmax(torch.cat(scores, -1), -1)
    parts = weights.to(v_BHSV.dtype).split([part.shape[-1] for part in scores], -1)
    return sum((part @ value for part, value in zip(parts[1:], values[1:], strict=True)), parts[0] @ values[0])
