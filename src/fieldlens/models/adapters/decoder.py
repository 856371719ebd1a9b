"""The adapter of `Decoder`, which computes only what the last positions depend on."""

from collections.abc import Iterator

import torch
from torch import Tensor

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

    def cache_size(self, tokens: int, window: int | None = None) -> int:
        kept = sum(min(tokens, min_window(own, window) or tokens) for own in self.windows)
        return 2 * self.decoder.config.width * self.dtype.itemsize * kept

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        # a relative scheme is invariant to the first position: start at 0, for bitwise equal results
        first = 0 if self.decoder.scheme.relative else first
        positions = torch.arange(first, first + ids_BT.shape[1], device=self.device)
        embeddings_BTD = self.decoder.embed(ids_BT)
        states_BTD = self.decoder.states(embeddings_BTD, positions, window=window, last=keep == 1)[:, -keep:]
        for start in range(0, keep, ROWS):
            yield self.decoder.head(states_BTD[:, start : start + ROWS])
