"""The retrieval task: trials that only a model with the far context can answer."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.retrieval import KEY, PAIRS, make_trials, retrieve, wilson
from fieldlens.extension.attach import attached
from fieldlens.extension.discovery import build
from fieldlens.models.adapters.adapt import adapt

DOCUMENTS = [np.random.default_rng(n).integers(0, 500, 400) for n in range(5)]


def lookup(ids_BT: Tensor) -> Tensor:
    """A model that finds the last key earlier in the text and predicts what followed it."""
    logits = torch.zeros(*ids_BT.shape, 500)
    for row, ids in enumerate(ids_BT.tolist()):
        for start in range(len(ids) - KEY):
            if ids[start : start + KEY] == ids[-KEY:] and start + KEY < len(ids):
                logits[row, -1, ids[start + KEY]] = 9
    return logits


@pytest.mark.parametrize("length", [64, 256])
def test_a_model_that_looks_back_answers_and_a_crop_cannot(length: int) -> None:
    trials = make_trials(DOCUMENTS, length, 32, 40, seed=1)
    adapter = adapt(lookup)
    adapter.train_length = 32
    assert retrieve(adapter, trials).right == 40
    with attached(adapter, build("crop", 32)) as cropped:
        result = retrieve(cropped, trials)
    assert result.interval[0] <= 1 / PAIRS
    assert not result.shown
    assert retrieve(adapter, trials).shown


def test_trials_have_the_length_and_the_pair_lies_far_back() -> None:
    for trial in make_trials(DOCUMENTS, 96, 32, 20, seed=0, bos=3):
        ids = trial.ids.tolist()
        assert len(ids) == 97
        assert ids[0] == 3
        starts = [n for n in range(97 - KEY) if ids[n : n + KEY] == ids[-KEY:] and ids[n + KEY] == trial.answer]
        assert any(len(ids) - (n + KEY) > 32 for n in starts)
        assert len(set(trial.candidates)) == PAIRS
        assert all(candidate in ids[1:-KEY] for candidate in trial.candidates)
    again = make_trials(DOCUMENTS, 96, 32, 20, seed=0, bos=3)
    assert [trial.ids.tolist() for trial in again][-1] == ids


def test_short_or_missing_texts_are_refused() -> None:
    with pytest.raises(BadInput, match="at least 64 tokens, got 63"):
        make_trials(DOCUMENTS, 63, 32, 5, seed=0)
    with pytest.raises(BadInput, match="needs a document of as many tokens"):
        make_trials(DOCUMENTS, 401, 32, 5, seed=0)


@pytest.mark.parametrize(("right", "trials"), [(0, 20), (7, 20), (20, 20), (45, 100)])
def test_wilson_intervals_equal_those_of_scipy(right: int, trials: int) -> None:
    expected = binomtest(right, trials).proportion_ci(method="wilson")
    assert wilson(right, trials) == pytest.approx((expected.low, expected.high), abs=1e-9)
