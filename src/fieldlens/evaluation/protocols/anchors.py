"""Anchors: positions in documents from which a protocol takes its targets, and how they are drawn."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from fieldlens.core.errors import BadInput


class Anchor(NamedTuple):
    """A position in a document, in tokens."""

    document: int
    offset: int


class Eligible(NamedTuple):
    """Eligible anchors of one document: `anchors` positions from `first` on, `step` apart."""

    first: int
    anchors: int
    step: int = 1


def draw(spans: Sequence[Eligible], count: int, seed: int, unit: str = "tokens") -> list[Anchor]:
    """Draw anchors without replacement; a seed gives the same anchors on every machine and Python version."""
    total = sum(span.anchors for span in spans)
    if count < 1:
        raise BadInput(f"segments must be at least 1, got {count}")
    if count > total:
        raise BadInput(
            f"segments must be at most {total}, the number of eligible {unit} in this text, got {count}: "
            "use fewer --segments, shorter lengths or more text"
        )
    generator = random.Random(seed)
    moved: dict[int, int] = {}
    picked = []
    for index in range(count):  # a partial Fisher-Yates shuffle; Python guarantees the numbers of random() only
        other = index + int(generator.random() * (total - index))
        picked.append(moved.get(other, other))
        moved[other] = moved.get(index, index)
    anchors, documents, passed = [], iter(enumerate(spans)), 0
    document, span = next(documents)
    for number in sorted(picked):
        while number >= passed + span.anchors:
            passed += span.anchors
            document, span = next(documents)
        anchors.append(Anchor(document, span.first + (number - passed) * span.step))
    return anchors
