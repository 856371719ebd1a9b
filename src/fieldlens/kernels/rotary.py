"""Rotary embeddings: queries and keys are rotated by angles that depend on their positions."""

import torch
from torch import Tensor

from fieldlens.schemes.base import Scheme

RotaryTable = tuple[Tensor, Tensor]
"""Cosines and sines of the rotation angles of queries or keys, times their magnitudes."""


def rotary_table(angles: Tensor | None, like: Tensor, magnitudes: Tensor | None = None) -> RotaryTable | None:
    """Cosines and sines of a scheme's angles, (T, K/2) or (B, T, K/2), broadcastable to (B, H, T, K/2)."""
    if angles is None:
        return None
    cos, sin = angles.cos(), angles.sin()
    if magnitudes is not None:
        cos, sin = cos * magnitudes, sin * magnitudes
    if angles.ndim > 2:
        cos, sin = cos[:, None], sin[:, None]
    return cos.to(accumulation_dtype(like)), sin.to(accumulation_dtype(like))


def rotary_tables(
    scheme: Scheme, q_positions: Tensor, new_positions: Tensor, k_positions: Tensor, like: Tensor
) -> tuple[RotaryTable | None, RotaryTable | None]:
    """The tables of the queries and of the new keys; `k_positions` are those of all keys, new or cached.

    Queries and new keys share one table if their positions are the same tensor and magnitudes do not differ.
    """
    sources = [q_positions] if q_positions is new_positions else [q_positions, new_positions]
    if scheme.by_length:
        last = max(q_positions.ndim, k_positions.ndim) > 1
        ends = [torch.atleast_2d(positions).amax(1, keepdim=True) for positions in (q_positions, k_positions)]
        length = torch.maximum(*ends) + 1  # of each row
        angles = [scheme.angles(p, length if last else length[0]) for p in sources]  # type: ignore[call-arg]
    else:
        angles = [scheme.angles(p) for p in sources]
    if not scheme.stretches or angles[0] is None:
        tables = [rotary_table(part, like) for part in angles]
        return tables[0], tables[-1]
    q_magnitudes, k_magnitudes = (scheme.magnitudes(p) for p in (q_positions, new_positions))
    assert k_magnitudes is not None
    return rotary_table(angles[0], like, q_magnitudes), rotary_table(angles[-1], like, 1 / k_magnitudes)


def apply_rotary(x_BHTK: Tensor, table: RotaryTable | None) -> Tensor:
    """Rotate the pairs (j, j + K/2) of each vector; no-op if the table is None."""
    if table is None:
        return x_BHTK
    cos, sin = table
    left, right = x_BHTK.to(cos.dtype).chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x_BHTK.dtype)


def accumulation_dtype(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)
