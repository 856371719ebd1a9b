"""Visible keys and bias masks of blocks of queries, from explicit positions.

Attention processes queries in blocks and in reverse order: the distance of query T-1-i and key j is then a constant
minus (i + j), so the bias of a whole block is a view, with strides (1, 1), of a one-dimensional array. With a window, a
block only reads the keys it can see, so time and memory are O(T·w). Few queries and keys are not cut into blocks: their
mask is small, is built once and shared by the layers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from fieldlens.core.errors import BadInput

UNBOUNDED = 2**62
"""Used as the size of a missing window."""

FEW = 64
"""Up to this many queries and keys have one mask; it is the minimum number of queries in a block."""

MAX_MASK_SIZE = 2**20
"""Maximum number of elements per head of a mask that is gathered for a block."""


def visible(distances: Tensor, window: int | None) -> Tensor:
    """Whether a query sees keys at these distances: itself and earlier keys, w in total with a window."""
    return (distances >= 0) & (distances < (window or UNBOUNDED))


class Layout(ABC):
    """Positions of queries and keys, and a window: built once per forward and shared by the layers."""

    square = False
    """Whether this is plain causal attention: the same consecutive tokens as queries and keys, and no window."""

    ordered = False
    """Whether keys are at increasing positions, without padding."""

    def __init__(self, window: int | None, reach: int) -> None:
        self.window = window
        self.reach = reach
        """Number of distances, from 0, that any query can see: the required length of the bias table."""

    @abstractmethod
    def expand(self, table_HN: Tensor) -> Tensor:
        """Convert a table of biases by distance to the form that `attend` takes, with -inf for invisible keys."""

    @abstractmethod
    def visible_counts(self) -> Tensor:
        """Number of keys that each query sees: (B or 1, T)."""


class OneMask(Layout):
    """Few consecutive queries and keys, where every query sees at least one key: `expand` returns their whole mask."""

    ordered = True

    def __init__(
        self, q_first: int, q_count: int, k_first: int, k_count: int, window: int | None, device: torch.device
    ) -> None:
        super().__init__(window, min(q_first + q_count - k_first, window or UNBOUNDED))
        q_positions, k_positions = (torch.arange(count, device=device) for count in (q_count, k_count))
        self.distances_TS = q_first - k_first + q_positions[:, None] - k_positions
        self.square = window is None and q_first == k_first and q_count == k_count

    def expand(self, table_HN: Tensor) -> Tensor:
        mask_HX = table_HN.index_select(1, self.distances_TS.clamp(0, self.reach - 1).flatten())
        mask_HTS = mask_HX.unflatten(1, self.distances_TS.shape)
        return torch.where(visible(self.distances_TS, self.window), mask_HTS, -math.inf)[None]

    def visible_counts(self) -> Tensor:
        return visible(self.distances_TS, self.window).sum(1)[None]


class BlockLayout(Layout):
    """A layout whose queries are processed in blocks."""

    def __init__(self, window: int | None, reach: int, keys: int) -> None:
        super().__init__(window, reach)
        self.keys_per_block = min(keys, 2 * (window or UNBOUNDED))
        """Approximate number of keys that a block of queries reads."""

    @abstractmethod
    def blocks(self, rows: int) -> Iterator[tuple[slice, slice]]:
        """Blocks of at most `rows` queries, each with all keys it can see."""

    @abstractmethod
    def mask(self, bias: Tensor, queries: slice, keys: slice) -> Tensor:
        """Biases of a block, with queries in reverse order: (B or 1, H or 1, t, s)."""

    @abstractmethod
    def reduce_grad(self, d_mask: Tensor, d_bias: Tensor, queries: slice, keys: slice) -> None:
        """Add the gradient of a block's mask, (B, H, t, s), to the gradient of the result of `expand`."""

    def fully_masked(self, queries: slice) -> Tensor | None:
        """Whether each query of a block, in reverse order, sees no key; its output is then 0: (B or 1, 1, t, 1)."""
        return None

    def zero_fully_masked(self, rows: Tensor, queries: slice) -> Tensor:
        """Set the outputs of queries that see no key to 0."""
        masked = self.fully_masked(queries)
        return rows if masked is None else rows.masked_fill(masked, 0)


