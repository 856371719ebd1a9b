"""Simple reference implementations of what fieldlens computes efficiently."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from fieldlens.schemes.base import Scheme, ScoreBlock


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scheme: Scheme,
    window: int | None,
    q_positions: Tensor,
    k_positions: Tensor,
    x: Tensor | None = None,
) -> Tensor:
    """Attention from the full T × S matrix. Positions are (B, T) and (B, S); `x` is the layer's input, (B, S, D)."""
    batch, heads, t, width = q.shape
    s = k.shape[2]
    length = torch.maximum(q_positions.amax(1, keepdim=True), k_positions.amax(1, keepdim=True)) + 1
    q, k = rotate(q, scheme, q_positions, length, 1), rotate(k, scheme, k_positions, length, -1)
    out = []
    for b in range(batch):
        distance = q_positions[b][:, None] - k_positions[b][None, :]
        allowed = (distance >= 0) & (k_positions[b] >= 0)[None, :]
        if window is not None:
            allowed = allowed & (k_positions[b][None, :] + window > q_positions[b][:, None])
        q_b = q[b] * query_factor(scheme, q_positions[b], allowed.sum(-1)).to(q.dtype)
        scores = q_b @ k[b].transpose(-1, -2) / np.sqrt(width)
        bias = scheme.bias(distance.clamp(min=0).flatten())
        if bias is not None:
            scores = scores + bias.to(scores.dtype).view(heads, t, s)
        if x is not None:
            scores = scores + content_bias(scheme, x[b : b + 1], q_positions[b], k_positions[b]).to(scores.dtype)
        scores = own_logits(scheme, scores, q_b, k[b], q_positions[b], k_positions[b], allowed, x, b)
        scores = scores.masked_fill(~allowed, -torch.inf)
        scores = scores.masked_fill(~allowed.any(-1, keepdim=True), 0.0)
        sink = scheme.softmax_options.sink_H if scheme.softmax_options is not None else scheme.sink_logit()
        if sink is not None:
            scores = torch.cat([scores, sink.to(scores.dtype)[:, None, None].expand(-1, t, 1)], -1)
        weights = torch.softmax(scores, -1)[..., :s] * allowed.any(-1, keepdim=True)
        out.append(weights @ v[b])
    return torch.stack(out)


def query_factor(scheme: Scheme, positions: Tensor, visible: Tensor) -> Tensor:
    """The factor of each query: (H or 1, T, 1)."""
    factor = torch.full((1, len(positions)), scheme.score_factor, dtype=torch.float64)
    visible = visible.clamp(min=1).double()
    own = scheme.query_scale(positions[None, None], visible[None, None])
    if own is not None:
        factor = factor * torch.atleast_3d(own.expand(1, -1, len(positions)) if own.ndim > 1 else own[None, None])[0]
    if scheme.softmax_options is not None and scheme.softmax_options.ssmax_H is not None:
        factor = factor * scheme.softmax_options.ssmax_H.double()[:, None] * visible.log()
    elif scheme.softmax_options is not None and scheme.softmax_options.logits == "logn":
        factor = factor * torch.where(visible > scheme.train_length, visible.log() / np.log(scheme.train_length), 1.0)
    return factor[..., None]


def content_bias(scheme: Scheme, x: Tensor, q_positions: Tensor, k_positions: Tensor) -> Tensor:
    """What the scheme adds to scores from the input of the layer: (H or 1, T, S)."""
    total = torch.zeros(1, len(q_positions), len(k_positions), dtype=torch.float64)
    bias, decay = scheme.key_bias(x), scheme.log_decay(x)
    if bias is not None:
        total = total + bias[0, :, None].double()
    if decay is not None:  # Σ over the tokens m between key j and query i
        real = decay[0].double() * (k_positions >= 0)
        order = k_positions.argsort()
        sums = F.pad(real[:, order].cumsum(1), (1, 0))
        up_to = [sums[:, torch.searchsorted(k_positions[order], at, right=True)] for at in (q_positions, k_positions)]
        total = total + up_to[0][:, :, None] - up_to[1][:, None]
    return total


def own_logits(
    scheme: Scheme, scores: Tensor, q: Tensor, k: Tensor, q_positions: Tensor, k_positions: Tensor, allowed: Tensor,
    x: Tensor | None, b: int,
) -> Tensor:  # fmt: skip
    """Logits of a scheme that computes with scores, from the whole matrix at once."""
    q_features = k_features = None
    if x is not None:
        q_features = scheme.query_features(x[b : b + 1, -len(q_positions) :])
        k_features = scheme.key_features(x[b : b + 1])
    block = ScoreBlock(
        scores[None], q[None], k[None], q_features, k_features, q_positions[None], k_positions[None], allowed[None]
    )
    return scheme.attention_logits(block)[0]


def rotate(x: Tensor, scheme: Scheme, positions: Tensor, length: Tensor, sign: int) -> Tensor:
    """Rotate pairs as complex numbers, (x_j + i·x_{j+K/2})·e^{iθ}, and stretch queries (sign 1) and keys (-1)."""
    angles = scheme.angles(positions, length) if scheme.by_length else scheme.angles(positions)  # type: ignore[call-arg]
    if angles is None:
        return x
    magnitudes = scheme.magnitudes(positions)
    sizes = torch.ones_like(angles) if magnitudes is None else magnitudes**sign
    half = x.shape[-1] // 2
    wide = torch.promote_types(x.dtype, torch.float32)
    rotated = torch.complex(x[..., :half].to(wide), x[..., half:].to(wide)) * torch.polar(sizes, angles).to(
        torch.complex128 if wide == torch.float64 else torch.complex64
    ).unsqueeze(1)
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
