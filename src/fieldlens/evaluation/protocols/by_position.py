"""One target at a distance from a fixed start: every length has other targets."""

from dataclasses import dataclass

from fieldlens.evaluation.protocols.anchors import Anchor
from fieldlens.evaluation.protocols.base import Excerpt, Protocol


@dataclass(frozen=True)
class ByPosition(Protocol):
    """One target, `length` tokens after a fixed start; every length has other targets."""

    name, version = "by-position", 1
    help = "one target, L tokens after a fixed start, so that the targets differ between lengths"
    same_targets = False

    def room(self, longest: int) -> tuple[int, int]:
        return 0, longest

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        return [Excerpt(anchor.document, anchor.offset, anchor.offset + length, 1)]
