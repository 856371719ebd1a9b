"""The order of the training data: a pure function of seed and step, whatever the number of processes."""

from functools import lru_cache

import numpy as np

from fieldlens.core.errors import BadInput


def batch_at(ids: np.ndarray, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """The sequences of a step, each with its target behind it: (batch, length + 1), int64.

    An epoch visits every piece of `length` tokens once, in an order and from an offset of its own.
    """
    pieces = (len(ids) - 1) // length - 1
    if pieces < 1:
        raise BadInput(
            f"the train split has {len(ids)} tokens: at least {2 * length + 1} are needed for length {length}"
        )
    rows = []
    for index in range(step * batch, (step + 1) * batch):
        order, offset = _epoch(seed, index // pieces, pieces, length)
        start = int(order[index % pieces]) * length + offset
        rows.append(ids[start : start + length + 1])
    return np.stack(rows).astype(np.int64)


@lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int, pieces: int, length: int) -> tuple[np.ndarray, int]:
    """One epoch's order of pieces and their common offset."""
    random = np.random.Generator(np.random.PCG64([seed, epoch]))
    return random.permutation(pieces), int(random.integers(length))
