"""Incremental forward passes of a Decoder: tokens in, logits after the last token out."""

import torch
from torch import Tensor

from fieldlens.kernels.attention import bias_table
from fieldlens.models.decoder import Decoder
from fieldlens.models.kv_cache import SlidingBuffer, SlidingCache
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.window import min_window, window_reach

CHUNK = 512
"""Number of prompt tokens processed at once."""

PADDING = -1
"""The position of padding."""


class CachedEngine:
    """A decoder with a key-value cache: tokens in, logits after the last token out."""

    def __init__(
        self,
        decoder: Decoder,
        window: int | None = None,
        max_tokens: int | None = None,
        chunk: int = CHUNK,
        kept: tuple[int, int] | None = None,
    ) -> None:
        """`kept`: the numbers of first and of recent tokens that the extension of the decoder sees."""
        self.decoder, self.chunk = decoder, chunk
        self.window, self.kept = window, kept
        sinks, recent = kept or (0, window)
        windows = [min_window(recent, own) for own in decoder.windows]
        self.cache = SlidingCache(windows, max_tokens, sinks)
        self.tables: dict[Scheme, Tensor | None] = {}

    @property
    def bytes(self) -> int:
        return self.cache.bytes

    @torch.inference_mode()
    def read(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        """Return the logits after the last token, (B, V). Positions are (T,) or (B, T), with -1 for padding."""
        reach = window_reach(self.cache.windows)
        if reach is not None and self.kept is None:  # earlier tokens affect neither these logits nor later ones
            ids_BT, positions = ids_BT[:, -reach:], positions[..., -reach:]
        chunks = zip(ids_BT.split(self.chunk, 1), positions.split(self.chunk, -1), strict=True)
        for ids_Bt, chunk_positions in chunks:
            key_positions = self.cache.admit(chunk_positions)
            x_BtD = self.decoder.embed(ids_Bt)
            states_BtD = self.decoder.states(
                x_BtD, chunk_positions, key_positions, window=self.window, cache=self.cache, tables=self._tables(x_BtD)
            )
        return self.decoder.head(states_BtD[:, -1])

    def _tables(self, like: Tensor) -> dict[Scheme, Tensor | None]:
        """Return the biases of each scheme for every visible distance; a table doubles in length when it is full."""
        seen = self.cache.positions.seen
        for scheme in self.decoder.scheme.distinct_schemes:
            window, table_HN = min_window(self.window, scheme.window), self.tables.get(scheme)
            if table_HN is None or table_HN.shape[1] < min(seen, window or seen):
                self.tables[scheme] = bias_table(scheme, min(2 * seen, window or 2 * seen), like)
        return self.tables


class ReencodeEngine:
    """A decoder without a cache: for each new token, the last `window` tokens are encoded from position 0."""

    bytes = 0

    def __init__(self, decoder: Decoder, window: int) -> None:
        self.decoder, self.window = decoder, window
        self.ids, self.positions = SlidingBuffer(window, 1), SlidingBuffer(window, 1)

    @torch.inference_mode()
    def read(self, ids_BT: Tensor, positions: Tensor) -> Tensor:
        """Return the logits after the last token, (B, V)."""
        ids_BS = self.ids.push(ids_BT)[:, -self.window :]
        positions_BS = self.positions.push(torch.atleast_2d(positions))[:, -self.window :]
        first_B1 = (positions_BS[:, -1:] + 1 - self.window).clamp(min=0)
        restarted_BS = torch.where(positions_BS >= 0, positions_BS - first_B1, PADDING)
        return self.decoder(ids_BS, positions=restarted_BS, last=True)[:, -1]
