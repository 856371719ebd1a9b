"""Training batches as a pure function of seed and step, independent of the number of processes."""

from functools import lru_cache

import numpy as np

from fieldlens.core.errors import BadInput


def batch_at(ids: np.ndarray, seed: int, step: int, batch: int, length: int) -> np.ndarray:
    """Return the sequences of one step, each with its last target: (batch, length + 1), int64.

    An epoch visits every chunk of `length` tokens once, in a random order and from a random offset.
    """
    chunks = (len(ids) - 1) // length - 1
    if chunks < 1:
        raise BadInput(
            f"the train split has {len(ids)} tokens: at least {2 * length + 1} are needed for length {length}"
        )
    rows = []
    for index in range(step * batch, (step + 1) * batch):
        order, offset = _epoch(seed, index // chunks, chunks, length)
        start = int(order[index % chunks]) * length + offset
        rows.append(ids[start : start + length + 1])
    return np.stack(rows).astype(np.int64)


@lru_cache(maxsize=2)
def _epoch(seed: int, epoch: int, chunks: int, length: int) -> tuple[np.ndarray, int]:
    """Return the order of the chunks in one epoch and their common offset."""
    generator = np.random.Generator(np.random.PCG64([seed, epoch]))
    return generator.permutation(chunks), int(generator.integers(length))
