"""The adapter of a function from token ids to logits."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.base import ModelAdapter


class FunctionAdapter(ModelAdapter):
    """A function from token ids (B, T) to logits (B, T, V)."""

    def __init__(self, function: Callable[[Tensor], Tensor], name: str = "") -> None:
        self.function, self.name = function, name or getattr(function, "__name__", type(function).__name__)
        if isinstance(function, nn.Module):
            function.eval()
        self.device = torch.device("cpu")
        with torch.no_grad():
            logits = function(torch.zeros(1, 1, dtype=torch.long))
        if not isinstance(logits, Tensor) or logits.ndim != 3:
            raise BadInput(
                "a model must be a Decoder, a transformers model or a function from ids (B, T) to logits (B, T, V)"
            )
        self.vocab_size, self.dtype = logits.shape[-1], logits.dtype

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        yield self.function(ids_BT)[:, -keep:]

    def check_window(self, window: int | None) -> None:
        if window is not None:
            raise BadInput(f"{self.name} does not support a window")
