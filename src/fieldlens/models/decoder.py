"""The decoder: the paper's architecture, with the positional scheme as one replaceable part."""

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fieldlens.core.errors import BadInput
from fieldlens.kernels.attention import attend, bias_table, expand_bias
from fieldlens.kernels.layout import Layout, check_positions, layout
from fieldlens.kernels.rotary import RotaryTable, apply_rotary, rotary_table
from fieldlens.schemes.spec import canonical, parse, scheme
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
        for what in ("layers", "width", "heads", "vocab_size"):
            value = getattr(self, what)
            if not isinstance(value, int) or value < 1:
                raise BadInput(f"{what} is {value}: a whole number from 1 is needed")
        for what in ("norm_eps", "init_std"):
            if not getattr(self, what) > 0:
                raise BadInput(f"{what} is {getattr(self, what)}: more than 0 is needed")
        if self.width % self.heads:
            raise BadInput(f"width {self.width} is not a multiple of heads {self.heads}")
        for what in ("mlp_width", "train_length"):
            value = getattr(self, what)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise BadInput(f"{what} is {value}: a whole number from 1 is needed")
        object.__setattr__(self, "scheme", canonical(self.scheme, self.window))
        object.__setattr__(self, "window", parse(self.scheme)[1].get("window"))
        object.__setattr__(self, "mlp_width", self.mlp_width or 4 * self.width)


class Cache(Protocol):
    """Keys and values of earlier tokens, kept by layer."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Take the new tokens' keys and values; return those that the queries are to look at."""


class LayerInputs(NamedTuple):
    """Where the tokens of one layer stand: of `keys` tokens that come in, the last `queries` go on."""

    keys: int
    queries: int
    where: Layout
    bias: Tensor | None
    q_rotation: RotaryTable | None
    k_rotation: RotaryTable | None


class Block(nn.Module):
    """Pre-norm attention and MLP. Of S tokens in, the last `place.queries` come out."""

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

    def forward(self, x_BSD: Tensor, place: LayerInputs, cache: Cache | None) -> Tensor:
        q_BHTK, k_BHSK, v_BHSK = self._project(self.attention_norm(x_BSD), place.queries)
        q_BHTK, k_BHSK = apply_rotary(q_BHTK, place.q_rotation), apply_rotary(k_BHSK, place.k_rotation)
        if cache is not None:
            k_BHSK, v_BHSK = cache.update(k_BHSK, v_BHSK, self.layer)
        mixed_BHTK = attend(q_BHTK, k_BHSK, v_BHSK, place.bias, place.where)
        x_BTD = x_BSD[:, -place.queries :] + self.attention_out(mixed_BHTK.transpose(1, 2).flatten(2))
        return x_BTD + self.mlp_out(F.gelu(self.mlp_in(self.mlp_norm(x_BTD))))

    def _project(self, x_BSD: Tensor, queries: int) -> tuple[Tensor, Tensor, Tensor]:
        # always through the module: what was put in its place, an adapter for one, must count for the last query too
        q, k, v = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in self.qkv(x_BSD).chunk(3, -1))
        return q[:, :, -queries:], k, v