class Contiguous(BlockLayout):
    """Consecutive queries and consecutive keys, where every query sees at least one key."""

    ordered = True

    def __init__(
        self, q_first: int, q_count: int, k_first: int, k_count: int, window: int | None, device: torch.device
    ) -> None:
        self.farthest = q_first + q_count - 1 - k_first
        super().__init__(window, min(self.farthest + 1, window or UNBOUNDED), k_count)
        self.q_offset, self.q_count, self.k_count = q_first - k_first, q_count, k_count
        self.device = device
        self.square = window is None and self.q_offset == 0 and q_count == k_count

    def expand(self, table_HN: Tensor) -> Tensor:
        distances_X = self.farthest - torch.arange(self.q_count + self.k_count - 1, device=self.device)
        line_HX = table_HN.index_select(1, distances_X.clamp(0, self.reach - 1))
        return torch.where(visible(distances_X, self.window), line_HX, -math.inf)

    def visible_counts(self) -> Tensor:
        farthest_T = self.q_offset + torch.arange(self.q_count, device=self.device)  # distance of the first key
        nearest_T = (farthest_T - self.k_count + 1).clamp(min=0)
        return (farthest_T.clamp(max=(self.window or UNBOUNDED) - 1) - nearest_T + 1)[None]

    def blocks(self, rows: int) -> Iterator[tuple[slice, slice]]:
        for stop in range(self.q_count, 0, -rows):
            start = max(0, stop - rows)
            first_key = max(0, self.q_offset + start - (self.window or UNBOUNDED) + 1)
            yield slice(start, stop), slice(first_key, min(self.k_count, self.q_offset + stop))

    def mask(self, bias: Tensor, queries: slice, keys: slice) -> Tensor:
        shape = (1, bias.shape[0], queries.stop - queries.start, keys.stop - keys.start)
        offset = bias.storage_offset() + self._offset(queries, keys)
        view = bias.as_strided(shape, (0, bias.stride(0), 1, 1), offset)
        # Only the CPU kernel accepts overlapping rows; others require aligned rows.
        return view if bias.device.type == "cpu" else view.contiguous()

    def reduce_grad(self, d_mask: Tensor, d_bias: Tensor, queries: slice, keys: slice) -> None:
        t, s = d_mask.shape[-2:]
        offset = self._offset(queries, keys)
        # In a t × (t + s) matrix with row i shifted right by i, each column holds one distance.
        shifted_HX = F.pad(d_mask.sum(0), (0, t + 1)).flatten(1)[:, : t * (t + s)]
        d_bias[:, offset : offset + t + s - 1] += shifted_HX.view(-1, t, t + s).sum(1)[:, :-1]

    def _offset(self, queries: slice, keys: slice) -> int:
        return self.q_count - queries.stop + keys.start


