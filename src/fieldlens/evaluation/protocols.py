"""Evaluation protocols: which tokens are predicted, and from how many preceding tokens.

A length is the number of input tokens; the target is the token after them. An anchor is a position in a document. A
protocol turns an anchor into excerpts, with the same targets at every length. Its version changes when its numbers do.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

from fieldlens.core.errors import BadInput, unknown


class Anchor(NamedTuple):
    """A position in a document, in tokens."""

    document: int
    offset: int


class Excerpt(NamedTuple):
    """Input tokens start..stop-1 of a document; the last `scored` of the tokens start+1..stop are predicted."""

    document: int
    start: int
    stop: int
    scored: int

    def targets(self) -> list[Anchor]:
        return [Anchor(self.document, offset) for offset in range(self.stop - self.scored + 1, self.stop + 1)]


@dataclass(frozen=True)
class Protocol(ABC):
    """Base class: turns anchors into excerpts."""

    name: ClassVar[str]
    version: ClassVar[int]
    same_targets: ClassVar[bool] = True
    """Whether every length predicts the same tokens, so that lengths can be compared."""

    def room(self, longest: int) -> tuple[int, int]:
        """Number of tokens of the same document that an anchor needs before it and after it."""
        return longest, 0

    def step(self, longest: int) -> int:
        """Distance between neighbouring anchors, such that no target is drawn twice."""
        return 1

    @abstractmethod
    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        """Excerpts of one anchor at one length."""

    def check(self, lengths: Sequence[int]) -> None:  # noqa: B027
        """Raise BadInput if the options do not allow these lengths."""

    def about(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, **asdict(self)}


@dataclass(frozen=True)
class LastToken(Protocol):
    """One target, predicted from the `length` tokens before it; the paper's protocol."""

    name, version = "last-token", 1

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        return [Excerpt(anchor.document, anchor.offset - length, anchor.offset, 1)]


@dataclass(frozen=True)
class LastK(Protocol):
    """The last k tokens of an excerpt of `length` inputs, each predicted from the tokens before it in the excerpt."""

    name, version = "last-k", 1
    k: int = 16

    def step(self, longest: int) -> int:
        return self.k

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        return [Excerpt(anchor.document, anchor.offset - length, anchor.offset, self.k)]

    def check(self, lengths: Sequence[int]) -> None:
        if not 1 <= self.k <= min(lengths):
            raise BadInput(f"k must be between 1 and the shortest length, {min(lengths)}, got {self.k}")


@dataclass(frozen=True)
class NonOverlapping(Protocol):
    """`longest` consecutive targets, cut into excerpts of `length`; the first targets of each have little context."""

    name, version = "non-overlapping", 1

    def room(self, longest: int) -> tuple[int, int]:
        return longest, longest - 1  # one token before would be enough, but this gives the same targets as `sliding`

    def step(self, longest: int) -> int:
        return longest

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        first = anchor.offset - 1
        ends = [min(longest, start + length) for start in range(0, longest, length)]
        starts = range(0, longest, length)
        return [Excerpt(anchor.document, first + a, first + b, b - a) for a, b in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class Sliding(Protocol):
    """`longest` consecutive targets, in excerpts of `length` shifted by a stride; the last `stride` of each count."""

    name, version = "sliding", 1
    stride: int = 32

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


@dataclass(frozen=True)
class ByPosition(Protocol):
    """One target, `length` tokens after a fixed start; every length has other targets."""

    name, version = "by-position", 1
    same_targets = False

    def room(self, longest: int) -> tuple[int, int]:
        return 0, longest

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        return [Excerpt(anchor.document, anchor.offset, anchor.offset + length, 1)]


PROTOCOLS: dict[str, type[Protocol]] = {
    cls.name: cls for cls in (LastToken, LastK, NonOverlapping, Sliding, ByPosition)
}


def protocol(name: str, **options: Any) -> Protocol:
    """Return a protocol by name; options that are None keep their defaults."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    settings = {key: value for key, value in options.items() if value is not None}
    fields = PROTOCOLS[name].__dataclass_fields__
    for key in settings:
        if key not in fields:
            raise BadInput(f"protocol '{name}' has no option '{key}'")
    return PROTOCOLS[name](**settings)


class Eligible(NamedTuple):
    """Eligible anchors of one document: `anchors` positions from `first` on, `step` apart."""

    first: int
    anchors: int
    step: int = 1


def eligible(lengths: Sequence[int], protocol: Protocol, longest: int) -> list[Eligible]:
    """Eligible anchors of every document, from the documents' lengths in tokens."""
    before, after = protocol.room(longest)
    step = protocol.step(longest)
    return [Eligible(before, max(0, -(-(length - before - after) // step)), step) for length in lengths]


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
