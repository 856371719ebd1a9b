"""The 4-gram model with a copy cache, against plain dictionaries and brute force."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.copy_model import LONGEST_MATCH, NGram, copyable_only_from, fit, match

TOKENS = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def plain_probability(documents: list[list[int]], history: list[int], token: int, vocab_size: int) -> float:
    """Witten-Bell by its formula."""
    p = 1 / vocab_size
    for order in range(1, 5):
        if len(history) < order - 1:
            break
        h = tuple(history[len(history) - order + 1 :])
        after = Counter(
            ids[at + order - 1]
            for ids in documents
            for at in range(len(ids) - order + 1)
            if tuple(ids[at : at + order - 1]) == h
        )
        if after:
            p = (after[token] + len(after) * p) / (after.total() + len(after))
    return p


@given(documents=st.lists(TOKENS, min_size=1, max_size=4), history=st.lists(st.integers(0, 4), max_size=6))
def test_probabilities_are_those_of_the_formula(documents: list[list[int]], history: list[int]) -> None:
    model = NGram([np.array(ids) for ids in documents], 5)
    padded = [-1] * max(0, 3 - len(history)) + history
    histories = np.array([padded[-3:]] * 5)
    found = model.probabilities(histories, np.arange(5))
    expected = [plain_probability(documents, history[-3:], token, 5) for token in range(5)]
    assert found == pytest.approx(expected, rel=1e-12)
    assert found.sum() == pytest.approx(1)


def plain_match(context: list[int], target: int) -> tuple[int, float]:
    best, followers = 0, []
    for end in range(1, len(context)):
        length = 0
        while length < min(end, LONGEST_MATCH) and context[end - 1 - length] == context[len(context) - 1 - length]:
            length += 1
        if length > best:
            best, followers = length, []
        if length == best and length:
            followers.append(context[end])
    return best, followers.count(target) / len(followers) if followers else 0.0


@given(context=TOKENS, target=st.integers(0, 3))
def test_the_longest_match(context: list[int], target: int) -> None:
    assert match(np.array(context), target) == pytest.approx(plain_match(context, target))


def repeating(rng: np.random.Generator, distance: int, tokens: int = 4000) -> np.ndarray:
    """Random tokens, each a copy of the one so far back."""
    ids = list(rng.integers(0, 200, distance))
    while len(ids) < tokens:
        ids.append(ids[-distance] if rng.random() < 0.95 else int(rng.integers(200)))
    return np.array(ids)


def test_context_is_worth_what_can_be_copied_from_it() -> None:
    rng = np.random.default_rng(0)
    model = fit([repeating(rng, 50) for _ in range(40)], 200, [16, 40, 60, 200])
    text = repeating(rng, 50)
    places = range(500, 1500, 3)
    losses = model.losses([text[:at] for at in places], text[list(places)])
    short, below, above, long = losses.mean(1)
    assert short == pytest.approx(below, abs=0.2)
    assert above < below - 1.0
    assert long < above + 0.1


def test_targets_that_can_be_copied_only_from_far() -> None:
    context = np.array([7, 8, 9, *range(20, 60), 7, 8])
    assert copyable_only_from(context, 9, near=20, far=50)
    assert not copyable_only_from(context, 5, near=20, far=50)
    near = np.array([7, 8, 9, *range(20, 60), 7, 8, 9, 1, 2, 7, 8])
    assert not copyable_only_from(near, 9, near=20, far=60)


def test_an_empty_train_split_is_refused() -> None:
    with pytest.raises(BadInput, match="the train split is empty"):
        NGram([np.zeros(0, int)], 5)
