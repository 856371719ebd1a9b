"""Equation 3 of the paper on a trained Sinusoidal model: the semantic and positional parts of its attention scores.

The first layer sees x = e + p, a token embedding and a position embedding. Given the standard deviation σ of x, its
layer norm is linear: LN(e + p) = g∘(e - mean e)/σ + g∘(p - mean p)/σ + b. Queries and keys are therefore sums of a
semantic, a positional and a constant vector, and their product is a sum of four parts:

semantic      e_m · e_n
cross         e_m · p_n + p_m · e_n
positional    p_m · p_n
constant      every product with a constant vector

The paper drops the cross part and replaces the positional one by the inner product of the embeddings, Σ cos θ_i(m - n).
Softmax ignores what all keys of a query share, so parts are compared after subtracting their mean over the keys.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.models.decoder import Decoder

PARTS = ("semantic", "cross", "positional", "constant")


@dataclass(frozen=True)
class ScoreParts:
    """Parts of the scores of the first layer, over the keys that each query sees, at some queries.

    Parameters
    ----------
    shares
        Covariance of a part with the score over the keys, divided by the variance of the score: the shares sum to 1.
    curves
        Mean of each part by distance 0, 1, …, over texts, heads and queries.
    similarity
        Correlation over distances of the mean positional part with the inner product p_m · p_n.
    """

    shares: dict[str, float]
    curves: dict[str, list[float]]
    similarity: float

    def to_json(self) -> dict[str, Any]:
        return {"shares": self.shares, "curves": self.curves, "similarity": self.similarity}


@torch.no_grad()
def first_layer_scores(decoder: Decoder, ids_BT: Tensor) -> dict[str, Tensor]:
    """The parts of q·k/√K in the first layer, in float64: (B, H, T, S) each."""
    positions = torch.arange(ids_BT.shape[1])
    p_TD = decoder.scheme.embedding(positions)
    if p_TD is None:
        raise BadInput(f"scheme '{decoder.config.scheme}' adds no position embeddings: use a sinusoidal model")
    block: Any = decoder.blocks[0]
    norm, e_BTD, p_TD = block.attention_norm, decoder.embed(ids_BT).double(), p_TD.double()
    std_BT1 = ((e_BTD + p_TD).var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
    gain_D, weight, bias = norm.weight.double(), block.qkv.weight.double(), block.qkv.bias.double()

    def heads(x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        query, key, _ = x_BTD.chunk(3, -1)
        return tuple(x.unflatten(-1, (block.heads, -1)).transpose(1, 2) for x in (query, key))

    semantic, positional = (heads(gain_D * (x - x.mean(-1, keepdim=True)) / std_BT1 @ weight.T) for x in (e_BTD, p_TD))
    constant = heads((norm.bias.double() @ weight.T + bias).expand(*ids_BT.shape, -1))
    scale = (decoder.config.width // decoder.config.heads) ** -0.5

    def product(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> Tensor:
        return left[0] @ right[1].transpose(2, 3) * scale

    everything = (semantic[0] + positional[0] + constant[0], semantic[1] + positional[1] + constant[1])
    parts = {
        "semantic": product(semantic, semantic),
        "cross": product(semantic, positional) + product(positional, semantic),
        "positional": product(positional, positional),
    }
    return {**parts, "constant": product(everything, everything) - sum(parts.values())}


def summarise(parts: dict[str, Tensor], queries: slice, embedding_TD: Tensor) -> ScoreParts:
    """Shares, curves and similarity over some queries. Curves end at the distance that every query of these sees."""
    centred = {name: _centred(part, queries) for name, part in parts.items()}
    total = torch.stack(list(centred.values())).sum(0)
    variance = float(total.square().sum())
    shares = {name: float((part * total).sum()) / variance for name, part in centred.items()}
    curves = {name: _by_distance(part, queries) for name, part in centred.items()}
    products = embedding_TD.double() @ embedding_TD.double().T
    expected = _by_distance(_centred(products[None, None], queries), queries)
    similarity = float(torch.corrcoef(torch.stack([curves["positional"], expected]))[0, 1])
    return ScoreParts(shares, {name: curve.tolist() for name, curve in curves.items()}, similarity)


def _centred(part_BHTS: Tensor, queries: slice) -> Tensor:
    """A part minus its mean over the keys of each query; 0 where a key is not visible."""
    rows_BHtS = part_BHTS[:, :, queries]
    visible_tS = torch.ones(part_BHTS.shape[2:]).tril().bool()[queries]
    mean_BHt1 = (rows_BHtS * visible_tS).sum(-1, keepdim=True) / visible_tS.sum(-1, keepdim=True)
    return torch.where(visible_tS, rows_BHtS - mean_BHt1, 0.0)


def _by_distance(rows_BHtS: Tensor, queries: slice) -> Tensor:
    """Mean over texts, heads and queries at each distance that all of these queries see."""
    rows_tS = rows_BHtS.mean((0, 1))
    positions = range(rows_BHtS.shape[-1])[queries]
    aligned = [rows_tS[row, : position + 1].flip(0)[: positions[0] + 1] for row, position in enumerate(positions)]
    return torch.stack(aligned).mean(0)
