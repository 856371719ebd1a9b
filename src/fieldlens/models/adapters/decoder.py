"""The adapter of `Decoder`, which computes only what the last positions depend on."""

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from fieldlens.kernels.content import KeyColumns
from fieldlens.kernels.selection import describe_kernels
from fieldlens.models.adapters.base import ModelAdapter, count_parameters
from fieldlens.models.decoder import Decoder
from fieldlens.schemes.window import min_window

ROWS = 256
"""Maximum number of positions whose logits are computed at once."""


class DecoderAdapter(ModelAdapter):
    """A decoder of this library."""

    is_decoder = True

    def __init__(self, decoder: Decoder, name: str = "") -> None:
        config = decoder.config
        self.decoder = decoder.eval()
        self.name, self.vocab_size = name or config.scheme, decoder.embedding.num_embeddings
        self.device, self.dtype = decoder.embedding.weight.device, decoder.embedding.weight.dtype
        self.layers, self.width, self.heads = config.layers, config.width, config.heads
        self.parameters = count_parameters(decoder, decoder.embedding)
        self.train_length = config.train_length
        self.windows = decoder.windows

    def kernel(self, gradient: bool = False) -> str:
        schemes = self.decoder.scheme.distinct_schemes
        return describe_kernels(schemes, self.device, self.dtype, gradient, last_queries=True)

    def cache_size(self, tokens: int, window: int | None = None) -> int:
        kept = [min(tokens, min_window(own, window) or tokens) for own in self.windows]
        numbers = sum(count * width for count, width in zip(kept, self.cached_widths, strict=True))
        return self.dtype.itemsize * numbers

    @cached_property
    def cached_widths(self) -> list[int]:
        """How many numbers the cache of each layer holds per token: keys, values and what the scheme adds to keys."""
        x_BSD = torch.zeros(1, 1, self.decoder.config.width, device=self.device, dtype=self.dtype)
        schemes = [self.decoder.scheme.of_layer(number) for number in range(self.decoder.config.layers)]
        reading = {scheme for scheme in schemes if scheme.takes_input}
        added = {scheme: scheme.heads * sum(KeyColumns(scheme, x_BSD).widths) for scheme in reading}
        return [2 * self.decoder.config.width + added.get(scheme, 0) for scheme in schemes]

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        # a relative scheme is invariant to the first position: start at 0, for bitwise equal results
        first = 0 if self.decoder.scheme.relative else first
        positions = torch.arange(first, first + ids_BT.shape[1], device=self.device)
        embeddings_BTD = self.decoder.embed(ids_BT)
        states_BTD = self.decoder.states(embeddings_BTD, positions, window=window, last=keep == 1)[:, -keep:]
        for start in range(0, keep, ROWS):
            yield self.decoder.head(states_BTD[:, start : start + ROWS])
