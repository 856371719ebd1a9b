"""Independent, slow implementations: m(i, j) by the formula of each paper, one rotation per pair, plain softmax."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Distance = Callable[[int, int], float | None]
"""m(i, j), or None for a key that is not seen; only called for j ≤ i."""


def distances(spec: str, train_length: int) -> Distance:
    """m(i, j) of a spec, written out by hand."""
    half = train_length // 2
    table: dict[str, Distance] = {
        "identity": lambda i, j: i - j,
        "self-extend": lambda i, j: i - j if i - j < half else i // 8 - j // 8 + half - half // 8,
        "self-extend:group=3,window=5": lambda i, j: i - j if i - j < 5 else i // 3 - j // 3 + 5 - 5 // 3,
        "rerope": lambda i, j: min(i - j, half),
        "rerope:leak=4,window=6": lambda i, j: i - j if i - j < 6 else 6 + (i - j - 6) / 4,
        "window:window=6": lambda i, j: i - j if i - j < 6 else None,
        "streaming:sinks=2,window=6": lambda i, j: _streaming(i, j, 2, 6),
        "streaming:sinks=0,window=6": lambda i, j: _streaming(i, j, 0, 6),
    }
    return table[spec]


def _streaming(i: int, j: int, sinks: int, window: int) -> float | None:
    """Builds the cache as it is when token i has been added, and counts positions in it."""
    cache: list[int] = []
    for token in range(i + 1):
        cache.append(token)
        if len(cache) > sinks + window:
            del cache[sinks]
    return len(cache) - 1 - cache.index(j) if j in cache else None


def attention(
    q_HTK: Tensor,
    k_HTK: Tensor,
    v_HTK: Tensor,
    m: Distance,
    theta_F: Tensor | None,
    bias: Callable[[int], Tensor] | None,
) -> Tensor:
    """softmax over j of q_i R(m(i, j)) k_j / √K + bias(m), one pair at a time."""
    heads, tokens, width = q_HTK.shape
    scores_HTT = torch.full((heads, tokens, tokens), -math.inf, dtype=q_HTK.dtype)
    for i in range(tokens):
        for j in range(i + 1):
            distance = m(i, j)
            if distance is None:
                continue
            q_H, k_H = q_HTK[:, i], k_HTK[:, j]
            if theta_F is not None:
                left, right = q_H.chunk(2, -1)
                cos, sin = (distance * theta_F).cos(), (distance * theta_F).sin()
                q_H = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
            scores_HTT[:, i, j] = (q_H * k_H).sum(-1) / math.sqrt(width)
            if bias is not None:
                scores_HTT[:, i, j] += bias(int(distance))
    return scores_HTT.softmax(-1) @ v_HTK


def decoder_logits(decoder: Any, ids_T: Tensor, m: Distance) -> Tensor:
    """Logits of one of our decoders, written out from its weights; every layer has its own scheme and window."""
    positions, heads = torch.arange(len(ids_T)), decoder.config.heads
    x_TD = decoder.embedding.weight[ids_T]
    for number, block in enumerate(decoder.blocks):
        scheme, window = decoder.scheme.of_layer(number), decoder.windows[number]
        angles, table_HN = scheme.angles(positions), scheme.bias(positions)
        theta_F = None if angles is None else angles[1]  # the angles at position 1 are the frequencies
        bias = None if table_HN is None else lambda distance, table_HN=table_HN: table_HN[:, distance]
        qkv = block.qkv(block.attention_norm(x_TD)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(0, 1) for part in qkv)
        mixed_HTK = attention(q, k, v, _within(m, window), theta_F, bias)
        x_TD = x_TD + block.attention_out(mixed_HTK.transpose(0, 1).flatten(1))
        x_TD = x_TD + block.mlp_out(F.gelu(block.mlp_in(block.mlp_norm(x_TD))))
    return decoder.head(decoder.norm(x_TD))


def _within(m: Distance, window: int | None) -> Distance:
    """The same distances, of keys in a window only."""
    return m if window is None else lambda i, j: m(i, j) if i - j < window else None


def llama_logits(model: Any, ids_T: Tensor, m: Distance) -> Tensor:
    """Logits of a transformers Llama, written out from its weights."""
    config, inner = model.config, model.model
    theta_F = inner.rotary_emb.inv_freq.double()
    x_TD = inner.embed_tokens.weight[ids_T]
    for layer in inner.layers:
        normed = layer.input_layernorm(x_TD)
        states = (getattr(layer.self_attn, f"{name}_proj")(normed) for name in "qkv")
        q, k, v = (part.unflatten(-1, (-1, config.head_dim)).transpose(0, 1) for part in states)
        groups = len(q) // len(k)
        mixed = attention(q, k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0), m, theta_F, None)
        x_TD = x_TD + layer.self_attn.o_proj(mixed.transpose(0, 1).flatten(1))
        x_TD = x_TD + layer.mlp(layer.post_attention_layernorm(x_TD))
    return model.lm_head(inner.norm(x_TD))
