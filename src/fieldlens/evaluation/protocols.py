"""Protocols: which tokens are predicted, and from how many before them.

A length is the number of input tokens; the target is one more. An anchor is a place in a document; a protocol turns it
into excerpts of input, the same targets at every length. A protocol's version changes when its numbers would.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

from fieldlens.core.errors import BadInput, unknown


class Anchor(NamedTuple):
    """A place in a document, counted in tokens."""

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
    """How anchors become excerpts."""

    name: ClassVar[str]
    version: ClassVar[int]
    same_targets: ClassVar[bool] = True
    """Whether every length predicts the same tokens, so that lengths can be compared."""

    def room(self, longest: int) -> tuple[int, int]:
        """How many tokens of its document an anchor must have before it, and after it."""
        return longest, 0

    def step(self, longest: int) -> int:
        """How far apart anchors lie, so that no target is drawn twice."""
        return 1

    @abstractmethod
    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        """The excerpts of one anchor at one length."""

    def check(self, lengths: Sequence[int]) -> None:  # noqa: B027
        """Refuse lengths that the options do not allow."""

    def about(self) -> dict[str, Any]:
        return {"name": self.name, "version": self.version, **asdict(self)}


@dataclass(frozen=True)
class LastToken(Protocol):
    """The paper's: one target, predicted from the `length` tokens before it."""

    name, version = "last-token", 1

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        return [Excerpt(anchor.document, anchor.offset - length, anchor.offset, 1)]


@dataclass(frozen=True)
class LastK(Protocol):
    """The last k tokens of an excerpt of `length` inputs, each from what is before it in the excerpt."""

    name, version = "last-k", 1
    k: int = 16

    def step(self, longest: int) -> int:
        return self.k

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        return [Excerpt(anchor.document, anchor.offset - length, anchor.offset, self.k)]

    def check(self, lengths: Sequence[int]) -> None:
        if not 1 <= self.k <= min(lengths):
            raise BadInput(f"k is {self.k}: from 1 to the shortest length, {min(lengths)}, is needed")


@dataclass(frozen=True)
class NonOverlapping(Protocol):
    """A stretch of `longest` targets cut into excerpts of `length`: the first targets of each see little."""

    name, version = "non-overlapping", 1

    def room(self, longest: int) -> tuple[int, int]:
        return longest, longest - 1  # one before would do, but so the stretches are those of `sliding`

    def step(self, longest: int) -> int:
        return longest

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        first = anchor.offset - 1
        ends = [min(longest, start + length) for start in range(0, longest, length)]
        starts = range(0, longest, length)
        return [Excerpt(anchor.document, first + a, first + b, b - a) for a, b in zip(starts, ends, strict=True)]


@dataclass(frozen=True)
class Sliding(Protocol):
    """The same stretch, in excerpts that move on by a stride; the last `stride` targets of each count."""

    name, version = "sliding", 1
    stride: int = 32

    def room(self, longest: int) -> tuple[int, int]:
        return longest, longest - 1

    def step(self, longest: int) -> int:
        return longest

    def excerpts(self, anchor: Anchor, length: int, longest: int) -> list[Excerpt]:
        found = []
        for done in range(0, longest, self.stride):
            scored = min(self.stride, longest - done)
            last = anchor.offset + done + scored - 1
            found.append(Excerpt(anchor.document, last - length, last, scored))
        return found

    def check(self, lengths: Sequence[int]) -> None:
        if not 1 <= self.stride <= min(lengths):
            raise BadInput(f"stride is {self.stride}: from 1 to the shortest length, {min(lengths)}, is needed")


@dataclass(frozen=True)
class ByPosition(Protocol):
    """A text from one beginning, and the token at each distance from it: other targets at every length."""

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
    """A protocol by its name; options that are None keep their defaults."""
    if name not in PROTOCOLS:
        raise unknown("protocol", name, PROTOCOLS)
    given = {key: value for key, value in options.items() if value is not None}
    fields = PROTOCOLS[name].__dataclass_fields__
    for key in given:
        if key not in fields:
            raise BadInput(f"protocol '{name}' has no option '{key}'")
    return PROTOCOLS[name](**given)


class Eligible(NamedTuple):
    """The anchors of one document that have room: `first` and those a step after each other, `anchors` in all."""

    first: int
    anchors: int
    step: int = 1


def eligible(lengths: Sequence[int], protocol: Protocol, longest: int) -> list[Eligible]:
    """The anchors with room, document by document, from the documents' lengths."""
    before, after = protocol.room(longest)
    step = protocol.step(longest)
    return [Eligible(before, max(0, -(-(length - before - after) // step)), step) for length in lengths]


def draw(spans: Sequence[Eligible], count: int, seed: int, unit: str = "tokens") -> list[Anchor]:
    """So many distinct anchors, by a seed, the same on every machine and in every version of Python."""
    total = sum(span.anchors for span in spans)
    if count < 1:
        raise BadInput(f"segments is {count}: at least 1 is needed")
    if count > total:
        raise BadInput(
            f"{count} segments are wanted, but only {total} {unit} lie deep enough in a document: "
            "give fewer --segments, shorter lengths or more text"
        )
    chance = random.Random(seed)
    moved: dict[int, int] = {}
    picked = []
    for place in range(count):  # the first steps of a shuffle; of Random only random() keeps its numbers for ever
        other = place + int(chance.random() * (total - place))
        picked.append(moved.get(other, other))
        moved[other] = moved.get(place, place)
    found, documents, passed = [], iter(enumerate(spans)), 0
    document, span = next(documents)
    for number in sorted(picked):
        while number >= passed + span.anchors:
            passed += span.anchors
            document, span = next(documents)
        found.append(Anchor(document, span.first + (number - passed) * span.step))
    return found
