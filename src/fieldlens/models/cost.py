"""What a computation will take: operations, bytes, and how much memory there is."""

from dataclasses import dataclass

import torch

from fieldlens.models.adapters.base import ModelAdapter

SHARE = 0.5
"""How much of the free memory we allow ourselves."""


@dataclass(frozen=True)
class Cost:
    """A forward pass over one text."""

    operations: float
    bytes: float


def forward(adapter: ModelAdapter, tokens: int, keep: int, window: int | None) -> Cost:
    """One text of so many tokens, logits of the last `keep`: a model of the cost, good to a factor of two."""
    width, layers, heads = adapter.width or 1, adapter.layers or 1, adapter.heads or 1
    seen = min(tokens, window or tokens)
    operations = 2.0 * adapter.parameters * tokens + 4.0 * layers * tokens * seen * width
    size = 8 if adapter.dtype == torch.float64 else 4
    held = tokens * width * 12 + 2 * keep * adapter.vocab_size
    if adapter.scores:  # H·T·T scores, their softmax, and the mask added to them
        held += 3 * heads * tokens**2
    elif window is not None and not adapter.ours:
        held += tokens**2
    return Cost(operations, float(size * held))


def backward(adapter: ModelAdapter, tokens: int, checkpointing: bool) -> Cost:
    """A gradient at the embeddings of one text: what is kept for it, with or without computing layers again."""
    width, layers, heads = adapter.width or 1, adapter.layers or 1, adapter.heads or 1
    once = forward(adapter, tokens, 1, None)
    size = 8 if adapter.dtype == torch.float64 else 4
    kept = 12 * width + (2 * heads * tokens if adapter.scores else 0)
    held = tokens * (kept * layers if not checkpointing else width * layers + 2 * kept)
    return Cost((3 if checkpointing else 2) * once.operations, once.bytes + float(size * held))
