"""The decoder: the paper's architecture with an interchangeable positional scheme."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fieldlens.core.errors import BadInput
from fieldlens.kernels.attention import Terms, attend, bias_table, scheme_terms
from fieldlens.kernels.layout import Layout, check_positions, make_layout
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.layers import layer_schemes
from fieldlens.schemes.spec import canonical, cycle, parse
from fieldlens.schemes.window import check_window, min_window


@dataclass(frozen=True)
class Config:
    """The shape of a decoder. The defaults are the paper's model of 162 million parameters."""

    scheme: str = "sandwich"
    window: int | None = None
    layers: int = 12
    width: int = 768
    heads: int = 12
    vocab_size: int = 50304
    mlp_width: int | None = None
    tied: bool = False
    norm_eps: float = 1e-5
    init_std: float = 0.02
    train_length: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "width", "heads", "vocab_size"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise BadInput(f"{name} must be an integer of at least 1, got {value}")
        for name in ("norm_eps", "init_std"):
            if not getattr(self, name) > 0:
                raise BadInput(f"{name} must be greater than 0, got {getattr(self, name)}")
        if self.width % self.heads:
            raise BadInput(f"width {self.width} is not a multiple of heads {self.heads}")
        for name in ("mlp_width", "train_length"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadInput(f"{name} must be an integer of at least 1, got {value}")
        object.__setattr__(self, "scheme", canonical(self.scheme, self.window))
        windows = {parse(entry)[1].get("window") for entry in cycle(self.scheme)}
        object.__setattr__(self, "window", windows.pop() if len(windows) == 1 else None)
        object.__setattr__(self, "mlp_width", self.mlp_width or 4 * self.width)


class Cache(Protocol):
    """Keys and values of earlier tokens, stored per layer."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens; return all keys and values that the queries attend to."""


Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention over unrotated queries, keys and values: (B, H, T, K), (B, H, S, K), (B, H, S, K) -> (B, H, T, K)."""


class Extension(Protocol):
    """Replaces the rotation, biases and mask of a decoder, as methods of `fieldlens.extension` do."""

    def attention(self, scheme: Scheme, q_positions: Tensor, k_positions: Tensor, window: int | None) -> Attention:
        """The attention of a layer with this scheme, at positions (T,) or (B, T) and (S,) or (B, S)."""


class LayerInputs(NamedTuple):
    """What a layer computes besides its weights. It reads `keys` tokens and outputs the last `queries` of them."""

    keys: int
    queries: int
    terms: Terms | None
    extended: Attention | None = None
    """Attention that replaces that of the scheme."""


class Block(nn.Module):
    """Pre-norm attention and MLP. Of S input tokens, the last `inputs.queries` are output."""

    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        assert config.mlp_width is not None
        self.heads, self.layer = config.heads, layer
        self.attention_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.attention_out = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.mlp_in = nn.Linear(config.width, config.mlp_width)
        self.mlp_out = nn.Linear(config.mlp_width, config.width)

    def forward(self, x_BSD: Tensor, inputs: LayerInputs, cache: Cache | None) -> Tensor:
        normed_BSD = self.attention_norm(x_BSD)
        q_BHTK, k_BHSK, v_BHSK = self.project(normed_BSD, inputs.queries)
        update = None if cache is None else partial(cache.update, layer_idx=self.layer)
        if inputs.extended is not None:
            k_BHSK, v_BHSK = (k_BHSK, v_BHSK) if update is None else update(k_BHSK, v_BHSK)
            mixed_BHTK = inputs.extended(q_BHTK, k_BHSK, v_BHSK)
        else:
            assert inputs.terms is not None
            mixed_BHTK = attend(q_BHTK, k_BHSK, v_BHSK, inputs.terms, normed_BSD, update)
        x_BTD = x_BSD[:, -inputs.queries :] + self.attention_out(mixed_BHTK.transpose(1, 2).flatten(2))
        return x_BTD + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x_BTD))))

    def project(self, x_BSD: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the last tokens, keys and values of all: (B, H, T, K), (B, H, S, K), (B, H, S, K)."""
        # Always call the module: a replacement such as a LoRA adapter must also apply to the last query.
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in self.qkv(x_BSD).chunk(3, -1))
        return q[:, :, -queries:], k, v