class Scattered(BlockLayout):
    """Arbitrary positions, which may differ between rows of a batch. A key at a negative position is never seen."""

    def __init__(self, q_positions_BT: Tensor, k_positions_BS: Tensor, window: int | None) -> None:
        self.q_positions_BT, self.k_positions_BS = q_positions_BT, k_positions_BS
        valid = k_positions_BS[k_positions_BS >= 0]
        farthest = max(0, int(q_positions_BT.max() - valid.min())) if valid.numel() and q_positions_BT.numel() else 0
        super().__init__(window, min(farthest + 1, window or UNBOUNDED), k_positions_BS.shape[1])

    def expand(self, table_HN: Tensor) -> Tensor:
        return F.pad(table_HN, (0, 1), value=-math.inf)

    def blocks(self, rows: int) -> Iterator[tuple[slice, slice]]:
        batch = max(len(self.q_positions_BT), len(self.k_positions_BS))
        rows = max(8, min(rows, MAX_MASK_SIZE // (batch * self.keys_per_block)))  # each block materialises a mask
        for stop in range(self.q_positions_BT.shape[1], 0, -rows):
            queries = slice(max(0, stop - rows), stop)
            yield queries, self._keys(queries)

    def visible_counts(self) -> Tensor:
        counts = [self._visible(queries, keys).sum(-1).flip(1) for queries, keys in self.blocks(FEW)]
        return torch.cat(counts[::-1], 1)  # blocks run from the last queries to the first

    def _keys(self, queries: slice) -> slice:
        """From the first to the last key that any query of a block can see in any row."""
        q_positions_Bt = self.q_positions_BT[:, queries]
        latest_B1 = q_positions_Bt.amax(1, keepdim=True)
        earliest_B1 = q_positions_Bt.where(q_positions_Bt >= 0, latest_B1).amin(1, keepdim=True)
        in_range = (self.k_positions_BS <= latest_B1) & (self.k_positions_BS > earliest_B1 - (self.window or UNBOUNDED))
        indices = (in_range & (self.k_positions_BS >= 0)).any(0).nonzero()
        return slice(int(indices[0]), int(indices[-1]) + 1) if len(indices) else slice(0, 1)

    def mask(self, bias: Tensor, queries: slice, keys: slice) -> Tensor:
        mask_BHts = bias[:, self._bias_index(queries, keys, bias.shape[1] - 1)].transpose(0, 1)
        return mask_BHts.masked_fill(Scattered.fully_masked(self, queries), 0)

    def reduce_grad(self, d_mask: Tensor, d_bias: Tensor, queries: slice, keys: slice) -> None:
        index_Bts = self._bias_index(queries, keys, d_bias.shape[1] - 1).expand(d_mask.shape[0], -1, -1)
        d_bias.index_add_(1, index_Bts.flatten(), d_mask.transpose(0, 1).flatten(1))

    def fully_masked(self, queries: slice) -> Tensor:
        return ~self._visible(queries, self._keys(queries)).any(-1)[:, None, :, None]

    def _distances(self, queries: slice, keys: slice) -> Tensor:
        return self.q_positions_BT[:, queries].flip(1)[:, :, None] - self.k_positions_BS[:, None, keys]

    def _visible(self, queries: slice, keys: slice) -> Tensor:
        return visible(self._distances(queries, keys), self.window) & (self.k_positions_BS >= 0)[:, None, keys]

    def _bias_index(self, queries: slice, keys: slice, masked_index: int) -> Tensor:
        return torch.where(self._visible(queries, keys), self._distances(queries, keys), masked_index)


class SingleQuery(Scattered):
    """One query per row, as in generation: its mask is built once and shared by the layers."""

    def __init__(self, q_positions_BT: Tensor, k_positions_BS: Tensor, window: int | None) -> None:
        super().__init__(q_positions_BT, k_positions_BS, window)
        self.query = slice(0, 1)
        self.keys = self._keys(self.query)
        self.masked_rows = super().fully_masked(self.query)

    def expand(self, table_HN: Tensor) -> Tensor:
        return super().mask(super().expand(table_HN), self.query, self.keys)

    def blocks(self, rows: int) -> Iterator[tuple[slice, slice]]:
        yield self.query, self.keys

    def mask(self, bias: Tensor, queries: slice, keys: slice) -> Tensor:
        return bias

    def reduce_grad(self, d_mask: Tensor, d_bias: Tensor, queries: slice, keys: slice) -> None:
        d_bias += d_mask.sum_to_size(d_bias.shape)

    def fully_masked(self, queries: slice) -> Tensor:
        return self.masked_rows


def check_positions(name: str, positions: Tensor, batch: int, tokens: int) -> None:
    """Raise `BadInput` unless positions are integers of shape (T,) or (B, T)."""
    if positions.shape not in ((tokens,), (1, tokens), (batch, tokens)):
        expected = f"({tokens},) or ({batch}, {tokens})"
        raise BadInput(f"{name} has shape {tuple(positions.shape)}, expected {expected}")
    if positions.is_floating_point():
        raise BadInput(f"{name} must be integers, got {positions.dtype}")


def make_layout(q_positions: Tensor, k_positions: Tensor, window: int | None) -> Layout:
    """The most efficient layout for positions of shape (T,) or (B, T) and (S,) or (B, S)."""
    q_first, k_first = _contiguous_starts(q_positions, k_positions)
    if q_first is not None and k_first is not None and 0 <= k_first <= q_first:
        q_count, k_count = q_positions.shape[-1], k_positions.shape[-1]
        if q_first + q_count - (k_first + k_count) < (window or UNBOUNDED):
            kind = OneMask if max(q_count, k_count) <= FEW else Contiguous
            return kind(q_first, q_count, k_first, k_count, window, q_positions.device)
    scattered = SingleQuery if q_positions.shape[-1] == 1 else Scattered
    return scattered(torch.atleast_2d(q_positions), torch.atleast_2d(k_positions), window)


def _contiguous_starts(q_positions: Tensor, k_positions: Tensor) -> tuple[int | None, int | None]:
    """Positions of the first query and the first key, if consecutive. Rows may be shifted: only distances matter."""
    if q_positions.ndim == k_positions.ndim == 2 and len(q_positions) == len(k_positions) > 1:
        if not q_positions.numel() or not k_positions.numel() or bool((k_positions < 0).any()):
            return None, None
        shift_B1 = q_positions[:, :1] - q_positions[:1, :1]
        q_positions, k_positions = q_positions - shift_B1, k_positions - shift_B1
    return _contiguous_start(q_positions), _contiguous_start(k_positions)


def _contiguous_start(positions: Tensor) -> int | None:
    """The first position if positions are consecutive and the same in every row, else None."""
    if not positions.numel():
        return None
    first = int(positions.flatten()[0])
    steps = torch.arange(first, first + positions.shape[-1], device=positions.device)
    return first if bool((positions == steps).all()) else None


def rows_per_block(keys: int) -> int:
    """Queries per block of the fused kernel: the best of 64 … 512 at 128, 256, 512, 2048 and 8192 keys."""
    return min(256, max(FEW, keys // 4))
