"""The base class of positional schemes."""

import hashlib
import inspect
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput

MAX_SIZE = 2**16
"""Maximum number of heads, head width and size of a scheme's tables; catches typing errors."""


MARKERS = ".,ov^<>8spP*hHXxdD|_+1234"
"""Markers of Matplotlib that a scheme may have in plots."""

REGISTERED: dict[str, type["Scheme"]] = {}

DECLARING: set[str] = set()
"""Modules that declare a scheme or another class that plugins can add."""


class Scheme(nn.Module):
    """Base class of positional schemes for causal transformers. A subclass overrides the methods it needs.

    A scheme can act in three places, each a table over explicit positions or distances: `embedding` is added to the
    token embeddings, `angles` rotate queries and keys, `bias` is added to the scaled scores.
    Tables are float64; the caller casts them, never below float32.
    """

    name: ClassVar[str]
    label: ClassVar[str] = ""
    source: ClassVar[str] = ""
    relative: ClassVar[bool] = True
    colour: ClassVar[str] = ""
    """Hex code such as #0072B2; plots assign a colour to a scheme without one."""
    marker: ClassVar[str] = "."
    per_layer: ClassVar[bool] = False
    """Whether each layer has its own parameters; by default all layers with the same spec share them."""
    file_hash: ClassVar[str] = ""
    """Hash of the source file at import; empty for a class defined in an interactive session."""

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
                raise BadInput(f"invalid scheme name {cls.name!r}: use letters, digits, _ and -")
            if cls.colour and not re.fullmatch(r"#[0-9a-fA-F]{6}", cls.colour):
                raise BadInput(f"the colour of scheme '{cls.name}' must be a code like #0072B2, got {cls.colour!r}")
            if not all(isinstance(text, str) for text in (cls.label, cls.source)):
                raise BadInput(f"label and source of scheme '{cls.name}' must be strings")
            if cls.marker not in tuple(MARKERS):
                raise BadInput(f"the marker of scheme '{cls.name}' must be one of {MARKERS}, got {cls.marker!r}")
            cls.label, cls.file_hash = cls.label or cls.name, file_hash(cls)
            first = REGISTERED.setdefault(cls.name, cls)
            if first.__qualname__ != cls.__qualname__ or first.__module__ != cls.__module__:
                raise BadInput(f"scheme '{cls.name}' is declared twice: in {first.__module__} and in {cls.__module__}")
            REGISTERED[cls.name] = cls
            DECLARING.add(cls.__module__)

    def embedding(self, positions: Tensor) -> Tensor | None:
        """Vectors added to the token embeddings: (…, T) -> (…, T, D)."""
        return None

    def angles(self, positions: Tensor) -> Tensor | None:
        """Rotation angles of the pairs (j, j + K/2) of query and key dimensions: (…, T) -> (…, T, K/2)."""
        return None

    def bias(self, distances_N: Tensor) -> Tensor | None:
        """Biases added to the scaled scores of keys at these distances before the query: (N,) -> (H, N)."""
        return None

    @property
    def distinct_schemes(self) -> list["Scheme"]:
        """The schemes of a decoder's layers, each once: this one, if all layers share it."""
        return [self]

    def of_layer(self, number: int) -> "Scheme":
        """The scheme of a layer of a decoder: this one, if all layers share it."""
        return self

    def project(self) -> None:
        """Project learned parameters onto their valid range, in place; do not write to parameters already inside it.

        Called when weights are loaded, after each step of our training loop, and before each forward in training
        mode under transformers.
        """

    def extra_repr(self) -> str:
        return self.spec


def _project(scheme: Scheme, _: Any) -> None:
    scheme.project()


def file_hash(cls: type) -> str:
    """Hash of the source file of a class; empty for a class defined in an interactive session."""
    with suppress(OSError, TypeError):
        return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()[:16]
    return ""


def widest_float(values: Tensor) -> Tensor:
    """Cast to the widest floating dtype of the tensor's device: float64, or float32 on Apple GPUs."""
    return values.to(torch.float32 if values.device.type == "mps" else torch.float64)
