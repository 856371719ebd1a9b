"""A decoder that reads on: tokens in, logits after the last of them out."""

import torch
from torch import Tensor

from fieldlens.kernels.attention import bias_table
from fieldlens.models.decoder import Decoder
from fieldlens.models.kv_cache import SlidingBuffer, SlidingCache
from fieldlens.schemes.window import min_window

CHUNK = 512
"""Tokens of a prompt that are read at once."""

PADDING = -1
"""The position of what is no token."""


class CachedEngine:
    """A decoder that reads on through a cache: tokens in, logits after the last of them out."""

    def __init__(
        self, decoder: Decoder, window: int | None = None, most: int | None = None, chunk: int = CHUNK
    ) -> None:
        self.decoder, self.chunk = decoder, chunk
        self.window = min_window(window, decoder.scheme.window)
        self.cache = SlidingCache(decoder.config.layers, self.window, most)
        self.table_HN: Tensor | None = None

    @property
    def bytes(self) -> int:
        return self.cache.bytes

    @torch.inference_mode()
    def read(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        """Logits after the last token, (B, V). Positions are (T,) or (B, T), with -1 for padding."""
        if self.window is not None:  # farther back nothing can matter, neither to these logits nor to later ones
            reach = self.decoder.config.layers * (self.window - 1) + 1
            ids_BT, positions = ids_BT[:, -reach:], positions[..., -reach:]
        for ids_Bt, some in zip(ids_BT.split(self.chunk, 1), positions.split(self.chunk, -1), strict=True):
            key_positions = self.cache.admit(some)
            x_BtD = self.decoder.embed(ids_Bt)
            states_BtD = self.decoder.states(
                x_BtD, some, key_positions, window=self.window, cache=self.cache, table_HN=self._table(x_BtD)
            )
        return self.decoder.head(states_BtD[:, -1])

    def _table(self, like: Tensor) -> Tensor | None:
        """The scheme's biases for every distance that is seen: made once, or twice as long each time."""
        seen = self.cache.positions.seen
        if self.table_HN is None or self.table_HN.shape[1] < min(seen, self.window or seen):
            self.table_HN = bias_table(self.decoder.scheme, min(2 * seen, self.window or 2 * seen), like)
        return self.table_HN


class ReencodeEngine:
    """A decoder without a cache: the last `window` tokens are read from position 0 for each new one."""

    bytes = 0

    def __init__(self, decoder: Decoder, window: int) -> None:
        self.decoder, self.window = decoder, window
        self.ids, self.positions = SlidingBuffer(window, 1), SlidingBuffer(window, 1)

    @torch.inference_mode()
    def read(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        """Logits after the last token, (B, V)."""
        ids_BS = self.ids.push(ids_BT)[:, -self.window :]
        positions_BS = self.positions.push(torch.atleast_2d(positions))[:, -self.window :]
        first_B1 = (positions_BS[:, -1:] + 1 - self.window).clamp(min=0)
        restarted_BS = torch.where(positions_BS >= 0, positions_BS - first_B1, PADDING)
        return self.decoder(ids_BS, positions=restarted_BS, last=True)[:, -1]
