"""A transformers cache layer that keeps the first keys and the most recent ones."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from fieldlens.core.errors import BadInput


class SinkLayer(CacheLayerMixin):
    """Keys and values of the first `sinks` tokens and of the last `window` tokens, the new one included."""

    is_sliding = False
    keys: Tensor | None
    values: Tensor | None
    is_initialized: bool

    def __init__(self, sinks: int, window: int) -> None:
        super().__init__()
        self.sinks, self.window, self.seen = sinks, window, 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Called by transformers; nothing to do, tensors are kept as they arrive."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append new tokens; return all keys and values that the new queries may see."""
        if self.keys is not None and self.values is not None:
            key_states = torch.cat([self.keys, key_states], 2)
            value_states = torch.cat([self.values, value_states], 2)
        self.seen += key_states.shape[2] - self._kept
        self.keys, self.values = self._keep(key_states), self._keep(value_states)
        self.is_initialized = True
        return key_states, value_states

    def _keep(self, states: Tensor) -> Tensor:
        count, recent = states.shape[2], self.window - 1
        if count <= self.sinks + recent:
            return states
        return torch.cat([states[:, :, : self.sinks], states[:, :, count - recent :]], 2)

    @property
    def _kept(self) -> int:
        return 0 if self.keys is None else self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._kept + query_length, self.seen - self._kept

    def get_seq_length(self) -> int:
        return self.seen

    def get_max_length(self) -> int:
        return -1

    def crop(self, tokens_to_remove: int) -> None:
        """Called by generation modes that remove tokens, which this cache cannot do."""
        raise BadInput("the attention-sink cache does not support crop(), which assisted generation needs")

    def reset(self) -> None:
        self.__init__(self.sinks, self.window)  # type: ignore[misc]


def sink_cache(layers: int, sinks: int, window: int) -> Cache:
    """A cache that keeps the first `sinks` keys and the last `window` keys in every layer."""
    return Cache(layers=[SinkLayer(sinks, window) for _ in range(layers)])
