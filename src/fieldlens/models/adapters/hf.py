"""The adapter of transformers models, through their public interface alone."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.base import ModelAdapter, close, count_parameters
from fieldlens.models.hf_compat import (
    _positions,
    _windows,
    configured_train_length,
    dynamic_rope_length,
    reset_dynamic_rope,
    sliding_window_masks,
)
from fieldlens.schemes.window import min_window


class HFAdapter(ModelAdapter):
    """A causal language model of transformers."""

    stretch: int | None
    """The length past which its rotary positions change with the text, if they do."""

    def __init__(self, model: Any, name: str = "") -> None:
        self.model = model.eval()
        config = model.config.get_text_config()
        if getattr(model.config, "is_encoder_decoder", False):
            raise BadInput(f"{type(model).__name__} is an encoder and a decoder: a causal language model is needed")
        self.name = name or config.name_or_path or config.model_type
        embedding = model.get_input_embeddings()
        self.vocab_size, self.parameters = embedding.num_embeddings, count_parameters(model, embedding)
        self.device, self.dtype = embedding.weight.device, embedding.weight.dtype
        self.layers, self.width, self.heads = (
            getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        )
        self.scores = model.config._attn_implementation == "eager"
        self.train_length, self.windows = configured_train_length(config), _windows(config)
        self.limit, self.stretch = _positions(model), dynamic_rope_length(model)
        self._croppable: dict[tuple[int, int | None], bool] = {}

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        reset_dynamic_rope(self.model)
        with sliding_window_masks(window):
            made = self.model(input_ids=ids_BT, use_cache=False, logits_to_keep=keep)
        if not hasattr(made, "logits"):
            raise BadInput(f"{type(self.model).__name__} predicts no tokens: load it with AutoModelForCausalLM")
        yield made.logits[:, -keep:]

    def check_window(self, window: int | None) -> None:
        super().check_window(window)
        if window is not None and not self._takes_bands:
            raise BadInput(f"{self.name} cannot be given a window: a mask does not change what its layers see")

    def fits_cropped(self, tokens: int, reach: int, window: int | None) -> bool:
        key = (tokens, window)
        if key not in self._croppable:  # at this very length: some rotary positions change with it
            self._croppable[key] = self.limit is None and self._same_cropped(tokens, reach, window)
        return self._croppable[key]

    def _same_cropped(self, tokens: int, reach: int, window: int | None) -> bool:
        text_BT = self.noise(tokens)[:1]
        return close(self._last(text_BT, window), self._last(text_BT[:, -reach:], window))

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        if not self._cache_parts:
            return None
        kept = [min(tokens, min_window(own, window) or tokens) for _, _, own in self._cache_parts]
        return sum(fixed + each * many for (fixed, each, _), many in zip(self._cache_parts, kept, strict=True))

    @cached_property
    def _cache_parts(self) -> list[tuple[int, int, int | None]]:
        """Of each layer of the model's own cache: fixed bytes, bytes for each token, and its window, if it slides.

        By what one token more takes: layers differ, some share their keys, and some keep a state of one size.
        """
        caches = []
        for tokens in (2, 3):
            try:
                with torch.no_grad():
                    made = self.model(input_ids=self.noise(tokens)[:1], use_cache=True)
            except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
                return []
            caches.append(_held(getattr(made, "past_key_values", None)))
        few, more = caches
        return [
            (size - 2 * (later - size), later - size, own) for (size, own), (later, _) in zip(few, more, strict=True)
        ]

    @cached_property
    def _takes_bands(self) -> bool:
        """With a window of 1 nothing but the last token may matter; without one something else must."""
        texts_BT = self.noise(min(6, self.limit or 6))
        texts_BT[1, -1] = texts_BT[0, -1]
        alone, free = (self._last(texts_BT, window) for window in (1, None))
        return close(alone[0], alone[1]) and not close(free[0], free[1])

    def _last(self, ids_BT: Tensor, window: int | None) -> Tensor:
        with torch.no_grad():
            return next(self.logits(ids_BT, 1, window, 0))[:, 0].double()


def bytes_held(cache: Any) -> int | None:
    """What the keys, values and states in a cache of transformers take; None where they cannot be found."""
    return sum(size for size, _ in _held(cache)) or None


def _held(cache: Any) -> list[tuple[int, int | None]]:
    """The bytes that each layer of a cache holds, and its window; the first is what the cache holds beside layers."""
    layers = getattr(cache, "layers", None)
    parts = (cache, *layers) if layers else ()
    return [(sum(one.nbytes for one in _tensors(vars(part))), getattr(part, "sliding_window", None)) for part in parts]


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor but single numbers, in whatever it is kept."""
    if isinstance(value, Tensor) and value.ndim > 1:
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)
