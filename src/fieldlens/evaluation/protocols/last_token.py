"""The paper's protocol: one target, predicted from the tokens before it."""

from dataclasses import dataclass

from fieldlens.evaluation.protocols.anchors import Anchor
from fieldlens.evaluation.protocols.base import Excerpt, Protocol


@dataclass(frozen=True)
class LastToken(Protocol):
    """One target, predicted from the `length` tokens before it; the paper's protocol."""

    name, version = "last-token", 1
    help = "one target, predicted from the tokens before it (the paper's)"

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        return [Excerpt(anchor.document, anchor.offset - length, anchor.offset, 1)]
