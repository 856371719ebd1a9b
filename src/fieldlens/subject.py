"""Any causal language model as evaluation and the lens see it: token ids in, next-token logits out.

Our decoders compute only what the last positions need. Models of transformers are asked through their public interface
alone; what they cannot do is found out by trying, never by their name.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from fieldlens.decoder import Decoder
from fieldlens.errors import BadInput
from fieldlens.layout import narrower, visible
from fieldlens.schemes import check_window

ROWS = 256
"""Positions of which logits are held at once where we control the head."""

CLOSE = 1e-4
"""Two computations of the same logits differ by less, relative to the largest logit."""


class Subject(ABC):
    """A model to be examined."""

    name: str
    vocabulary: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    named_dtype: torch.dtype | None = None
    """What its folder says it is to be run in, if it says so; we may have loaded it in another."""
    ours = False
    layers: int | None = None
    width: int | None = None
    heads: int | None = None
    parameters: int = 0
    """Those that every token meets: all but the embedding's."""
    scores = False
    """Whether its attention holds a score for every pair of tokens."""
    train_length: int | None = None
    limit: int | None = None
    """Positions that the model has one by one, learned or in a table: it cannot take more tokens than that."""
    windows: tuple[int | None, ...] = (None,)
    """The window of each layer."""

    @abstractmethod
    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        """Logits after the last `keep` tokens, in pieces (B, t, V). `first` is the first token's position."""

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        """Bytes of a cache after so many tokens of one text: Σ fixed + each · min(tokens, w) over its layers.

        None if not known.
        """
        return None

    def fits_cropped(self, tokens: int, reach: int, window: int | None) -> bool:
        """Whether a text of so many tokens, cut down to what its end can see, gives the end's own logits."""
        return True

    def check_window(self, window: int | None) -> None:
        """Refuse a window that the model cannot be given."""
        check_window(window)

    def reach(self, window: int | None = None) -> int | None:
        """How many of the most recent tokens can move the last logits: Σ(w - 1) + 1 over layers; None for all."""
        widths = [narrower(own, window) for own in self.windows]
        return None if None in widths else sum(width - 1 for width in widths if width) + 1

    def noise(self, tokens: int) -> Tensor:
        """Two texts of so many random tokens, always the same."""
        chance = torch.Generator().manual_seed(0)
        return torch.randint(self.vocabulary, (2, tokens), generator=chance).to(self.device)

    def check_ids(self, low: int, high: int) -> None:
        """Refuse the smallest and the largest id of a text that are outside the vocabulary."""
        if low < 0 or high >= self.vocabulary:
            wrong = low if low < 0 else high
            raise BadInput(f"token id {wrong} is outside the vocabulary of {self.vocabulary} of {self.name}")

    def needed(self, tokens: int, keep: int, window: int | None) -> int:
        """How many of the last tokens are needed for the last `keep` logits."""
        reach = self.reach(window)
        if reach is None or tokens <= reach + keep - 1 or not self.fits_cropped(tokens, reach, window):
            return tokens
        return reach + keep - 1

    @torch.no_grad()
    def losses(self, ids_BT: Tensor, keep: int = 1, window: int | None = None) -> Tensor:
        """Negative log-likelihood of the last `keep` tokens, each given all before it, in nats: (B, keep) float64."""
        inputs_BT, targets_Bk = ids_BT[:, :-1].to(self.device), ids_BT[:, -keep:].to(self.device)
        tokens = inputs_BT.shape[1]
        needed = self.needed(tokens, keep, window)
        found, start = [], 0
        for logits_BtV in self.logits(inputs_BT[:, -needed:], keep, window, tokens - needed):
            wide = logits_BtV.to(torch.promote_types(logits_BtV.dtype, torch.float32))
            stop = start + wide.shape[1]
            picked_Bt = wide.gather(2, targets_Bk[:, start:stop, None])[..., 0]
            found.append(wide.logsumexp(2).double() - picked_Bt.double())
            start = stop
        assert start == keep
        return torch.cat(found, 1).cpu()


