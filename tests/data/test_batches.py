"""Training batches: every chunk once per epoch, the same for any number of processes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldlens.core.distributed import World
from fieldlens.core.errors import BadInput
from fieldlens.data.batches import batch_at


@given(st.integers(5, 300), st.integers(1, 9), st.integers(1, 7), st.integers(0, 5))
def test_an_epoch_visits_every_chunk_once(tokens: int, length: int, batch: int, seed: int) -> None:
    ids = np.arange(tokens)
    chunks = (tokens - 1) // length - 1
    if chunks < 1:
        return
    rows = np.concatenate([batch_at(ids, seed, step, batch, length) for step in range(-(-chunks // batch))])[:chunks]
    starts = sorted(rows[:, 0])
    assert starts == [starts[0] + n * length for n in range(chunks)]
    assert bool((rows == rows[:, :1] + np.arange(length + 1)).all())


def test_order_depends_on_seed_and_step_alone() -> None:
    ids = np.arange(1000)
    assert np.array_equal(batch_at(ids, 1, 5, 4, 10), batch_at(ids, 1, 5, 4, 10))
    assert not np.array_equal(batch_at(ids, 1, 5, 4, 10), batch_at(ids, 2, 5, 4, 10))
    assert not np.array_equal(batch_at(ids, 1, 5, 4, 10), batch_at(ids, 1, 6, 4, 10))


@pytest.mark.parametrize("size", [1, 2, 4])
def test_processes_share_one_batch(size: int) -> None:
    batch = batch_at(np.arange(1000), 0, 3, 8, 10)
    parts = [batch[World(rank, size).rows(8)] for rank in range(size)]
    assert np.array_equal(np.concatenate(parts), batch)


def test_a_batch_not_divisible_by_the_processes_is_refused() -> None:
    with pytest.raises(BadInput, match="batch size 8 is not divisible by 3 processes"):
        World(0, 3).rows(8)


def test_a_corpus_too_short_for_the_length_is_refused() -> None:
    with pytest.raises(BadInput, match="has 20 tokens: at least 21 are needed for length 10"):
        batch_at(np.arange(20), 0, 0, 1, 10)
