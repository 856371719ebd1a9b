"""The sliding cache: keys and values of the last w tokens, with constant size and constant cost per token.

Buffers are preallocated and hold tokens in order, so attention reads contiguous slices. When a buffer is full, the
tokens that are still visible move to its front: at most w - 1 tokens, once every w/8 tokens, which is O(1) per token.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fieldlens.kernels.layout import UNBOUNDED
from fieldlens.schemes.window import check_window

MIN_SPARE = 64
"""Minimum number of spare slots in a buffer."""
SHARE = 8
"""A buffer has 1/8 more slots than visible tokens: as fast as a buffer of twice the length, with 0.56 of its memory."""


def capacity(window: int) -> int:
    """Number of slots in a buffer for this window."""
    return window - 1 + max(MIN_SPARE, (window - 1) // SHARE)


class SlidingBuffer:
    """The last tokens of a stream, those visible to the next token, contiguous along one axis of a buffer."""

    def __init__(self, window: int | None, axis: int, max_tokens: int | None = None) -> None:
        check_window(window)
        self.axis, self.seen, self.stop = axis, 0, 0
        """`seen` tokens were pushed in total; the last of them end at index `stop` of the buffer."""
        self.earlier = UNBOUNDED if window is None else window - 1
        """Number of earlier tokens visible to a token."""
        self.max_tokens = UNBOUNDED if max_tokens is None else max_tokens
        """Maximum number of tokens that will be pushed."""
        self.buffer: Tensor | None = None

    @property
    def kept(self) -> int:
        """Number of earlier tokens visible to the next token."""
        return min(self.seen, self.earlier)

    @property
    def bytes(self) -> int:
        return 0 if self.buffer is None else self.buffer.nbytes

    def push(self, new: Tensor) -> Tensor:
        """Append new tokens; return the earlier tokens visible to the first of them, followed by the new ones."""
        count, kept = new.shape[self.axis], self.kept
        assert self.seen + count <= self.max_tokens, "more tokens than max_tokens"
        if self._needs_gradients(new):
            return self._join(new)
        if self.buffer is None or self.stop + count > self.buffer.shape[self.axis] or _is_read_only(self.buffer):
            size = self._size(kept + count)
            if kept + count > size:  # a chunk longer than the buffer: keep its end
                whole = self._join(new)
                self._move(size, new)
                return whole
            self._move(size, new)
        assert self.buffer is not None
        self.buffer.narrow(self.axis, self.stop, count).copy_(new)
        self.stop += count
        self.seen += count
        return self.buffer.narrow(self.axis, self.stop - count - kept, count + kept)

    def reorder(self, rows_B: Tensor) -> None:
        """Replace row i by row `rows_B[i]`."""
        if self.buffer is not None:
            self.buffer = self.buffer.index_select(0, rows_B)

    def _needs_gradients(self, new: Tensor) -> bool:
        """Whether autograd records this call: then the buffer is part of the graph and must not be overwritten."""
        requires_grad = new.requires_grad or (self.buffer is not None and self.buffer.requires_grad)
        return requires_grad and torch.is_grad_enabled()

    def _size(self, needed: int) -> int:
        if self.earlier == UNBOUNDED:
            return min(self.max_tokens, 2 * needed + MIN_SPARE)  # doubling: amortised O(1) per token
        return min(self.max_tokens, capacity(self.earlier + 1))

    def _join(self, new: Tensor) -> Tensor:
        """Concatenate visible and new tokens into a new tensor, which becomes the buffer."""
        kept = self.kept
        if self.buffer is not None and kept:
            new = torch.cat([self.buffer.narrow(self.axis, self.stop - kept, kept), new], self.axis)
        self.buffer, self.stop = new, new.shape[self.axis]
        self.seen += self.stop - kept
        return new

    def _move(self, size: int, like: Tensor) -> None:
        """Move the tokens that are still visible to the front of a buffer of this size."""
        old, kept = self.buffer, self.kept
        if old is None or old.shape[self.axis] != size or old.requires_grad or _is_read_only(old):
            shape = list(like.shape)
            shape[self.axis] = size
            self.buffer = like.new_empty(shape)
        if old is not None and kept:
            assert self.buffer is not None
            visible = old.narrow(self.axis, self.stop - kept, kept)
            # within one buffer, source and destination may overlap
            self.buffer.narrow(self.axis, 0, kept).copy_(visible.clone() if old is self.buffer else visible)
        self.stop = kept


def _is_read_only(buffer: Tensor) -> bool:
    """Whether this is an inference tensor outside inference mode, which torch does not allow to be written to."""
    return buffer.is_inference() and not torch.is_inference_mode_enabled()


class SinkBuffer(SlidingBuffer):
    """A sliding buffer that also returns the first `sinks` tokens of the stream, in front of the last ones."""

    def __init__(self, sinks: int, window: int | None, axis: int, max_tokens: int | None = None) -> None:
        super().__init__(window, axis, max_tokens)
        self.sinks = sinks
        self.first: Tensor | None = None

    def push(self, new: Tensor) -> Tensor:
        dropped = min(self.sinks, self.seen - self.kept)  # first tokens that the sliding part no longer holds
        held = 0 if self.first is None else self.first.shape[self.axis]
        recent = super().push(new)
        if held < self.sinks:
            more = new.narrow(self.axis, 0, min(self.sinks - held, new.shape[self.axis])).clone()
            self.first = more if self.first is None else torch.cat([self.first, more], self.axis)
        if not dropped:
            return recent
        assert self.first is not None
        return torch.cat([self.first.narrow(self.axis, 0, dropped), recent], self.axis)

    @property
    def bytes(self) -> int:
        return super().bytes + (0 if self.first is None else self.first.nbytes)

    def reorder(self, rows_B: Tensor) -> None:
        super().reorder(rows_B)
        if self.first is not None:
            self.first = self.first.index_select(0, rows_B)


class SlidingCache:
    """Keys and values of every layer, and their positions; without a window all tokens are kept.

    With `sinks`, the first tokens are kept besides those in the window.
    """

    def __init__(self, windows: Sequence[int | None], max_tokens: int | None = None, sinks: int = 0) -> None:
        def buffer(width: int | None, axis: int) -> SlidingBuffer:
            return SinkBuffer(sinks, width, axis, max_tokens) if sinks else SlidingBuffer(width, axis, max_tokens)

        self.windows = tuple(windows)
        """The window of each layer."""
        widest = None if None in self.windows else max(width for width in self.windows if width)
        self.positions = buffer(widest, 1)
        self.layers = [(buffer(width, 2), buffer(width, 2)) for width in windows]

    def admit(self, positions_BT: Tensor) -> Tensor | list[Tensor]:
        """Append positions of new tokens; return the positions of the keys that `update` will return, (B or 1, S).

        A list with those of each layer if layers have different windows.
        """
        count = positions_BT.shape[-1]
        by_window = {width: kept for width, (kept, _) in zip(self.windows, self.layers, strict=True)}
        positions_BS = self.positions.push(torch.atleast_2d(positions_BT))
        if len(by_window) == 1:
            return positions_BS
        views = {width: positions_BS[:, -(keys.kept + count) :] for width, keys in by_window.items()}
        return [views[width] for width in self.windows]

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        keys, values = self.layers[layer_idx]
        return keys.push(key_states), values.push(value_states)

    @property
    def bytes(self) -> int:
        """Exact size of all buffers in bytes."""
        return sum(part.bytes for part in (self.positions, *(part for layer in self.layers for part in layer)))

    def reorder(self, rows_B: Tensor) -> None:
        """Replace row i by row `rows_B[i]`; the number of rows may change."""
        for keys, values in self.layers:
            keys.reorder(rows_B)
            values.reorder(rows_B)
        if self.positions.buffer is not None and len(self.positions.buffer) > 1:
            self.positions.reorder(rows_B)