class Ours(Subject):
    """A decoder of this library."""

    ours = True

    def __init__(self, decoder: Decoder, name: str = "") -> None:
        config = decoder.config
        self.decoder = decoder.eval()
        self.name, self.vocabulary = name or config.scheme, decoder.embedding.num_embeddings
        self.device, self.dtype = decoder.embedding.weight.device, decoder.embedding.weight.dtype
        self.layers, self.width, self.heads = config.layers, config.width, config.heads
        self.parameters = _counted(decoder, decoder.embedding)
        self.train_length = config.train_length
        self.windows = (config.window,) * config.layers

    def cache_size(self, tokens: int, window: int | None = None) -> int:
        config = self.decoder.config
        kept = min(tokens, narrower(config.window, window) or tokens)
        return 2 * config.layers * config.width * self.dtype.itemsize * kept

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        # a relative scheme gives the same numbers wherever the text begins: begin at 0, to the same bits
        first = 0 if self.decoder.scheme.relative else first
        positions = torch.arange(first, first + ids_BT.shape[1], device=self.device)
        embeddings_BTD = self.decoder.embed(ids_BT)
        states_BTD = self.decoder.states(embeddings_BTD, positions, window=window, last=keep == 1)[:, -keep:]
        for start in range(0, keep, ROWS):
            yield self.decoder.head(states_BTD[:, start : start + ROWS])


class Theirs(Subject):
    """A causal language model of transformers."""

    stretch: int | None
    """The length past which its rotary positions change with the text, if they do."""

    def __init__(self, model: Any, name: str = "") -> None:
        self.model = model.eval()
        config = model.config.get_text_config()
        if getattr(model.config, "is_encoder_decoder", False):
            raise BadInput(f"{type(model).__name__} is an encoder and a decoder: a causal language model is needed")
        self.name = name or config.name_or_path or config.model_type
        embedding = model.get_input_embeddings()
        self.vocabulary, self.parameters = embedding.num_embeddings, _counted(model, embedding)
        self.device, self.dtype = embedding.weight.device, embedding.weight.dtype
        self.layers, self.width, self.heads = (
            getattr(config, name, None) for name in ("num_hidden_layers", "hidden_size", "num_attention_heads")
        )
        self.scores = model.config._attn_implementation == "eager"
        self.train_length, self.windows = _train_length(config), _windows(config)
        self.limit, self.stretch = _positions(model), _stretch(model)
        self._croppable: dict[tuple[int, int | None], bool] = {}

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        _forget_lengths(self.model)
        with band(window):
            made = self.model(input_ids=ids_BT, use_cache=False, logits_to_keep=keep)
        if not hasattr(made, "logits"):
            raise BadInput(f"{type(self.model).__name__} predicts no tokens: load it with AutoModelForCausalLM")
        yield made.logits[:, -keep:]

    def check_window(self, window: int | None) -> None:
        super().check_window(window)
        if window is not None and not self._takes_bands:
            raise BadInput(f"{self.name} cannot be given a window: a mask does not change what its layers see")

    def fits_cropped(self, tokens: int, reach: int, window: int | None) -> bool:
        key = (tokens, window)
        if key not in self._croppable:  # at this very length: some rotary positions change with it
            self._croppable[key] = self.limit is None and self._same_cropped(tokens, reach, window)
        return self._croppable[key]

    def _same_cropped(self, tokens: int, reach: int, window: int | None) -> bool:
        text_BT = self.noise(tokens)[:1]
        return close(self._last(text_BT, window), self._last(text_BT[:, -reach:], window))

    def cache_size(self, tokens: int, window: int | None = None) -> int | None:
        if not self._cache_parts:
            return None
        kept = [min(tokens, narrower(own, window) or tokens) for _, _, own in self._cache_parts]
        return sum(fixed + each * many for (fixed, each, _), many in zip(self._cache_parts, kept, strict=True))

    @cached_property
    def _cache_parts(self) -> list[tuple[int, int, int | None]]:
        """Of each layer of the model's own cache: fixed bytes, bytes for each token, and its window, if it slides.

        By what one token more takes: layers differ, some share their keys, and some keep a state of one size.
        """
        caches = []
        for tokens in (2, 3):
            try:
                with torch.no_grad():
                    made = self.model(input_ids=self.noise(tokens)[:1], use_cache=True)
            except (RuntimeError, ValueError, TypeError, AttributeError, IndexError):
                return []
            caches.append(_held(getattr(made, "past_key_values", None)))
        few, more = caches
        return [
            (size - 2 * (later - size), later - size, own) for (size, own), (later, _) in zip(few, more, strict=True)
        ]

    @cached_property
    def _takes_bands(self) -> bool:
        """With a window of 1 nothing but the last token may matter; without one something else must."""
        texts_BT = self.noise(min(6, self.limit or 6))
        texts_BT[1, -1] = texts_BT[0, -1]
        alone, free = (self._last(texts_BT, window) for window in (1, None))
        return close(alone[0], alone[1]) and not close(free[0], free[1])

    def _last(self, ids_BT: Tensor, window: int | None) -> Tensor:
        with torch.no_grad():
            return next(self.logits(ids_BT, 1, window, 0))[:, 0].double()


