"""What a positional scheme is."""

import hashlib
import inspect
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput

MOST = 2**16
"""Heads, their width, and entries of a scheme's tables; more is a slip of the pen."""


REGISTERED: dict[str, type["Scheme"]] = {}


class Scheme(nn.Module):
    """One way of telling a causal transformer about order. A subclass overrides what it touches.

    Order enters in three places, and each is a table over explicit positions or distances:
    `embedding` is added to the token embeddings, `angles` turn queries and keys, `bias` is added to the scaled scores.
    Tables are float64; whoever uses one casts it, never below float32.
    """

    name: ClassVar[str]
    label: ClassVar[str] = ""
    source: ClassVar[str] = ""
    relative: ClassVar[bool] = True
    colour: ClassVar[str] = ""
    """As #0072B2; plots choose one for a scheme that has none."""
    marker: ClassVar[str] = "."
    file_hash: ClassVar[str] = ""
    """Of its file as it was imported; none where a class was typed into a session."""

    window: int | None = None
    spec: str = ""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.register_load_state_dict_post_hook(_project)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            if not isinstance(cls.name, str) or not re.fullmatch(r"[\w-]+", cls.name):
                raise BadInput(f"a scheme is named {cls.name!r}: letters, digits, _ and - are possible")
            if cls.colour and not re.fullmatch(r"#[0-9a-fA-F]{6}", cls.colour):
                raise BadInput(f"the colour of scheme '{cls.name}' is {cls.colour!r}: one like #0072B2 is needed")
            cls.label, cls.file_hash = cls.label or cls.name, _file_hash(cls)
            known = REGISTERED.setdefault(cls.name, cls)
            if known.__qualname__ != cls.__qualname__ or known.__module__ != cls.__module__:
                raise BadInput(f"scheme '{cls.name}' is declared twice: in {known.__module__} and in {cls.__module__}")
            REGISTERED[cls.name] = cls

    def embedding(self, positions: Tensor) -> Tensor | None:
        """What is added to the token embeddings: (…, T) -> (…, T, D)."""
        return None

    def angles(self, positions: Tensor) -> Tensor | None:
        """By how much each half-split pair of query and key dimensions is turned: (…, T) -> (…, T, K/2)."""
        return None

    def bias(self, distances_N: Tensor) -> Tensor | None:
        """What is added to the scaled scores of a key this many tokens back: (N,) -> (H, N)."""
        return None

    def project(self) -> None:
        """Put learned parameters back where they must lie; leave those alone that are there.

        Loading weights calls it, and training: ours after each step, transformers' before each forward.
        """

    def extra_repr(self) -> str:
        return self.spec


def _project(scheme: Scheme, _: Any) -> None:
    scheme.project()


def _file_hash(cls: type) -> str:
    with suppress(OSError, TypeError):
        return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()[:16]
    return ""


def widest_float(values: Tensor) -> Tensor:
    """The widest floating type that the tensor's device has: float64, or float32 on Apple GPUs."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)
