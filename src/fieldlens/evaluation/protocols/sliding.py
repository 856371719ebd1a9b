"""Consecutive targets in excerpts shifted by a stride."""

from collections.abc import Sequence
from dataclasses import dataclass

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols.anchors import Anchor
from fieldlens.evaluation.protocols.base import Excerpt, Protocol, option


@dataclass(frozen=True)
class Sliding(Protocol):
    """`longest` consecutive targets, in excerpts of `length` shifted by a stride; the last `stride` of each count."""

    name, version = "sliding", 1
    help = "consecutive targets, in excerpts shifted by a stride"
    stride: int = option(32, "Number of targets per excerpt")

    def room(self, longest: int) -> tuple[int, int]:
        return longest, longest - 1

    def step(self, longest: int) -> int:
        return longest

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        excerpts = []
        for done in range(0, longest, self.stride):
            scored = min(self.stride, longest - done)
            last = anchor.offset + done + scored - 1
            excerpts.append(Excerpt(anchor.document, last - length, last, scored))
        return excerpts

    def check(self, lengths: Sequence[int]) -> None:
        if not 1 <= self.stride <= min(lengths):
            raise BadInput(f"stride must be between 1 and the shortest length, {min(lengths)}, got {self.stride}")
