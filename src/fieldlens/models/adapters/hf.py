"""The adapter of transformers models, which uses only their public interface."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.base import ModelAdapter, close, count_parameters
from fieldlens.models.hf_compat import (
    configured_train_length,
    dynamic_rope_length,
    layer_windows,
    position_limit,
    reset_dynamic_rope,
    sliding_window_masks,
)
from fieldlens.schemes.window import min_window


class HFAdapter(ModelAdapter):
    """A transformers causal language model."""

    stretch: int | None
    """Length beyond which the rotary frequencies depend on the length of the text, if they do."""

    def __init__(self, model: Any, name: str = "") -> None:
        self.model = model.eval()
        config = model.config.get_text_config()
        if getattr(model.config, "is_encoder_decoder", False):
            raise BadInput(f"{type(model).__name__} is an encoder-decoder: a causal language model is needed")
        self.name = name or config.name_or_path or config.model_type
        embedding = model.get_input_embeddings()
        self.vocab_size, self.parameters = embedding.num_embeddings, count_parameters(model, embedding)
        self.device, self.dtype = embedding.weight.device, embedding.weight.dtype
        self.layers, self.width, self.heads = (
            getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        )
        self.scores = model.config._attn_implementation == "eager"
        self.train_length, self.windows = configured_train_length(config), layer_windows(config)
        self.limit, self.stretch = position_limit(model), dynamic_rope_length(model)
        self._croppable: dict[tuple[int, int | None], bool] = {}

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        reset_dynamic_rope(self.model)
        with sliding_window_masks(window):
            output = self.model(input_ids=ids_BT, use_cache=False, logits_to_keep=keep)
        if not hasattr(output, "logits"):
            raise BadInput(f"{type(self.model).__name__} returns no logits: load it with AutoModelForCausalLM")
        yield output.logits[:, -keep:]

    def check_window(self, window: int | None) -> None:
        super().check_window(window)
        if window is not None and not self._takes_bands:
            raise BadInput(f"{self.name} does not support a window: its layers ignore the attention mask")

    def fits_cropped(self, tokens: int, reach: int, window: int | None) -> bool:
        key = (tokens, window)
        if key not in self._croppable:  # probed at this length: rotary frequencies may depend on it
            self._croppable[key] = self.limit is None and self._probe_cropping(tokens, reach, window)
        return self._croppable[key]

    def _probe_cropping(self, tokens: int, reach: int, window: int | None) -> bool:
        text_BT = self.noise(tokens)[:1]
        return close(self._last_logits(text_BT, window), self._last_logits(text_BT[:, -reach:], window))

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        if not self._cache_parts:
            return None
        kept = [min(tokens, min_window(own, window) or tokens) for _, _, own in self._cache_parts]
        return sum(fixed + per_token * n for (fixed, per_token, _), n in zip(self._cache_parts, kept, strict=True))

    @cached_property
    def _cache_parts(self) -> list[tuple[int, int, int | None]]:
        """For each layer of the cache of the model: fixed bytes, bytes per token, and its sliding window, if any.

        Derived from the cache sizes after 2 and 3 tokens: layers differ, some share keys, some keep a fixed-size state.
        """
        caches = []
        for tokens in (2, 3):
            try:
                with torch.no_grad():
                    output = self.model(input_ids=self.noise(tokens)[:1], use_cache=True)
            except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
                return []
            caches.append(_layer_bytes(getattr(output, "past_key_values", None)))
        return [
            (size - 2 * (next_size - size), next_size - size, own)
            for (size, own), (next_size, _) in zip(*caches, strict=True)
        ]

    @cached_property
    def _takes_bands(self) -> bool:
        """Whether a window takes effect: with a window of 1 only the last token matters, without one others do too."""
        texts_BT = self.noise(min(6, self.limit or 6))
        texts_BT[1, -1] = texts_BT[0, -1]
        windowed, full = (self._last_logits(texts_BT, window) for window in (1, None))
        return close(windowed[0], windowed[1]) and not close(full[0], full[1])

    def _last_logits(self, ids_BT: Tensor, window: int | None) -> Tensor:
        with torch.no_grad():
            return next(self.logits(ids_BT, 1, window, 0))[:, 0].double()


def bytes_held(cache: Any) -> int | None:
    """Bytes of the keys, values and states in a transformers cache; None if they cannot be determined."""
    return sum(size for size, _ in _layer_bytes(cache)) or None


def _layer_bytes(cache: Any) -> list[tuple[int, int | None]]:
    """Bytes and window of each layer of a cache. The first entry is for tensors held by the cache itself."""
    layers = getattr(cache, "layers", None)
    parts = (cache, *layers) if layers else ()
    sizes = [sum(tensor.nbytes for tensor in _tensors(vars(part))) for part in parts]
    return [(size, getattr(part, "sliding_window", None)) for size, part in zip(sizes, parts, strict=True)]


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors of at least 2 dimensions in nested dicts, lists and tuples."""
    if isinstance(value, Tensor) and value.ndim > 1:
        yield value
    elif isinstance(value, dict | list | tuple):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from _tensors(entry)
