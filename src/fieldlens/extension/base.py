"""The base class of extension methods: which keys a query sees, at which distances, with which frequencies."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes import base as schemes

REGISTERED: dict[str, type["ExtensionMethod"]] = {}

Positions = Callable[[Tensor], Tensor]


def same(positions: Tensor) -> Tensor:
    """Positions as they are."""
    return positions


@dataclass(frozen=True)
class Region:
    """Keys whose logits are q R(a(i) - b(j)) k: those at distances low ≤ i - j < high and positions j < first.

    `a` maps query positions and `b` maps key positions; positions may become fractions.
    """

    low: int = 0
    high: int | None = None
    first: int | None = None
    a: Positions = same
    b: Positions = same

    def contains(self, i: Tensor, j: Tensor) -> Tensor:
        """Whether keys at positions j belong to the region of queries at positions i; broadcasts."""
        distance = i - j
        inside = distance >= self.low
        if self.high is not None:
            inside = inside & (distance < self.high)
        return inside if self.first is None else inside & (j < self.first)


class ExtensionMethod:
    """Base class of extension methods. A subclass overrides what it changes; keyword arguments are its options.

    The logit of query i and key j is q R(m(i, j)) k, with m(i, j) = a(i) - b(j) in the region that contains the pair.
    Pairs in no region are masked. Regions do not overlap and lie in the past: low ≥ 0.
    """

    name: ClassVar[str]
    label: ClassVar[str] = ""
    source: ClassVar[str] = ""
    file_hash: ClassVar[str] = ""
    """Hash of the source file at import; recorded in results of methods that are plugins."""
    cached: ClassVar[bool] = True
    """Whether generation with a key-value cache gives exactly the logits of a pass without one."""
    needs_rotary: ClassVar[bool] = True
    """Whether the method requires a model with rotary positions."""

    def __init__(self, train_length: int) -> None:
        self.train_length = train_length

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            if not isinstance(cls.name, str) or not re.fullmatch(r"[\w-]+", cls.name):
                raise BadInput(f"invalid method name {cls.name!r}: use letters, digits, _ and -")
            cls.label, cls.file_hash = cls.label or cls.name, schemes.file_hash(cls)
            first = REGISTERED.setdefault(cls.name, cls)
            if (first.__module__, first.__qualname__) != (cls.__module__, cls.__qualname__):
                raise BadInput(f"method '{cls.name}' is declared twice: in {first.__module__} and in {cls.__module__}")
            REGISTERED[cls.name] = cls
            schemes.DECLARING.add(cls.__module__)

    def regions(self) -> tuple[Region, ...]:
        """Regions of visible keys; by default all earlier keys at their own distances."""
        return (Region(),)

    def rope_parameters(self, rope: dict[str, Any], dims: int) -> dict[str, Any] | None:
        """Parameters of transformers that replace `rope`, for `dims` rotated dimensions; None to keep it."""
        return None

    @property
    def crop(self) -> int | None:
        """Number of last tokens that the model reads, re-encoded from position 0; None for all."""
        return None

    @property
    def window(self) -> int | None:
        """Number of recent keys that every layer keeps, if the method is no more than a window; else None."""
        return None

    @property
    def kept(self) -> tuple[int, int] | None:
        """Numbers of first and of recent keys that a cache must keep; None for all keys."""
        return None

    @property
    def starts(self) -> int:
        """Smallest number of tokens at which the logits can differ from those of the model itself."""
        return 2

    def options(self) -> dict[str, Any]:
        """The options with their defaults resolved, as results record them."""
        return {}

    def about(self) -> dict[str, Any]:
        """Everything that decides the numbers of a method."""
        return {"name": self.name, **self.options(), "train_length": self.train_length}


def distance_matrix(method: ExtensionMethod, length: int) -> tuple[Tensor, Tensor]:
    """m(i, j) and the mask of visible keys of a text of `length` tokens, each (T, T); m is 0 where masked."""
    i, j = torch.arange(length)[:, None], torch.arange(length)[None]
    m, visible = torch.zeros(length, length, dtype=torch.float64), torch.zeros(length, length, dtype=torch.bool)
    for region in method.regions():
        inside = region.contains(i, j)
        m = torch.where(inside, (region.a(i) - region.b(j)).double(), m)
        visible |= inside
    return m, visible


def check_at_least(method: str, name: str, value: float, minimum: float) -> None:
    """Raise `BadInput` if an option is below its minimum."""
    if value < minimum:
        raise BadInput(f"{method}: {name} must be at least {minimum:g}, got {value:g}")
