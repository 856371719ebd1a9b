"""Adapters of models with a method: the same interface as the model's own adapter."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.extension.base import ExtensionMethod
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.schemes.window import min_window


class _Extended(ModelAdapter):
    """What the adapters of models with a method share: it needs every token, whatever the windows of the model."""

    method: ExtensionMethod

    def needed(self, tokens: int, keep: int, window: int | None) -> int:
        return tokens

    def check_window(self, window: int | None) -> None:
        if window is not None:
            raise BadInput(f"a window cannot be combined with the method {self.method.name}: use streaming or window")

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        kept = tokens if self.method.kept is None else min(tokens, sum(self.method.kept))
        return super().cache_size(kept, None)


class ExtendedHFAdapter(_Extended, HFAdapter):
    """A transformers model with a method attached."""


class ExtendedDecoderAdapter(_Extended, DecoderAdapter):  # type: ignore[misc]
    """A decoder of this library with a method attached."""


class _Windowed(ModelAdapter):
    """A model whose layers all have a window."""

    method: ExtensionMethod

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        yield from super().logits(ids_BT, keep, min_window(window, self.method.window), first)  # type: ignore[safe-super]

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        return super().cache_size(tokens, min_window(window, self.method.window))


class WindowedHFAdapter(_Windowed, HFAdapter):
    """A transformers model with a window in every layer."""


class WindowedDecoderAdapter(_Windowed, DecoderAdapter):  # type: ignore[misc]
    """A decoder of this library with a window in every layer."""


class CroppedAdapter(ModelAdapter):
    """A model that reads only the last tokens of a text, after its BOS token if the text starts with one."""

    method: ExtensionMethod

    def __init__(self, inner: ModelAdapter, method: ExtensionMethod, bos: int | None) -> None:
        self.__dict__.update({key: value for key, value in vars(inner).items() if not key.startswith("_")})
        assert method.crop is not None
        self.inner, self.method, self.tokens, self.bos = inner, method, method.crop, bos
        if inner.limit is not None and self.tokens + (bos is not None) > inner.limit:
            raise BadInput(f"crop: {inner.name} has {inner.limit} positions, {self.tokens} tokens are too many")
        self.limit, self.is_decoder, self.scores = None, inner.is_decoder, inner.scores

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        for stop in range(ids_BT.shape[1] - keep + 1, ids_BT.shape[1] + 1):
            yield next(self.inner.logits(self._crop(ids_BT[:, :stop]), 1, window, 0))[:, -1:]

    def _crop(self, ids_BT: Tensor) -> Tensor:
        if self.bos is None or not bool((ids_BT[:, 0] == self.bos).all()):
            return ids_BT[:, -self.tokens :]
        kept = ids_BT[:, 1:][:, -self.tokens :]
        return ids_BT[:, :1] if not kept.numel() else torch.cat([ids_BT[:, :1], kept], 1)

    def needed(self, tokens: int, keep: int, window: int | None) -> int:
        return tokens

    def check_window(self, window: int | None) -> None:
        self.inner.check_window(window)

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        return self.inner.cache_size(min(tokens, self.tokens), window)


def with_method(adapter: ModelAdapter, method: ExtensionMethod, kinds: tuple[Any, Any]) -> Any:
    """The adapter for a method, of the first kind for a transformers model and of the second for a decoder."""
    kind = kinds[0] if isinstance(adapter, HFAdapter) else kinds[1]
    extended = kind.__new__(kind)
    extended.__dict__.update({key: value for key, value in vars(adapter).items() if key != "_cache_parts"})
    extended.method = method
    return extended
