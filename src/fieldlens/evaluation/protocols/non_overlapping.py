"""Consecutive targets in excerpts that do not overlap, as most perplexities are computed."""

from dataclasses import dataclass

from fieldlens.evaluation.protocols.anchors import Anchor
from fieldlens.evaluation.protocols.base import Excerpt, Protocol


@dataclass(frozen=True)
class NonOverlapping(Protocol):
    """`longest` consecutive targets, cut into excerpts of `length`; the first targets of each have little context."""

    name, version = "non-overlapping", 1
    help = "consecutive targets, cut into excerpts that do not overlap"

    def room(self, longest: int) -> tuple[int, int]:
        return longest, longest - 1  # one token before would be enough, but this gives the same targets as `sliding`

    def step(self, longest: int) -> int:
        return longest

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        first = anchor.offset - 1
        ends = [min(longest, start + length) for start in range(0, longest, length)]
        starts = range(0, longest, length)
        return [Excerpt(anchor.document, first + a, first + b, b - a) for a, b in zip(starts, ends, strict=True)]
