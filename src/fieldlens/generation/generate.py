"""Text generation of any length: from prompts to new tokens, in one of three modes.

`sliding` keeps w keys and values in every layer: O(w) per token. `full` keeps all of them: O(n) for the n-th token.
`re-encode` keeps none and encodes the last w tokens from the beginning for each new one: O(w²) per token.
"""

import operator
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, OutOfMemory, unknown
from fieldlens.core.format import format_bytes
from fieldlens.core.memory import free_memory
from fieldlens.extension.adapters import CroppedAdapter, ExtendedDecoderAdapter
from fieldlens.generation import hf
from fieldlens.generation.engine import CHUNK, PADDING, CachedEngine, ReencodeEngine
from fieldlens.generation.sampling import Continuation, Sampler, Sampling, TokenCallback
from fieldlens.generation.with_method import mode_and_window
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import ModelAdapter, eval_mode
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.models.decoder import Decoder
from fieldlens.models.kv_cache import capacity
from fieldlens.models.token_ids import is_text, own_bos, token_ids
from fieldlens.schemes.window import check_window, min_window

Mode = Literal["sliding", "full", "re-encode"]
MODES: tuple[str, ...] = get_args(Mode)


@dataclass(frozen=True)
class Plan:
    """The mode and window of a generation, with notes on the defaults that were chosen."""

    mode: str
    window: int | None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Generation:
    """New tokens of each row, with times and the size of the cache."""

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
        """Tokens per second over all rows, without the prompt; None if there are too few tokens."""
        later = self.tokens - len(self.ids)
        return later / self.seconds if later > 0 and self.seconds > 0 else None


def generate(
    model: Any,
    prompts: Any,
    tokens: int,
    *,
    mode: str | None = None,
    window: int | None = None,
    sampling: Sampling | None = None,
    end: int | Collection[int] | None = None,
    chunk: int = CHUNK,
    watch: TokenCallback = lambda ids_B: None,
) -> Generation:
    """Continue one or several prompts by `tokens` tokens, or until an `end` token.

    A prompt is a sequence of token ids; several prompts may have different lengths. The output of a transformers
    tokenizer is accepted too, and for a model from `load_model` text, with the BOS that its tokenizer adds. The default
    is a sliding cache over the training length, or another mode if the model does not support it; see `plan`. `watch`
    is called with the next token of each row, (B,), as soon as it is sampled.
    """
    for name, value in (("tokens", tokens), ("chunk", chunk), ("window", 1 if window is None else window)):
        if not isinstance(value, int) or value < 1:
            raise BadInput(f"{name} must be an integer of at least 1, got {value}")
    with eval_mode(model):
        adapter = adapt(model)
        rows = parse_prompts(_encoded(prompts, adapter), adapter.vocab_size)
        chosen_plan = plan(adapter, mode, window, [len(row) for row in rows], tokens)
        _check_memory(adapter, chosen_plan, len(rows), max(map(len, rows)) + tokens)
        ends = frozenset([] if end is None else [end] if isinstance(end, int) else end)
        for token in ends:
            if not 0 <= token < adapter.vocab_size:
                raise BadInput(f"end token id {token} is outside the vocabulary of {adapter.vocab_size}")
        continuation = Continuation(tokens=tokens, sampling=sampling or Sampling(), ends=ends, watch=watch)
        return _GenerationLoop(adapter, rows, chosen_plan, continuation, chunk).run()


def _encoded(prompts: Any, adapter: ModelAdapter) -> Any:
    """Prompts as token ids, where they are text or the output of a tokenizer."""
    if not isinstance(prompts, list | tuple):
        ids = token_ids(prompts, adapter)
        return [*_bos_row(prompts, adapter), *ids.tolist()] if is_text(prompts) else ids
    if not any(map(is_text, prompts)):
        return prompts
    return [[*_bos_row(prompt, adapter), *token_ids(prompt, adapter).tolist()] for prompt in prompts]


def _bos_row(prompt: Any, adapter: ModelAdapter) -> list[int]:
    bos = own_bos(prompt, adapter)
    return [] if bos is None else [bos]


def parse_prompts(prompts: Tensor | Sequence[Any], vocab_size: int) -> list[list[int]]:
    """Convert prompts to non-empty lists of token ids in the vocabulary."""
    try:
        ids = prompts.tolist() if hasattr(prompts, "tolist") else [_to_list(row) for row in prompts]
        rows = ids if ids and isinstance(ids[0], list) else [ids]
        rows = [[operator.index(token) for token in row] for row in rows]
    except TypeError:
        raise BadInput("a prompt must be a sequence of integer token ids, or a list of such sequences") from None
    for row in rows:
        if not row:
            raise BadInput("a prompt is empty: at least one token is required")
        invalid = [token for token in row if not 0 <= token < vocab_size]
        if invalid:
            raise BadInput(f"token id {invalid[0]} is outside the vocabulary of {vocab_size}")
    return rows


