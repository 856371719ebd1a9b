"""Consecutive targets, each predicted from nearly the whole length: many targets for little more than one pass."""

from dataclasses import dataclass

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols.anchors import Anchor
from fieldlens.evaluation.protocols.base import Excerpt, Protocol, option

SHORTFALL = 16
"""The context of a target is shorter than the length by less than 1/16 of it."""


@dataclass(frozen=True)
class Consecutive(Protocol):
    """k consecutive targets, in excerpts of `length`; the last length/16 of each count, so contexts are about equal."""

    name, version = "consecutive", 1
    help = "k consecutive targets, each predicted from more than 15/16 of the length"
    k: int = option(32, "Number of targets per segment")

    def __post_init__(self) -> None:
        if self.k < 1:
            raise BadInput(f"k must be at least 1, got {self.k}")

    def room(self, longest: int) -> tuple[int, int]:
        return longest, self.k - 1

    def step(self, longest: int) -> int:
        return self.k

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        excerpts = []
        stride = max(1, length // SHORTFALL)
        for done in range(0, self.k, stride):
            scored = min(stride, self.k - done)
            last = anchor.offset + done + scored - 1
            excerpts.append(Excerpt(anchor.document, last - length, last, scored))
        return excerpts
