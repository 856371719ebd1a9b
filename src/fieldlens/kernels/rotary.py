"""Rotary embeddings: queries and keys are rotated by angles that depend on their positions."""

import torch
from torch import Tensor

RotaryTable = tuple[Tensor, Tensor]
"""Cosines and sines of the rotation angles of queries or keys."""


def rotary_table(angles: Tensor | None, like: Tensor) -> RotaryTable | None:
    """Cosines and sines of a scheme's angles, (T, K/2) or (B, T, K/2), broadcastable to (B, H, T, K/2)."""
    if angles is None:
        return None
    angles = angles if angles.ndim == 2 else angles[:, None]
    return angles.cos().to(accumulation_dtype(like)), angles.sin().to(accumulation_dtype(like))


def apply_rotary(x_BHTK: Tensor, table: RotaryTable | None) -> Tensor:
    """Rotate the pairs (j, j + K/2) of each vector; no-op if the table is None."""
    if table is None:
        return x_BHTK
    cos, sin = table
    left, right = x_BHTK.to(cos.dtype).chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x_BHTK.dtype)


def accumulation_dtype(like: Tensor) -> torch.dtype:
    return torch.promote_types(like.dtype, torch.float32)