def _to_list(row: Any) -> Any:
    return row.tolist() if hasattr(row, "tolist") else list(row) if isinstance(row, Sequence) else row


def plan(adapter: ModelAdapter, mode: str | None, window: int | None, lengths: Sequence[int], tokens: int) -> Plan:
    """Validate the mode and window, or choose defaults that suit the model, with a note for each."""
    check_window(window)
    if mode is not None and mode not in MODES:
        raise unknown("mode", mode, MODES)
    method = getattr(adapter, "method", None)
    if method is not None and method.window is None:
        chosen_mode, chosen_window, note = mode_and_window(method, mode, lengths, tokens)
        if window not in (None, chosen_window):
            raise BadInput(f"a window cannot be combined with the method {method.name}")
        return Plan(chosen_mode, chosen_window, (note,))
    window = window if method is None else method.window
    if not isinstance(adapter, DecoderAdapter | HFAdapter):
        raise BadInput(f"{adapter.name} cannot generate: a Decoder or a transformers model is required")
    notes: list[str] = []
    if mode is None:
        mode, reasons = _default_mode(adapter, window, lengths, tokens)
        notes += reasons
    if mode == "full":
        if window is not None:
            raise BadInput(f"mode full takes no window, got {window}: use mode sliding or re-encode")
    else:
        window, reasons = _resolve_window(adapter, mode, window)
        notes += reasons
    if isinstance(adapter, DecoderAdapter) and mode != "re-encode" and not adapter.decoder.scheme.exact_with_cache:
        notes.append(f"{adapter.decoder.config.scheme} changes the angles of all positions except those already cached")
    if isinstance(adapter, HFAdapter):
        _check_hf_support(adapter, mode, window, lengths, tokens)
        total, stretch = max(lengths) + tokens - 1, adapter.stretch
        if mode != "re-encode" and stretch and total > stretch and hf.cache_reset_length(adapter, total) is None:
            notes.append(f"beyond {stretch} tokens {adapter.name} changes all positions except those already cached")
    return Plan(mode, window, tuple(notes))


def _check_memory(adapter: ModelAdapter, chosen_plan: Plan, rows: int, total: int) -> None:
    """Raise OutOfMemory if a sliding cache, which is allocated at the start, does not fit."""
    window = chosen_plan.window
    if chosen_plan.mode != "sliding" or window is None or not isinstance(adapter, DecoderAdapter):
        return
    widths = [min_window(own, window) or window for own in adapter.windows]
    needed = rows * sum(min(capacity(width), total) for width in widths) * adapter.cache_size(1) // len(widths)
    if needed > (free := free_memory(adapter.device)):
        raise OutOfMemory(
            f"window {window} for {rows} prompts needs a cache of {format_bytes(needed)}, "
            f"but only {format_bytes(free)} are free: use a smaller window"
        )


def _default_mode(
    adapter: DecoderAdapter | HFAdapter, window: int | None, lengths: Sequence[int], tokens: int
) -> tuple[str, list[str]]:
    """Return the mode that suits the model's positions, and the reason."""
    if isinstance(adapter, DecoderAdapter) and not adapter.decoder.scheme.relative:
        absolute = next(entry.name for entry in adapter.decoder.scheme.distinct_schemes if not entry.relative)
        return "re-encode", [f"mode re-encode: {absolute} positions would exceed the training length"]
    if isinstance(adapter, HFAdapter) and adapter.limit is not None:
        return "re-encode", [f"mode re-encode: {adapter.name} has only {adapter.limit} positions"]
    if isinstance(adapter, HFAdapter) and window is None:
        if not hf.supports_sliding_cache(adapter, padded=min(lengths) < max(lengths)):
            return "full", [f"mode full: {adapter.name} does not support a sliding cache"]
        if (reset := hf.cache_reset_length(adapter, max(lengths) + tokens - 1)) is not None:
            return "full", [
                f"mode full: {adapter.name} replaces the sliding cache with its own, unbounded cache at {reset} tokens"
            ]
    return "sliding", []


def _resolve_window(adapter: DecoderAdapter | HFAdapter, mode: str, window: int | None) -> tuple[int, list[str]]:
    """Return the window, by default the training length and at most the model's own, with notes."""
    notes = []
    if window is None:
        if adapter.train_length is None:
            raise BadInput(f"the training length of {adapter.name} is unknown: pass a window or use mode full")
        window = adapter.train_length
        notes.append(f"window {window}: the training length")
    layer_windows = [min_window(layer_window, window) or window for layer_window in adapter.windows]
    if mode == "sliding" and max(layer_windows) < window:
        window = max(layer_windows)
        notes.append(f"window {window}: the model's own window is smaller")
    return window, notes


