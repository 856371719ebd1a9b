"""The last k tokens of an excerpt, each predicted from the tokens before it."""

from collections.abc import Sequence
from dataclasses import dataclass

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols.anchors import Anchor
from fieldlens.evaluation.protocols.base import Excerpt, Protocol, option


@dataclass(frozen=True)
class LastK(Protocol):
    """The last k tokens of an excerpt of `length` inputs, each predicted from the tokens before it in the excerpt."""

    name, version = "last-k", 1
    help = "the last k tokens of an excerpt"
    k: int = option(16, "Number of targets per segment")

    def step(self, longest: int) -> int:
        return self.k

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        return [Excerpt(anchor.document, anchor.offset - length, anchor.offset, self.k)]

    def check(self, lengths: Sequence[int]) -> None:
        if not 1 <= self.k <= min(lengths):
            raise BadInput(f"k must be between 1 and the shortest length, {min(lengths)}, got {self.k}")
