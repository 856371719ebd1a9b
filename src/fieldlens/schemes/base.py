"""The base class of positional schemes."""

import hashlib
import inspect
import re
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.schemes.softmax_options import SoftmaxOptions

MAX_SIZE = 2**16
"""Maximum number of heads, head width and size of a scheme's tables; catches typing errors."""


MARKERS = ".,ov^<>8spP*hHXxdD|_+1234"
"""Markers of Matplotlib that a scheme may have in plots."""

REGISTERED: dict[str, type["Scheme"]] = {}

DECLARING: set[str] = set()
"""Modules that declare a scheme or another class that plugins can add."""


KEY_METHODS = ("key_bias", "log_decay", "key_features")
"""Methods whose results are kept in the cache."""
CONTENT_METHODS = (*KEY_METHODS, "query_features")
"""Methods that take the input of the layer."""
SCORE_METHODS = ("attention_logits", "attention_weights")
"""Methods that take a block of scores."""


class ScoreBlock(NamedTuple):
    """Scores of a block of queries with all keys that any of them sees. B is 1 if all rows have the same positions."""

    scores_BHts: Tensor
    """q·k/√K plus the biases of the scheme, at least float32; those of invisible keys mean nothing."""
    q_BHtK: Tensor
    k_BHsK: Tensor
    q_features_BHtF: Tensor | None
    k_features_BHsF: Tensor | None
    q_positions_Bt: Tensor
    k_positions_Bs: Tensor
    visible_Bts: Tensor

    @property
    def distances(self) -> Tensor:
        """Distance of each key before each query, negative for later keys: (B, t, s)."""
        return self.q_positions_Bt[:, :, None] - self.k_positions_Bs[:, None]

    def sum_from_key(self, values_BHts: Tensor) -> Tensor:
        """Sum of values over the keys from each key up to the query: Σ of visible keys at its position or later."""
        values_BHts = values_BHts.masked_fill(~self.visible_Bts[:, None], 0)
        if bool((self.k_positions_Bs.diff() >= 0).all()):
            return values_BHts.flip(3).cumsum(3).flip(3)
        order_BHts = self.k_positions_Bs.argsort(descending=True)[:, None, None].expand(values_BHts.shape)
        return torch.zeros_like(values_BHts).scatter(3, order_BHts, values_BHts.gather(3, order_BHts).cumsum(3))


class BiasForm(NamedTuple):
    """A bias as a function of distance and of coefficients of the head, for kernels that compute it while they run."""

    curve: Callable[..., Tensor]
    """Elementwise function, at the top level of a module, of distances and of one number per coefficient."""
    coefficients_H: tuple[Tensor, ...]


class Scheme(nn.Module):
    """Base class of positional schemes for causal transformers. A subclass overrides the methods it needs.

    1. Tables over explicit positions or distances, the fastest: `embedding` is added to the token embeddings, `angles`
       and `magnitudes` rotate and stretch queries and keys, `bias` is added to the scaled scores.
    2. Additions that cost little: `query_scale` multiplies queries; `key_bias` and `log_decay`, functions of the
       layer's input, are added to the scores of a key; `sink_logit` is one more logit in the softmax.
    3. Anything else, at the cost of materialised scores: `attention_logits` and `attention_weights` get a block of
       queries with all the keys they see.

    Tables are float64; the caller casts them, never below float32.
    """

    name: ClassVar[str]
    label: ClassVar[str] = ""
    source: ClassVar[str] = ""
    relative: bool = True
    """Whether outputs stay the same if all positions are shifted."""
    exact_with_cache: bool = True
    """Whether decoding with a cache gives the same outputs as one forward pass."""
    exact_reach: bool = True
    """Whether gradients beyond the reach of a window are exactly 0, not just to rounding error."""
    per_layer: ClassVar[bool] = False
    """Whether each layer has its own parameters; by default all layers with the same spec share them."""
    by_length: bool = False
    """Whether `angles` takes a second argument, the number of tokens of each text."""
    score_factor: float = 1.0
    """Constant factor of all scores q·k/√K."""
    examples: ClassVar[tuple[str, ...]] = ()
    """Specs that the contract tests use, instead of every choice of every option."""
    colour: ClassVar[str] = ""
    """Hex code such as #0072B2; plots assign a colour to a scheme without one."""
    marker: ClassVar[str] = "."
    file_hash: ClassVar[str] = ""
    """Hash of the source file at import; empty for a class defined in an interactive session."""

    window: int | None = None
    spec: str = ""
    train_length: int | None = None
    """The training length of the model, if known."""

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__()
        self.heads, self.head_width = heads, head_width
        self.softmax_options: SoftmaxOptions | None = None
        self.takes_input, self.takes_scores = self.overrides(*CONTENT_METHODS), self.overrides(*SCORE_METHODS)
        self.stretches, self.scales_queries = self.overrides("magnitudes"), self.overrides("query_scale")
        self.has_sink = self.overrides("sink_logit")
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

    def prepare(self) -> None:
        """Called when `window` and `train_length` are set; raise `BadInput` if the scheme lacks something."""

    def embedding(self, positions: Tensor) -> Tensor | None:
        """Vectors added to the token embeddings: (…, T) -> (…, T, D)."""
        return None

    def angles(self, positions: Tensor) -> Tensor | None:
        """Rotation angles of the pairs (j, j + K/2) of query and key dimensions: (…, T) -> (…, T, K/2)."""
        return None

    def magnitudes(self, positions: Tensor) -> Tensor | None:
        """Factors of the same pairs, which multiply queries and divide keys: (…, T) -> (…, T, K/2)."""
        return None

    def bias(self, distances_N: Tensor) -> Tensor | None:
        """Biases added to the scaled scores of keys at these distances before the query: (N,) -> (H, N)."""
        return None

    def bias_form(self) -> BiasForm | None:
        """The same as `bias` in closed form, if there is one: on GPUs it is faster than reading a table."""
        return None

    def query_scale(self, positions: Tensor, visible: Tensor) -> Tensor | None:
        """Factor of each query, from its position and the number of keys it sees: (B or 1, 1, T) -> (B, H, T).

        The result may have any shape that broadcasts to (B, H, T).
        """
        return None

    def key_bias(self, x_BSD: Tensor) -> Tensor | None:
        """Biases added to the scores of each key, from the normalised input of the layer: (B, S, D) -> (B, H, S)."""
        return None

    def log_decay(self, x_BSD: Tensor) -> Tensor | None:
        """What each token adds to the scores that later queries have with earlier keys: (B, S, D) -> (B, H, S).

        The score of query i and key j gets the sum of the tokens at positions j+1 … i.
        """
        return None

    def sink_logit(self) -> Tensor | None:
        """One more logit per head in the denominator of the softmax: (H,)."""
        return None

    def query_features(self, x_BTD: Tensor) -> Tensor | None:
        """What `attention_logits` needs of the queries' inputs: (B, T, D) -> (B, H, T, F)."""
        return None

    def key_features(self, x_BSD: Tensor) -> Tensor | None:
        """What `attention_logits` needs of the keys' inputs, kept in the cache: (B, S, D) -> (B, H, S, F)."""
        return None

    def attention_logits(self, block: ScoreBlock) -> Tensor:
        """The logits of the softmax, from a block of scores: (B, H, t, s)."""
        return block.scores_BHts

    def attention_weights(self, logits_BHts: Tensor, visible_Bts: Tensor) -> Tensor:
        """The weights of the values, instead of the softmax over visible keys: (B, H, t, s)."""
        raise NotImplementedError

    @property
    def distinct_schemes(self) -> list["Scheme"]:
        """The schemes of a decoder's layers, each once: this one, if all layers share it."""
        return [self]

    def of_layer(self, number: int) -> "Scheme":
        """The scheme of a layer of a decoder: this one, if all layers share it."""
        return self

    def overrides(self, *methods: str) -> bool:
        """Whether the class of this scheme defines any of these methods."""
        return any(getattr(type(self), method) is not getattr(Scheme, method) for method in methods)

    @property
    def tables_only(self) -> bool:
        """Whether embeddings, rotations by position and biases by distance are all that this scheme adds."""
        more = self.takes_input, self.takes_scores, self.stretches, self.scales_queries, self.has_sink, self.by_length
        return self.softmax_options is None and self.score_factor == 1 and not any(more)

    @cached_property
    def fixed_tables(self) -> bool:
        """Whether embeddings, rotations and biases by distance are the same in every scheme with this spec."""
        names = [name for name, _ in (*self.named_parameters(), *self.named_buffers())]
        stateless = all(name.startswith("softmax_options.") for name in names)
        return stateless or not self.overrides("embedding", "angles", "magnitudes", "bias")

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