def _check_hf_support(adapter: HFAdapter, mode: str, window: int | None, lengths: Sequence[int], tokens: int) -> None:
    """Raise BadInput if the model cannot generate in this mode."""
    prompt, padded = max(lengths), min(lengths) < max(lengths)
    needed = window or 0 if mode == "re-encode" else prompt + tokens - 1
    if adapter.limit is not None and needed > adapter.limit:
        request = f"a window of {window}" if mode == "re-encode" else f"{prompt} prompt tokens and {tokens} new tokens"
        raise BadInput(f"{adapter.name} has only {adapter.limit} positions, too few for {request}")
    if mode == "sliding":
        adapter.check_window(window)
        if window == 1:
            raise BadInput("window must be at least 2 for the sliding cache of transformers, got 1")
        if not hf.supports_sliding_cache(adapter, padded):
            raise BadInput(f"{adapter.name} does not support a sliding cache: {hf.OTHER_MODES}")
        if (reset := hf.cache_reset_length(adapter, prompt + tokens - 1)) is not None:
            raise BadInput(
                f"{adapter.name} replaces the sliding cache with its own, unbounded cache at {reset} tokens: "
                f"{hf.OTHER_MODES}, or generate at most {reset} tokens including the prompt"
            )
    if len(lengths) > 1 and not hf.stands_alone(adapter, padded, reencode=mode == "re-encode"):
        raise BadInput(
            f"{adapter.name} continues a prompt differently in a batch than alone: pass one prompt at a time"
        )


class _GenerationLoop:
    """The state of one call of `generate`."""

    def __init__(
        self,
        adapter: ModelAdapter,
        rows: list[list[int]],
        chosen_plan: Plan,
        continuation: Continuation,
        chunk: int,
    ) -> None:
        self.adapter = adapter.inner if isinstance(adapter, CroppedAdapter) else adapter
        self.rows, self.plan = rows, chosen_plan
        self.continuation, self.chunk = continuation, chunk
        self.new_ids: list[list[int]] = [[] for _ in rows]
        self.finished = [False] * len(rows)
        self.times: list[float] = []

    def run(self) -> Generation:
        ids_BT, positions = _left_pad(self.rows, self.adapter.device)
        start = time.perf_counter()
        if isinstance(self.adapter, HFAdapter):
            mask_BT = (positions >= 0).long().expand(len(ids_BT), -1)
            continuation = replace(self.continuation, watch=self.record)
            reencode = self.plan.mode == "re-encode"
            cache_bytes = hf.write(
                self.adapter, ids_BT, mask_BT, continuation, window=self.plan.window, reencode=reencode
            )
        else:
            assert isinstance(self.adapter, DecoderAdapter)
            cache_bytes = self._run_decoder(self.adapter.decoder, ids_BT, positions)
        prompt_tokens = sum(map(len, self.rows))
        first_seconds, seconds = self.times[0] - start, self.times[-1] - self.times[0]
        return Generation(self.new_ids, self.plan, prompt_tokens, first_seconds, seconds, cache_bytes)

    def record(self, ids_B: Tensor) -> None:
        """Append the next token to each unfinished row."""
        self.times.append(time.perf_counter())
        for row, token in enumerate(ids_B.tolist()):
            if not self.finished[row]:
                self.new_ids[row].append(token)
                self.finished[row] = token in self.continuation.ends
        self.continuation.watch(ids_B)

    def _run_decoder(self, decoder: Decoder, ids_BT: Tensor, positions: Tensor) -> int:
        engine: CachedEngine | ReencodeEngine
        if self.plan.mode == "re-encode":
            assert self.plan.window is not None
            engine = ReencodeEngine(decoder, self.plan.window)
        else:
            max_tokens = ids_BT.shape[1] + self.continuation.tokens - 1
            kept = self.adapter.method.kept if isinstance(self.adapter, ExtendedDecoderAdapter) else None
            engine = CachedEngine(decoder, self.plan.window, max_tokens, self.chunk, kept)
        sampler = Sampler(self.continuation.sampling, self.adapter.device)
        logits_BV = engine.read(ids_BT, positions)
        for remaining in range(self.continuation.tokens - 1, -1, -1):
            ids_B = sampler.choose(logits_BV)
            self.record(ids_B)
            if not remaining or all(self.finished):
                break
            positions = positions[..., -1:] + 1
            logits_BV = engine.read(ids_B[:, None], positions)
        return engine.bytes


def _left_pad(rows: list[list[int]], device: torch.device) -> tuple[Tensor, Tensor]:
    """Pad rows on the left; return ids and positions: (T,) if all rows have the same length, else (B, T)."""
    longest = max(map(len, rows))
    ids_BT = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
    if min(map(len, rows)) == longest:
        return ids_BT, torch.arange(longest, device=device)
    lengths_B1 = torch.tensor([[len(row)] for row in rows], device=device)
    positions_BT = torch.arange(longest, device=device) - (longest - lengths_B1)
    return ids_BT, positions_BT.clamp(min=PADDING)
