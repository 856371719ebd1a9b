"""Simple reference implementations of what fieldlens computes efficiently."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldlens.schemes.base import Scheme


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    window: int | None,
    q_positions: Tensor,
    k_positions: Tensor,
) -> Tensor:
    """Attention from the full T × S matrix. Positions are (B, T) and (B, S)."""
    batch, heads, t, width = q.shape
    s = k.shape[2]
    q, k = rotate(q, scheme, q_positions), rotate(k, scheme, k_positions)
    out = []
    for b in range(batch):
        distance = q_positions[b][:, None] - k_positions[b][None, :]
        allowed = (distance >= 0) & (k_positions[b] >= 0)[None, :]
        if window is not None:
            allowed = allowed & (k_positions[b][None, :] + window > q_positions[b][:, None])
        scores = q[b] @ k[b].transpose(-1, -2) / np.sqrt(width)
        bias = scheme.bias(distance.clamp(min=0).flatten())
        if bias is not None:
            scores = scores + bias.to(scores.dtype).view(heads, t, s)
        scores = scores.masked_fill(~allowed, -torch.inf)
        scores = scores.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
        weights = torch.softmax(scores, -1) * allowed.any(-1, keepdim=True)
        out.append(weights @ v[b])
    return torch.stack(out)


def rotate(x: Tensor, scheme: Scheme, positions: Tensor) -> Tensor:
    """Rotate pairs as complex numbers: (x_j + i·x_{j+K/2})·e^{iθ}."""
    angles = scheme.angles(positions)
    if angles is None:
        return x
    half = x.shape[-1] // 2
    wide = torch.promote_types(x.dtype, torch.float32)
    rotated = torch.complex(x[..., :half].to(wide), x[..., half:].to(wide)) * torch.polar(
        torch.ones_like(angles), angles
    ).to(torch.complex128 if wide == torch.float64 else torch.complex64).unsqueeze(1)
    return torch.cat([rotated.real, rotated.imag], -1).to(x.dtype)


def bias(name: str, heads: int, distances: np.ndarray, **parameters: Any) -> np.ndarray:
    """Biases by distance in float64, derived from the papers, not from our code: (H, N)."""
    return np.stack(
        [_bias_of_head(name, n, heads, distances.astype(np.float64), parameters) for n in range(1, heads + 1)]
    )


def _bias_of_head(name: str, n: int, heads: int, d: np.ndarray, parameters: dict[str, Any]) -> np.ndarray:
    ratio = 8.0 * n / heads
    if name == "sandwich":
        dims, first = parameters.get("dims", 128), parameters.get("first", 0)
        # cos a·cos b + sin a·sin b of the two sinusoidal embeddings, the query at a fixed far position
        far = float(d.max())
        total = np.zeros_like(d)
        for i in range(first, first + dims // 2):
            w = np.exp(-2 * i / dims * np.log(10000.0))
            total += np.sin(far * w) * np.sin((far - d) * w) + np.cos(far * w) * np.cos((far - d) * w)
        return (total - dims / 2) / ratio
    if name == "smoothed":
        return (-6.6 * np.log(1 + d) - 6.4) / ratio
    if name == "alibi":
        return -d / 2.0**ratio
    if name == "kerple":
        p, a = parameters["p"][n - 1], parameters["a"][n - 1]
        return -p * np.log(1 + a * d) if parameters.get("kind", "log") == "log" else -a * np.power(d, p)
    assert name == "t5"
    edges = np.array([*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113])
    buckets = np.searchsorted(edges, d, side="right") - 1
    return parameters["table"][buckets, n - 1] * parameters["scale"]
