"""The base class of evaluation protocols."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, NamedTuple

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols.anchors import Anchor, Eligible

REGISTERED: dict[str, type["Protocol"]] = {}


class Excerpt(NamedTuple):
    """Input tokens start..stop-1 of a document; the last `scored` of the tokens start+1..stop are predicted."""

    document: int
    start: int
    stop: int
    scored: int

    def targets(self) -> list[Anchor]:
        return [Anchor(self.document, offset) for offset in range(self.stop - self.scored + 1, self.stop + 1)]


def option(default: int, help: str) -> Any:
    """A field of a protocol that the command line and study files offer as an option."""
    return dataclasses.field(default=default, metadata={"help": help})


@dataclass(frozen=True)
class Protocol(ABC):
    """Base class: turns anchors into excerpts. A subclass with a name is registered; its fields are its options."""

    name: ClassVar[str]
    help: ClassVar[str]
    """What is predicted from what, in a phrase for the command line's help."""
    version: ClassVar[int]
    """Changes when the protocol's numbers do."""
    same_targets: ClassVar[bool] = True
    """Whether every length predicts the same tokens, so that lengths can be compared."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            first = REGISTERED.setdefault(cls.name, cls)
            if (first.__module__, first.__qualname__) != (cls.__module__, cls.__qualname__):
                raise BadInput(f"protocol '{cls.name}' is declared twice: in {first.__module__} and {cls.__module__}")
            REGISTERED[cls.name] = cls

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


def eligible(lengths: Sequence[int], protocol: Protocol, longest: int) -> list[Eligible]:
    """Eligible anchors of every document, from the documents' lengths in tokens."""
    before, after = protocol.room(longest)
    step = protocol.step(longest)
    return [Eligible(before, max(0, -(-(length - before - after) // step)), step) for length in lengths]
