"""Protocols: the same targets at every length."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols import PROTOCOLS, Anchor, Eligible, Protocol, draw, eligible, protocol

LENGTHS = [8, 16, 50]


def example(name: str) -> Protocol:
    """A protocol with options that the lengths above allow."""
    return protocol(name, **{"sliding": {"stride": 6}, "last-k": {"k": 8}}.get(name, {}))


@pytest.mark.parametrize("name", PROTOCOLS)
@given(seed=st.integers(0, 1000))
def test_excerpts_stay_inside_their_documents(name: str, seed: int) -> None:
    chosen, documents = example(name), [40, 160, 400, 51, 350]
    anchors = draw(eligible(documents, chosen, 50), 8, seed)
    assert len(set(anchors)) == 8
    for anchor in anchors:
        for length in LENGTHS:
            for excerpt in chosen.excerpts(anchor, length, 50):
                assert 0 <= excerpt.start < excerpt.stop < documents[excerpt.document]
                assert 1 <= excerpt.scored <= excerpt.stop - excerpt.start <= length
    targets = [t for a in anchors for w in chosen.excerpts(a, 50, 50) for t in w.targets()]
    assert len(set(targets)) == len(targets)


@pytest.mark.parametrize("name", [name for name in PROTOCOLS if name != "by-position"])
def test_every_length_has_the_same_targets(name: str) -> None:
    chosen = example(name)
    targets = [[t for w in chosen.excerpts(Anchor(0, 60), n, 50) for t in w.targets()] for n in LENGTHS]
    assert targets[0] == targets[1] == targets[2]
    assert len(set(targets[0])) == len(targets[0])


def test_contexts_have_the_requested_length() -> None:
    (excerpt,) = protocol("last-token").excerpts(Anchor(3, 100), 64, 64)
    assert excerpt == (3, 36, 100, 1)
    assert excerpt.targets() == [(3, 100)]
    (excerpt,) = protocol("by-position").excerpts(Anchor(3, 100), 64, 64)
    assert excerpt.targets() == [(3, 164)]
    excerpts = protocol("non-overlapping").excerpts(Anchor(0, 1), 4, 10)
    assert [(w.start, w.stop, w.scored) for w in excerpts] == [(0, 4, 4), (4, 8, 4), (8, 10, 2)]
    excerpts = protocol("sliding", stride=2).excerpts(Anchor(0, 10), 4, 5)
    assert [(w.start, w.stop, w.scored) for w in excerpts] == [(7, 11, 2), (9, 13, 2), (10, 14, 1)]


def test_targets_are_drawn_uniformly_and_reproducibly() -> None:
    spans = [Eligible(5, 3), Eligible(0, 0), Eligible(2, 2)]
    assert draw(spans, 5, 0) == [(0, 5), (0, 6), (0, 7), (2, 2), (2, 3)]
    assert draw([Eligible(0, 1000)], 4, 0) == draw([Eligible(0, 1000)], 4, 0) == GOLDEN
    assert draw([Eligible(0, 1000)], 4, 1) != GOLDEN
    hits = [anchor.offset for seed in range(300) for anchor in draw([Eligible(0, 10)], 3, seed)]
    assert all(60 < hits.count(place) < 120 for place in range(10))


# by hand from random.Random(0).random(): .8444, .7580, .4206, .2589
GOLDEN = [(0, 261), (0, 421), (0, 758), (0, 844)]


def test_more_segments_than_eligible_tokens_are_refused() -> None:
    with pytest.raises(
        BadInput, match="segments must be at most 10, the number of eligible tokens in this text, got 11"
    ):
        draw([Eligible(0, 10)], 11, 0)
    with pytest.raises(BadInput, match="segments must be at least 1, got 0"):
        draw([Eligible(0, 10)], 0, 0)


def test_bad_options_are_refused() -> None:
    with pytest.raises(BadInput, match="unknown protocol 'last-tokn': did you mean 'last-token'"):
        protocol("last-tokn")
    with pytest.raises(BadInput, match="protocol 'last-token' has no option 'stride'"):
        protocol("last-token", stride=3)
    with pytest.raises(BadInput, match="stride must be between 1 and the shortest length, 8, got 9"):
        protocol("sliding", stride=9).check([8, 16])
    with pytest.raises(BadInput, match="k must be between 1 and the shortest length, 8, got 0"):
        protocol("last-k", k=0).check([8, 16])
