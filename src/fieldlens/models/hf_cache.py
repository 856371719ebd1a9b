"""The sliding cache as a layer of a transformers `Cache`."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin

from fieldlens.core.errors import BadInput
from fieldlens.models.kv_cache import SlidingBuffer


class SlidingLayer(CacheLayerMixin):
    """One layer of the sliding cache with the interface of transformers; without a window all tokens are kept."""

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window, self.is_sliding = window, window is not None
        self.tails = (SlidingBuffer(window, 2), SlidingBuffer(window, 2))

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Called by transformers; nothing to do, buffers are allocated when the first tokens arrive."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = (
            tail.push(new) for tail, new in zip(self.tails, (key_states, value_states), strict=True)
        )
        self.is_initialized = True
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        kept = self.tails[0].kept
        return kept + query_length, self.tails[0].seen - kept

    def get_seq_length(self) -> int:
        return self.tails[0].seen

    def get_max_length(self) -> int:
        return self.window or -1

    def crop(self, tokens_to_remove: int) -> None:
        """Called by generation modes that remove tokens; `generate` uses a transformers cache for those."""
        raise BadInput(
            "the sliding cache does not support crop(), which assisted generation needs: "
            "pass a DynamicCache as past_key_values"
        )

    def reset(self) -> None:
        self.__init__(self.window)  # type: ignore[misc]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        for tail in self.tails:
            tail.reorder(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        buffer = self.tails[0].buffer
        if buffer is not None:
            self.reorder_cache(torch.arange(len(buffer), device=buffer.device).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)