class Decoder(nn.Module):
    """A causal language model: token ids or embeddings in, logits out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        """Activation checkpointing: keep only the input of each block and recompute the rest in the backward pass."""
        self.extension: Extension | None = None
        """A method that runs the decoder past its training length; not saved."""
        with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext():
            # a scheme may read its own tensors in its constructor, so they cannot be on the meta device
            self.scheme = layer_schemes(
                config.scheme, config.layers, config.heads, config.width // config.heads, config.train_length
            )
        self.windows = tuple(self.scheme.of_layer(number).window for number in range(config.layers))
        """The window of each layer."""
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """N(0, σ²), with σ/√(2R) for projections into the residual stream; biases 0. Schemes initialise themselves."""
        std = self.config.init_std
        residual_std = std / math.sqrt(2 * self.config.layers)
        for name, module in self.named_modules():
            if name.startswith("scheme."):
                continue
            if isinstance(module, nn.Linear):
                module.weight.normal_(std=residual_std if name.endswith("_out") else std)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.Embedding):
                module.weight.normal_(std=std)
        if self.config.tied:
            self.head.weight = self.embedding.weight

    def parameter_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Parameter groups for an optimiser. Weight decay applies to matrices, not to biases, norms or the scheme."""
        excluded = {id(parameter) for parameter in self.scheme.parameters()}
        decay = [p for p in self.parameters() if p.ndim >= 2 and id(p) not in excluded]
        no_decay = [p for p in self.parameters() if p.ndim < 2 or id(p) in excluded]
        return [{"params": decay, "weight_decay": weight_decay}, {"params": no_decay, "weight_decay": 0.0}]

    def contents(self) -> dict[str, Tensor]:
        """The tensors that are saved: every parameter once, and the persistent buffers of the scheme."""
        scheme = {f"scheme.{name}": value for name, value in self.scheme.state_dict().items()}
        return {name: value.detach() for name, value in {**dict(self.named_parameters()), **scheme}.items()}

    def embed(self, ids_BT: Tensor) -> Tensor:
        """Token embeddings, before any positional scheme: (B, T) -> (B, T, D)."""
        if ids_BT.ndim != 2 or ids_BT.is_floating_point():
            raise BadInput(
                f"token ids must be integers of shape (batch, tokens), got {ids_BT.dtype}, {tuple(ids_BT.shape)}"
            )
        if ids_BT.device.type == "cpu" and ids_BT.numel():
            low, high = int(ids_BT.min()), int(ids_BT.max())
            if low < 0 or high >= self.embedding.num_embeddings:
                wrong = low if low < 0 else high
                raise BadInput(f"token id {wrong} is outside the vocabulary of {self.embedding.num_embeddings}")
        return self.embedding(ids_BT)

    def forward(
        self,
        ids_BT: Tensor | None = None,
        *,
        embeddings_BTD: Tensor | None = None,
        positions: Tensor | None = None,
        key_positions: Tensor | Sequence[Tensor] | None = None,
        window: int | Sequence[int | None] | None = None,
        last: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits of the next token after each token: (B, T, V), or (B, 1, V) with `last`."""
        states_BTD = self.states(
            self._input(ids_BT, embeddings_BTD),
            positions,
            key_positions,
            window=window,
            last=last,
            cache=cache,
        )
        return self.head(states_BTD)

    def _input(self, ids_BT: Tensor | None, embeddings_BTD: Tensor | None) -> Tensor:
        if (ids_BT is None) == (embeddings_BTD is None):
            raise BadInput("pass exactly one of token ids and embeddings")
        x_BTD = embeddings_BTD if ids_BT is None else self.embed(ids_BT)
        assert x_BTD is not None
        return x_BTD

    def states(
        self,
        x_BTD: Tensor,
        positions: Tensor | None = None,
        key_positions: Tensor | Sequence[Tensor] | None = None,
        *,
        window: int | Sequence[int | None] | None = None,
        last: bool = False,
        cache: Cache | None = None,
        tables: Mapping[Scheme, Tensor | None] | None = None,
    ) -> Tensor:
        """Final hidden states, the input of the head: (B, T, D), or (B, 1, D) with `last`.

        `positions` is (T,) or (B, T), by default 0..T-1. Keys have the same positions, except with a cache, which
        requires `key_positions`, those of all layers or a sequence with those of each. The smaller of `window`, of all
        layers or of each, and the layer's own window applies. When decoding token by token, pass sufficiently long
        `tables`, the `bias_table` of every scheme, so that they are not recomputed each step.

        `last` computes only what the last position depends on: one query in the last layer and, with a window, w-1 more
        positions for each layer below. The result equals that of the full computation.
        """
        if (cache is None) != (key_positions is None) or (cache is not None and last):
            raise BadInput("cache and key_positions must be passed together, and not with last=True")
        if x_BTD.ndim != 3 or x_BTD.shape[1] < 1 or x_BTD.shape[2] != self.config.width:
            raise BadInput(
                f"embeddings must have shape (batch, tokens >= 1, {self.config.width}), got {tuple(x_BTD.shape)}"
            )
        if positions is None:
            positions = torch.arange(x_BTD.shape[1], device=x_BTD.device)
        check_positions("positions", positions, *x_BTD.shape[:2])
        requested = [window] * self.config.layers if window is None or isinstance(window, int) else window
        for width in set(requested):
            check_window(width)
        windows = [min_window(width, own) for width, own in zip(requested, self.windows, strict=True)]
        layer_inputs = self._layer_inputs(x_BTD, positions, key_positions, windows, last, tables or {})
        x_BTD = x_BTD[:, -layer_inputs[0].keys :]
        embedding = self.scheme.embedding(positions[..., -layer_inputs[0].keys :])
        if embedding is not None:
            x_BTD = (x_BTD + embedding.to(torch.promote_types(x_BTD.dtype, torch.float32))).to(x_BTD.dtype)
        for block, inputs in zip(self.blocks, layer_inputs, strict=True):
            if self.checkpointing and cache is None and torch.is_grad_enabled():
                x_BTD = checkpoint(block, x_BTD, inputs, None, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, inputs, cache)
        return self.norm(x_BTD)

    def _layer_inputs(
        self,
        x_BTD: Tensor,
        positions: Tensor,
        key_positions: Tensor | Sequence[Tensor] | None,
        windows: Sequence[int | None],
        last: bool,
        tables: Mapping[Scheme, Tensor | None],
    ) -> list[LayerInputs]:
        """Inputs of every layer, from bottom to top; layers with the same scheme and token counts share one object."""
        counts = _token_counts(positions, windows, last)
        tables = dict(tables)  # of the bottom layer of each scheme, which has the longest reach
        layouts: dict[Any, Layout] = {}
        shared: dict[Any, LayerInputs] = {}
        copies: dict[Any, Terms] = {}
        layer_inputs = []
        for number, (window, keys, queries) in enumerate(zip(windows, counts, counts[1:], strict=False)):
            scheme = self.scheme.of_layer(number)
            cached = (
                key_positions if key_positions is None or isinstance(key_positions, Tensor) else key_positions[number]
            )
            at = (window, keys, queries, id(cached))
            if (scheme, *at) not in shared:
                new_positions = positions[..., -keys:]
                q_positions = new_positions if queries == keys else positions[..., -queries:]
                k_positions = new_positions if cached is None else cached
                if self.extension is not None:
                    extended = self.extension.attention(scheme, q_positions, k_positions, window)
                    shared[(scheme, *at)] = LayerInputs(keys, queries, None, extended)
                    layer_inputs.append(shared[(scheme, *at)])
                    continue
                if at not in layouts:
                    layouts[at] = make_layout(q_positions, k_positions, window)
                copy = copies.get((scheme.spec, *at)) if scheme.fixed_tables else None
                if copy is None and scheme not in tables:
                    tables[scheme] = bias_table(scheme, layouts[at].reach, x_BTD)
                terms = scheme_terms(
                    scheme, q_positions, new_positions, k_positions, x_BTD, layouts[at], tables.get(scheme), copy
                )
                copies[(scheme.spec, *at)] = terms
                shared[(scheme, *at)] = LayerInputs(keys, queries, terms)
            layer_inputs.append(shared[(scheme, *at)])
        return layer_inputs


def _token_counts(positions: Tensor, windows: Sequence[int | None], last: bool) -> list[int]:
    """Number of most recent tokens that the output depends on, at the input of each layer and at the output."""
    tokens = positions.shape[-1]
    if not last:
        return [tokens] * (len(windows) + 1)
    # Cropping is valid only if positions increase: then the w nearest keys are among the last w tokens.
    increasing = any(windows) and bool((positions.diff() > 0).all())
    counts = [1]
    for window in reversed(windows):
        counts.insert(0, min(tokens, counts[0] + window - 1) if window and increasing else tokens)
    return counts
