"""Estimated cost of a forward and a backward pass: operations and bytes."""

from dataclasses import dataclass

import torch

from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.schemes.window import min_window

SHARE = 0.5
"""Share of the free memory that may be used."""


@dataclass(frozen=True)
class Cost:
    """Operations and bytes of memory for one text."""

    operations: float
    bytes: float


def forward(adapter: ModelAdapter, tokens: int, keep: int, window: int | None) -> Cost:
    """Cost of a forward pass over one text, with logits of the last `keep` tokens; accurate to a factor of two."""
    width, layers, heads = adapter.width or 1, adapter.layers or 1, adapter.heads or 1
    seen = [min(tokens, min_window(own, window) or tokens) for own in adapter.windows]  # keys per query of each layer
    operations = 2.0 * adapter.parameters * tokens + 4.0 * layers * tokens * width * sum(seen) / len(seen)
    size = 8 if adapter.dtype == torch.float64 else 4
    values = tokens * width * 12 + 2 * keep * adapter.vocab_size
    if adapter.scores:  # H·T·T scores, their softmax, and the mask added to them
        values += 3 * heads * tokens**2
    elif window is not None and not adapter.is_decoder:
        values += tokens**2
    return Cost(operations, float(size * values))


def backward(adapter: ModelAdapter, tokens: int, checkpointing: bool) -> Cost:
    """Cost of the gradient at the embeddings of one text, with or without activation checkpointing."""
    width, layers, heads = adapter.width or 1, adapter.layers or 1, adapter.heads or 1
    forward_cost = forward(adapter, tokens, 1, None)
    size = 8 if adapter.dtype == torch.float64 else 4
    saved = 12 * width + (2 * heads * tokens if adapter.scores else 0)
    values = tokens * (saved * layers if not checkpointing else width * layers + 2 * saved)
    return Cost((3 if checkpointing else 2) * forward_cost.operations, forward_cost.bytes + float(size * values))