class Plain(Subject):
    """Any function of token ids (B, T) that returns logits (B, T, V)."""

    def __init__(self, function: Callable[[Tensor], Tensor], name: str = "") -> None:
        self.function, self.name = function, name or getattr(function, "__name__", type(function).__name__)
        if isinstance(function, nn.Module):
            function.eval()
        self.device = torch.device("cpu")
        with torch.no_grad():
            logits = function(torch.zeros(1, 1, dtype=torch.long))
        if not isinstance(logits, Tensor) or logits.ndim != 3:
            raise BadInput(
                "a model is a Decoder, a transformers model, or a function from ids (B, T) to logits (B, T, V)"
            )
        self.vocabulary, self.dtype = logits.shape[-1], logits.dtype

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int) -> Iterator[Tensor]:
        yield self.function(ids_BT)[:, -keep:]

    def check_window(self, window: int | None) -> None:
        if window is not None:
            raise BadInput(f"{self.name} cannot be given a window")


def subject(model: Any, name: str = "") -> Subject:
    """A model as a subject: a Decoder, a model of transformers, or a function from ids to logits."""
    if isinstance(model, Subject):
        return model
    if isinstance(model, Decoder):
        return Ours(model, name)
    if isinstance(getattr(model, "decoder", None), Decoder):
        return Ours(model.decoder, name)
    if hasattr(model, "get_input_embeddings") and hasattr(model, "config"):
        return Theirs(model, name)
    if callable(model):
        return Plain(model, name)
    raise BadInput(f"{type(model).__name__} is no model: give a Decoder, a transformers model or a function of ids")


def weights_hash(module: nn.Module) -> str:
    """Names a model by its weights."""
    found = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        flat = value.detach().cpu().contiguous()
        found.update(f"{name} {flat.dtype} {tuple(flat.shape)}".encode())
        found.update(flat.view(torch.uint8).numpy().data if flat.numel() and flat.ndim else str(flat.tolist()).encode())
    return found.hexdigest()


def check_causal(subject: Subject) -> None:
    """Refuse a model whose logits change when a later token does."""
    tokens = min(8, subject.limit or 8)
    ids_BT = subject.noise(tokens)[:1].repeat(2, 1)
    ids_BT[1, -1] = (ids_BT[0, -1] + 1) % subject.vocabulary
    if tokens < 2:
        return
    with torch.no_grad():
        logits_BTV = torch.cat(list(subject.logits(ids_BT, tokens, None, 0)), 1)[:, :-1]
    if not close(logits_BTV[0], logits_BTV[1]):
        raise BadInput(f"{subject.name} is not causal: its prediction changes with a token that comes later")


def bytes_held(cache: Any) -> int | None:
    """What the keys, values and states in a cache of transformers take; None where they cannot be found."""
    return sum(size for size, _ in _held(cache)) or None


def _held(cache: Any) -> list[tuple[int, int | None]]:
    """The bytes that each layer of a cache holds, and its window; the first is what the cache holds beside layers."""
    layers = getattr(cache, "layers", None)
    parts = (cache, *layers) if layers else ()
    return [(sum(one.nbytes for one in _tensors(vars(part))), getattr(part, "sliding_window", None)) for part in parts]


