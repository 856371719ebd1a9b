"""The sliding cache: keys and values of the last w tokens, whose size and cost never grow.

Buffers are preallocated and tokens stand in them in order, so attention reads plain slices. When a buffer is full, the
tokens that are still seen move to its front: at most w - 1, once in w/8 tokens, which is O(1) for each token.
"""

import torch
from torch import Tensor

from fieldlens.kernels.layout import FOREVER
from fieldlens.schemes.window import check_window

LEAST_ROOM = 64
SHARE = 8
"""A buffer has room for an eighth more tokens than are seen: as fast as a double length, at 0.56 of its memory."""


def capacity(window: int) -> int:
    """How many tokens a buffer holds so that each sees a window of so many."""
    return window - 1 + max(LEAST_ROOM, (window - 1) // SHARE)


class SlidingBuffer:
    """The last tokens of a stream, side by side along one axis of a buffer: those that the next token sees."""

    def __init__(self, window: int | None, axis: int, most: int | None = None) -> None:
        check_window(window)
        self.axis, self.seen, self.stop = axis, 0, 0
        """Of `seen` tokens in all the last ones stand before `stop`."""
        self.earlier = FOREVER if window is None else window - 1
        """How many tokens before it a token sees."""
        self.most = FOREVER if most is None else most
        """How many tokens will come, at most."""
        self.buffer: Tensor | None = None

    @property
    def kept(self) -> int:
        """How many earlier tokens the next one sees."""
        return min(self.seen, self.earlier)

    def push(self, new: Tensor) -> Tensor:
        """Take new tokens; return them behind the earlier ones that the first of them sees."""
        count, kept = new.shape[self.axis], self.kept
        assert self.seen + count <= self.most, "more tokens than were announced"
        if self._wants_gradients(new):
            return self._join(new)
        if self.buffer is None or self.stop + count > self.buffer.shape[self.axis] or _closed(self.buffer):
            size = self._size(kept + count)
            if kept + count > size:  # a chunk that is too long for any buffer of this window: keep its end
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
        """Let each row go on from the row that is named for it."""
        if self.buffer is not None:
            self.buffer = self.buffer.index_select(0, rows_B)

    def _wants_gradients(self, new: Tensor) -> bool:
        """Then nothing may be overwritten: the graph holds on to it."""
        learning = new.requires_grad or (self.buffer is not None and self.buffer.requires_grad)
        return learning and torch.is_grad_enabled()

    def _size(self, needed: int) -> int:
        if self.earlier == FOREVER:
            return min(self.most, 2 * needed + LEAST_ROOM)  # twice as many each time: O(1) for each token too
        return min(self.most, capacity(self.earlier + 1))

    def _join(self, new: Tensor) -> Tensor:
        """Earlier and new tokens as one new tensor, which is the buffer from now on."""
        kept = self.kept
        if self.buffer is not None and kept:
            new = torch.cat([self.buffer.narrow(self.axis, self.stop - kept, kept), new], self.axis)
        self.buffer, self.stop = new, new.shape[self.axis]
        self.seen += self.stop - kept
        return new

    def _move(self, size: int, like: Tensor) -> None:
        """Bring the tokens that are still seen to the front of a buffer of this size."""
        old, kept = self.buffer, self.kept
        if old is None or old.shape[self.axis] != size or old.requires_grad or _closed(old):
            shape = list(like.shape)
            shape[self.axis] = size
            self.buffer = like.new_empty(shape)
        if old is not None and kept:
            assert self.buffer is not None
            seen = old.narrow(self.axis, self.stop - kept, kept)
            # in one buffer the tokens may overlap with where they go
            self.buffer.narrow(self.axis, 0, kept).copy_(seen.clone() if old is self.buffer else seen)
        self.stop = kept


def _closed(buffer: Tensor) -> bool:
    """Whether it was made under inference mode and we are outside: torch then lets nobody write to it."""
    return buffer.is_inference() and not torch.is_inference_mode_enabled()


class SlidingCache:
    """Keys and values of every layer, and the positions they stand at; without a window everything is kept."""

    def __init__(self, layers: int, window: int | None = None, most: int | None = None) -> None:
        self.window = window
        self.positions = SlidingBuffer(window, 1, most)
        self.layers = [(SlidingBuffer(window, 2, most), SlidingBuffer(window, 2, most)) for _ in range(layers)]

    def admit(self, positions_BT: Tensor) -> Tensor:
        """Announce new tokens: where the keys will stand that each `update` for them returns, (B or 1, S)."""
        return self.positions.push(torch.atleast_2d(positions_BT))

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        keys, values = self.layers[layer_idx]
        return keys.push(key_states), values.push(value_states)

    @property
    def bytes(self) -> int:
        """What the buffers take, to the byte."""
        tails = [self.positions, *(tail for layer in self.layers for tail in layer)]
        return sum(tail.buffer.nbytes for tail in tails if tail.buffer is not None)

    def reorder(self, rows_B: Tensor) -> None:
        """Let each row go on from the row that is named for it; there may be more rows than before."""
        for tail in (tail for layer in self.layers for tail in layer):
            tail.reorder(rows_B)
        if self.positions.buffer is not None and len(self.positions.buffer) > 1:
            self.positions.reorder(rows_B)