class Decoder(nn.Module):
    """A causal language model: tokens, or embeddings, in; logits out."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.checkpointing = False
        """Keep only each block's input in training and compute the rest again in backward."""
        with torch.device("cpu") if torch.get_default_device().type == "meta" else nullcontext():
            # a scheme may look at its own numbers while it is made
            self.scheme = scheme(config.scheme, config.heads, config.width // config.heads)
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(config.layers))
        self.norm = nn.LayerNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.vocab_size, bias=False)
        self._initialise()

    @torch.no_grad()
    def _initialise(self) -> None:
        """N(0, σ²) everywhere, σ/√(2R) where a block writes to the residual stream, biases 0; not in a scheme."""
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
        """For an optimiser: matrices decay; biases, norms and what a scheme learns do not."""
        still = {id(parameter) for parameter in self.scheme.parameters()}
        decays = [p for p in self.parameters() if p.ndim >= 2 and id(p) not in still]
        stays = [p for p in self.parameters() if p.ndim < 2 or id(p) in still]
        return [{"params": decays, "weight_decay": weight_decay}, {"params": stays, "weight_decay": 0.0}]

    def contents(self) -> dict[str, Tensor]:
        """What a file holds of a decoder: its parameters, once each, and the buffers that a scheme wants kept."""
        scheme = {f"scheme.{name}": value for name, value in self.scheme.state_dict().items()}
        return {name: value.detach() for name, value in {**dict(self.named_parameters()), **scheme}.items()}

    def embed(self, ids_BT: Tensor) -> Tensor:
        """Token embeddings, before any positional scheme: (B, T) -> (B, T, D)."""
        if ids_BT.ndim != 2 or ids_BT.is_floating_point():
            raise BadInput(
                f"token ids are whole numbers of shape (batch, tokens), got {ids_BT.dtype}, {tuple(ids_BT.shape)}"
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
        key_positions: Tensor | None = None,
        window: int | None = None,
        last: bool = False,
        cache: Cache | None = None,
    ) -> Tensor:
        """Logits of the next token after each token: (B, T, V), or (B, 1, V) when only the last is wanted."""
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
            raise BadInput("give either token ids or embeddings")
        x_BTD = embeddings_BTD if ids_BT is None else self.embed(ids_BT)
        assert x_BTD is not None
        return x_BTD

    def states(
        self,
        x_BTD: Tensor,
        positions: Tensor | None = None,
        key_positions: Tensor | None = None,
        *,
        window: int | None = None,
        last: bool = False,
        cache: Cache | None = None,
        table_HN: Tensor | None = None,
    ) -> Tensor:
        """What the head reads, from token embeddings: (B, T, D), or (B, 1, D) in last-position mode.

        Positions are 0..T-1 unless given, (T,) or (B, T). Keys stand at the same positions unless there is a cache,
        which must say so in `key_positions`. Of a window given here and the model's own the smaller counts. Whoever
        asks token by token gives the scheme's `bias_table`, long enough, so that it is not made anew each time.

        Last-position mode computes only what the last position needs: one query in the last layer and, under a window,
        w-1 positions more for each layer below. The result is that of the full computation.
        """
        if (cache is None) != (key_positions is None) or (cache is not None and last):
            raise BadInput("a cache and the positions of its keys go together, and not with the last position only")
        if x_BTD.ndim != 3 or x_BTD.shape[1] < 1 or x_BTD.shape[2] != self.config.width:
            raise BadInput(f"embeddings are (batch, tokens from 1, {self.config.width}), got {tuple(x_BTD.shape)}")
        check_window(window)
        if positions is None:
            positions = torch.arange(x_BTD.shape[1], device=x_BTD.device)
        check_positions("positions", positions, *x_BTD.shape[:2])
        window = min_window(window, self.scheme.window)
        places = self._places(x_BTD, positions, key_positions, window, last, table_HN)
        x_BTD = x_BTD[:, -places[0].keys :]
        order = self.scheme.embedding(positions[..., -places[0].keys :])
        if order is not None:
            x_BTD = (x_BTD + order.to(torch.promote_types(x_BTD.dtype, torch.float32))).to(x_BTD.dtype)
        for block, place in zip(self.blocks, places, strict=True):
            if self.checkpointing and cache is None and torch.is_grad_enabled():
                x_BTD = checkpoint(block, x_BTD, place, None, use_reentrant=False)
            else:
                x_BTD = block(x_BTD, place, cache)
        return self.norm(x_BTD)

    def _places(
        self,
        x_BTD: Tensor,
        positions: Tensor,
        key_positions: Tensor | None,
        window: int | None,
        last: bool,
        table_HN: Tensor | None,
    ) -> list[LayerInputs]:
        """One place for each layer, bottom up; layers that stand alike share theirs."""
        places: list[LayerInputs] = []
        # Only where positions grow from token to token are the w nearest keys among the last w tokens.
        narrow = window if last and bool((positions.diff() > 0).all()) else None
        for above in range(self.config.layers - 1, -1, -1):
            keys, queries = (_needed(x_BTD.shape[1], layers, narrow, last) for layers in (above + 1, above))
            if places and places[-1][:2] == (keys, queries):
                places.append(places[-1])
                continue
            q_positions, new_positions = positions[..., -queries:], positions[..., -keys:]
            where = layout(q_positions, new_positions if key_positions is None else key_positions, window)
            if not places and table_HN is None:  # no layer reaches farther than the first
                table_HN = bias_table(self.scheme, where.reach, x_BTD)
            rotations = (rotary_table(self.scheme.angles(p), x_BTD) for p in (q_positions, new_positions))
            places.append(LayerInputs(keys, queries, where, expand_bias(table_HN, where, x_BTD), *rotations))
        return places


def _needed(tokens: int, layers_above: int, window: int | None, last: bool) -> int:
    """How many of the most recent tokens matter to the output, seen from below this many layers."""
    if not last:
        return tokens
    if window is None:
        return tokens if layers_above else 1
    return min(tokens, layers_above * (window - 1) + 1)