def _tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor but single numbers, in whatever it is kept."""
    if isinstance(value, Tensor) and value.ndim > 1:
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors(one)


def _counted(model: nn.Module, embedding: nn.Module) -> int:
    tokens = {id(parameter) for parameter in embedding.parameters()}
    return sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in tokens)


def close(a: Tensor, b: Tensor, slack: float = CLOSE) -> bool:
    """Whether two computations of the same logits agree; what is no number in both agrees too."""
    a, b = a.double().nan_to_num(), b.double().nan_to_num()
    return bool((a - b).abs().max() <= slack * a.abs().max())


def _train_length(config: Any) -> int | None:
    """The length that a configuration of transformers says the model was trained at, before any stretching."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    each = [one for one in (rope, *rope.values()) if isinstance(one, dict)] if isinstance(rope, dict) else []
    stretched = [one.get("original_max_position_embeddings") for one in each]  # layers may differ
    original = min((value for value in stretched if isinstance(value, int)), default=None)
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    found = [original, *(getattr(config, name, None) for name in names)]
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def _stretch(model: Any) -> int | None:
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds = kind.values() if isinstance(kind, dict) else [kind]  # layers may differ
        if "dynamic" in kinds:
            return int(module.original_max_seq_len)
        if "longrope" in kinds:
            return _train_length(model.config.get_text_config())
    return None


def _forget_lengths(model: nn.Module) -> None:
    """Rotary positions that stretch with the text keep the stretch of the longest one: begin anew."""
    for module in model.modules():
        first = getattr(module, "original_max_seq_len", None)
        for name in [key for key in vars(module) if first is not None and key.endswith("max_seq_len_cached")]:
            kind = name.removesuffix("max_seq_len_cached")
            original, now = (getattr(module, f"{kind}{what}inv_freq", None) for what in ("original_", ""))
            if original is not None and now is not None and getattr(module, name) > first:
                module.register_buffer(f"{kind}inv_freq", original.to(now.device), persistent=False)
                setattr(module, name, first)


def _windows(config: Any) -> tuple[int | None, ...]:
    """The window of each layer by a configuration of transformers: how many keys, itself included, a query sees."""
    layers = getattr(config, "num_hidden_layers", None) or 1
    width = getattr(config, "sliding_window", None)
    if not isinstance(width, int) or width < 1 or getattr(config, "use_sliding_window", True) is False:
        return (None,) * layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return tuple(width if kind == "sliding_attention" else None for kind in kinds)


def _positions(model: Any) -> int | None:
    """The rows of a table of positions: learned, in an embedding that is not the tokens', or fixed, in a buffer.

    It has a row for each position; some keep a few spare.
    """
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    fixed = [one for name, one in model.named_buffers() if "pos" in name.rpartition(".")[2] and one.ndim == 2]
    if length and any(len(one) == length for one in fixed):
        return int(length)
    tokens = model.get_input_embeddings()
    others = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not tokens]
    fitting = [m for m in others if length and 0 <= m.num_embeddings - length <= 8]
    if not length or not fitting:
        return None
    # some count from behind the padding, and have no rows to spare for that
    first = max(0 if m.padding_idx is None else m.padding_idx + 1 for m in fitting)
    return min(length, max(m.num_embeddings for m in fitting) - first)


@contextmanager
def band(window: int | None) -> Iterator[None]:
    """While this holds, every mask that transformers makes is cut to a band as well: the smaller window counts."""
    if window is None:
        yield
        return
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS
    from transformers.masking_utils import and_masks

    def inside(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        return visible(query - key, window)

    def banded(make: Callable[..., Any]) -> Callable[..., Any]:
        def mask(*, mask_function: Callable[..., Any], **rest: Any) -> Any:
            return make(mask_function=and_masks(mask_function, inside), **{**rest, "allow_is_causal_skip": False})

        return mask

    names = [name for name in ("eager", "sdpa") if name in MASKS]
    for name in names:
        MASKS[name] = banded(MASKS[name])
    try:
        yield
    finally:
        for name in names:
            del MASKS[name]


@contextmanager
def resting(model: Any) -> Iterator[None]:
    """While this holds a module is in evaluation mode; afterwards as it was."""
    modes = {module: module.training for module in model.modules()} if isinstance(model, nn.Module) else {}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode
