"""Text of any length: the loop from prompts to new tokens, and the three ways of paying for the context.

`sliding` keeps w keys and values in every layer: O(w) per token for ever. `full` keeps all of them: O(n) for the n-th
token. `re-encode` keeps none and reads the last w tokens from the beginning for each new one: O(w²) per token.
"""

import operator
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, OutOfMemory, unknown
from fieldlens.core.format import format_bytes
from fieldlens.core.memory import free_memory
from fieldlens.generation import hf as foreign
from fieldlens.generation.engine import CHUNK, PADDING, CachedEngine, ReencodeEngine
from fieldlens.generation.sampling import Sampler, Sampling
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import ModelAdapter, eval_mode
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.models.decoder import Decoder
from fieldlens.models.kv_cache import capacity
from fieldlens.schemes.window import check_window, min_window

Mode = Literal["sliding", "full", "re-encode"]
MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True)
class Plan:
    """How a model is going to generate, and why, in words."""

    mode: str
    window: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generation:
    """New tokens of each row, and what they took."""

    ids: list[list[int]]
    plan: Plan
    prompt_tokens: int
    first_seconds: float
    """From the call to the first token."""
    seconds: float
    """From the first token to the last."""
    cache_bytes: int | None

    @property
    def tokens(self) -> int:
        return sum(map(len, self.ids))

    @property
    def rate(self) -> float | None:
        """Tokens of all rows per second, without the prompt; None if there are too few to tell."""
        later = self.tokens - len(self.ids)
        return later / self.seconds if later > 0 and self.seconds > 0 else None


def generate(
    model: Any,
    prompts: Tensor | Sequence[Any],
    tokens: int,
    *,
    mode: str | None = None,
    window: int | None = None,
    sampling: Sampling | None = None,
    end: int | Collection[int] | None = None,
    chunk: int = CHUNK,
    watch: foreign.Watch = lambda ids_B: None,
) -> Generation:
    """Continue one prompt or several by so many tokens, or until the token `end`, or one of several.

    A prompt is a row of token ids; several may have different lengths. Without a mode the cache slides over the
    training length, unless the model's positions cannot run on; `plan` says what is chosen.
    """
    for what, value in (("tokens", tokens), ("chunk", chunk), ("window", 1 if window is None else window)):
        if not isinstance(value, int) or value < 1:
            raise BadInput(f"{what} is {value}: a whole number of at least 1 is needed")
    with eval_mode(model):
        one = adapt(model)
        rows = parse_prompts(prompts, one.vocab_size)
        settled = plan(one, mode, window, [len(row) for row in rows], tokens)
        _check_memory(one, settled, len(rows), max(map(len, rows)) + tokens)
        ends = frozenset([] if end is None else [end] if isinstance(end, int) else end)
        for token in ends:
            if not 0 <= token < one.vocab_size:
                raise BadInput(f"end is {token}: it is outside the vocabulary of {one.vocab_size}")
        return _Writing(one, rows, tokens, settled, sampling or Sampling(), ends, chunk, watch).run()


def parse_prompts(prompts: Tensor | Sequence[Any], vocab_size: int) -> list[list[int]]:
    """Prompts as rows of token ids, each of at least one token of the vocabulary."""
    try:
        given = prompts.tolist() if hasattr(prompts, "tolist") else [_row(row) for row in prompts]
        rows = given if given and isinstance(given[0], list) else [given]
        rows = [[operator.index(token) for token in row] for row in rows]
    except TypeError:
        raise BadInput("a prompt is a row of token ids, whole numbers; several prompts are a list of rows") from None
    for row in rows:
        if not row:
            raise BadInput("a prompt is empty: at least one token is needed")
        wrong = [token for token in row if not 0 <= token < vocab_size]
        if wrong:
            raise BadInput(f"token id {wrong[0]} is outside the vocabulary of {vocab_size}")
    return rows


def _row(row: Any) -> Any:
    return row.tolist() if hasattr(row, "tolist") else list(row) if isinstance(row, Sequence) else row


def plan(one: ModelAdapter, mode: str | None, window: int | None, lengths: Sequence[int], tokens: int) -> Plan:
    """The mode and the window that were asked for, or the ones that fit the model, with the reason."""
    check_window(window)
    if mode is not None and mode not in MODES:
        raise unknown("mode", mode, MODES)
    if not isinstance(one, DecoderAdapter | HFAdapter):
        raise BadInput(f"{one.name} cannot generate: a Decoder or a model of transformers is needed")
    notes: list[str] = []
    if mode is None:
        mode, why = _fitting(one, window, lengths, tokens)
        notes += why
    if mode == "full":
        if window is not None:
            raise BadInput(f"window is {window}, but the mode full keeps everything: sliding and re-encode take one")
    else:
        window, why = _width(one, mode, window)
        notes += why
    if isinstance(one, HFAdapter):
        _check_theirs(one, mode, window, lengths, tokens)
        most, first = max(lengths) + tokens - 1, one.stretch
        if mode != "re-encode" and first and most > first and foreign.cache_reset_length(one, most) is None:
            notes.append(f"past {first} tokens all positions of {one.name} change, but for those in its cache already")
    return Plan(mode, window, tuple(notes))


def _check_memory(one: ModelAdapter, settled: Plan, rows: int, most: int) -> None:
    """A cache that slides is there from the beginning: better to say at once that it is too large."""
    if settled.mode != "sliding" or settled.window is None or not isinstance(one, DecoderAdapter):
        return
    needed = rows * min(capacity(settled.window), most) * one.cache_size(1)
    if needed > (free := free_memory(one.device)):
        what = f"window {settled.window} for {rows} prompts needs a cache of {format_bytes(needed)}"
        raise OutOfMemory(f"{what}, and {format_bytes(free)} are free: give a smaller window")


def _fitting(
    one: DecoderAdapter | HFAdapter, window: int | None, lengths: Sequence[int], tokens: int
) -> tuple[str, list[str]]:
    """The mode that suits a model's positions."""
    if isinstance(one, DecoderAdapter) and not one.decoder.scheme.relative:
        name = one.decoder.scheme.name
        return "re-encode", [f"mode re-encode: {name} positions would run on past what was trained"]
    if isinstance(one, HFAdapter) and one.limit is not None:
        return "re-encode", [f"mode re-encode: {one.name} has {one.limit} positions and no more"]
    if isinstance(one, HFAdapter) and window is None:
        if not foreign.supports_sliding_cache(one, padded=min(lengths) < max(lengths)):
            return "full", [f"mode full: {one.name} cannot be run through a sliding cache"]
        if (anew := foreign.cache_reset_length(one, max(lengths) + tokens - 1)) is not None:
            return "full", [f"mode full: at {anew} tokens {one.name} begins a cache of its own, which does not slide"]
    return "sliding", []


def _width(one: DecoderAdapter | HFAdapter, mode: str, window: int | None) -> tuple[int, list[str]]:
    notes = []
    if window is None:
        if one.train_length is None:
            raise BadInput(f"{one.name} does not say at what length it was trained: give a window, or the mode full")
        window = one.train_length
        notes.append(f"window {window}: the training length")
    own = [min_window(width, window) or window for width in one.windows]
    if mode == "sliding" and max(own) < window:
        window = max(own)
        notes.append(f"window {window}: the model's own is narrower")
    return window, notes


def _check_theirs(one: HFAdapter, mode: str, window: int | None, lengths: Sequence[int], tokens: int) -> None:
    prompt, padded = max(lengths), min(lengths) < max(lengths)
    needed = window or 0 if mode == "re-encode" else prompt + tokens - 1
    if one.limit is not None and needed > one.limit:
        what = f"a window of {window}" if mode == "re-encode" else f"{prompt} tokens of prompt and {tokens} new ones"
        raise BadInput(f"{one.name} has {one.limit} positions: too few for {what}")
    if mode == "sliding":
        one.check_window(window)
        if window == 1:
            raise BadInput("window is 1: the sliding cache of transformers needs at least 2")
        if not foreign.supports_sliding_cache(one, padded):
            raise BadInput(f"{one.name} cannot be run through a sliding cache: {foreign.OTHERS}")
        if (anew := foreign.cache_reset_length(one, prompt + tokens - 1)) is not None:
            raise BadInput(
                f"at {anew} tokens {one.name} begins a cache of its own, which does not slide: {foreign.OTHERS}, "
                f"or at most {anew} tokens, prompt and new ones together"
            )
    if len(lengths) > 1 and not foreign.stands_alone(one, padded, anew=mode == "re-encode"):
        raise BadInput(f"{one.name} continues several prompts otherwise than each alone: give one prompt at a time")


class _Writing:
    """One call of `generate`: what is known at each token."""

    def __init__(
        self,
        one: ModelAdapter,
        rows: list[list[int]],
        tokens: int,
        settled: Plan,
        sampling: Sampling,
        ends: frozenset[int],
        chunk: int,
        watch: foreign.Watch,
    ) -> None:
        self.one, self.rows, self.tokens, self.plan = one, rows, tokens, settled
        self.sampling, self.ends, self.chunk, self.watch = sampling, ends, chunk, watch
        self.made: list[list[int]] = [[] for _ in rows]
        self.over = [False] * len(rows)
        self.times: list[float] = []

    def run(self) -> Generation:
        ids_BT, positions = _aligned(self.rows, self.one.device)
        start = time.perf_counter()
        if isinstance(self.one, HFAdapter):
            mask_BT = (positions >= 0).long().expand(len(ids_BT), -1)
            size = foreign.write(
                self.one, ids_BT, mask_BT, self.tokens, self.plan.window, self.plan.mode == "re-encode", self.sampling,
                self.ends, self.note,
            )  # fmt: skip
        else:
            assert isinstance(self.one, DecoderAdapter)
            size = self._ours(self.one.decoder, ids_BT, positions)
        length = sum(map(len, self.rows))
        return Generation(self.made, self.plan, length, self.times[0] - start, self.times[-1] - self.times[0], size)

    def note(self, ids_B: Tensor) -> None:
        """Take down the next token of each row that has not ended."""
        self.times.append(time.perf_counter())
        for row, token in enumerate(ids_B.tolist()):
            if not self.over[row]:
                self.made[row].append(token)
                self.over[row] = token in self.ends
        self.watch(ids_B)

    def _ours(self, decoder: Decoder, ids_BT: Tensor, positions: Tensor) -> int:
        reader: CachedEngine | ReencodeEngine
        if self.plan.mode == "re-encode":
            assert self.plan.window is not None
            reader = ReencodeEngine(decoder, self.plan.window)
        else:
            most = ids_BT.shape[1] + self.tokens - 1
            reader = CachedEngine(decoder, self.plan.window, most, self.chunk)
        sampler = Sampler(self.sampling, self.one.device)
        logits_BV = reader.read(ids_BT, positions)
        for left in range(self.tokens - 1, -1, -1):
            ids_B = sampler.choose(logits_BV)
            self.note(ids_B)
            if not left or all(self.over):
                break
            positions = positions[..., -1:] + 1
            logits_BV = reader.read(ids_B[:, None], positions)
        return reader.bytes


def _aligned(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Rows that end together, padded in front, and their positions: (T,) if all are alike, else (B, T)."""
    longest = max(map(len, rows))
    ids_BT = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
    if min(map(len, rows)) == longest:
        return ids_BT, torch.arange(longest, device=device)
    lengths_B1 = torch.tensor([[len(row)] for row in rows], device=device)
    positions_BT = torch.arange(longest, device=device) - (longest - lengths_B1)
    return ids_BT, positions_BT.clamp(min=PADDING)
