"""Runs the gradients of one model on one text within the available memory: segments, layers and a passage."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, OutOfMemory
from fieldlens.core.events import Estimate, Progress, Watch
from fieldlens.core.memory import free_memory, out_of_memory
from fieldlens.data.text import Text
from fieldlens.data.tokenizer import token_texts
from fieldlens.evaluation.protocols import Anchor
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.cost import SHARE, backward, forward
from fieldlens.receptive.budget import Costs
from fieldlens.receptive.explorer.data import Target
from fieldlens.receptive.input_gradients import EmbeddingHook, embedding_hook
from fieldlens.receptive.request import MeasureRequest
from fieldlens.receptive.rounds import PER_SEGMENT
from fieldlens.storage.journal import Journal

SHORT = 128
"""Tokens of the first trial run, which also warms up."""

FULL_TRIAL = 0.5
"""If a full segment takes less than this many seconds, the trial uses one: short runs of small models are overhead."""

LONG, LONG_TRIAL = 512, 3.0
"""Tokens of the trial run of other models, if it takes less than this many seconds: matrix products of fewer tokens are
less efficient."""

SEGMENTS_AT_ONCE, TOKENS_AT_ONCE = 8, 4096
"""Maximum number of segments and of tokens in a batch; an interruption loses one batch."""

LAYERS, LAYER_SEGMENTS = 12, 2
"""Maximum number of layers to measure, evenly spaced from first to last, and of segments to measure them on."""

PASSAGE_TARGETS, PASSAGE_STEP = 8, 24
"""Number of targets in one passage for the explorer, and their distance in tokens."""


class Speeds(NamedTuple):
    """Operations per second of gradients, of forward passes, and of those with a window, if there are any."""

    gradient: float
    forward: float
    windowed: float | None


class GradientRunner:
    """Computes the gradients of one model on one text."""

    def __init__(self, adapter: ModelAdapter, text: Text, length: int, request: MeasureRequest, watch: Watch) -> None:
        self.adapter, self.text, self.length, self.request, self.watch = adapter, text, length, request, watch
        self.most_targets = request.targets
        """Targets of the check if time allows."""
        memory = SHARE * free_memory(adapter.device)
        checkpointing = backward(adapter, length, checkpointing=False).bytes > memory
        self.embedding_hook: EmbeddingHook = embedding_hook(adapter, checkpointing)
        cost = backward(adapter, length, self.embedding_hook.checkpointing)
        self.batch = max(1, min(SEGMENTS_AT_ONCE, int(memory / cost.bytes), TOKENS_AT_ONCE // length))
        self.memory = self.batch * cost.bytes
        count = len(self.embedding_hook.layer_modules)
        self.layers_chosen = sorted({round(n) for n in np.linspace(0, count - 1, min(LAYERS, count))}) if count else []
        # in units of a full gradient: the cost of a layer's gradient is proportional to the layers below it
        self.layer_cost = 1 + sum((number + 1) / count for number in self.layers_chosen)
        self.details = PASSAGE_TARGETS + min(LAYER_SEGMENTS, request.segments) * self.layer_cost
        """Cost of layers and a passage, in units of a full gradient."""
        self.done = 0.0

    @property
    def total(self) -> float:
        """Cost of the gradients of the request, in units of a full gradient."""
        return self.request.segments + (0 if self.request.plain else self.details)

    @cached_property
    def speeds(self) -> Speeds:
        """Operations per second, from trial runs with random tokens and as few of them as suffice."""
        tokens = min(SHORT, self.length)
        rate = self._rate(tokens)
        for longer, limit in ((self.length, FULL_TRIAL), (min(LONG, self.length), LONG_TRIAL)):
            if longer > tokens and self._operations(longer) / rate < limit:
                tokens, rate = longer, self._rate(longer)
                break
        windowed = self._forward_rate(tokens, max(2, tokens // 2)) if self.request.check and self._windows() else None
        return Speeds(rate, self._forward_rate(tokens, None), windowed)

    @property
    def costs(self) -> Costs:
        """Durations at the full length."""
        gradient, plain, windowed = self.speeds
        operations = forward(self.adapter, self.length, 1, None).operations  # masks of a window save nothing
        seconds = operations / windowed if windowed else 0.0
        return Costs(self._operations(self.length) / gradient, operations / plain, self.details, self.length, seconds)

    def _operations(self, tokens: int) -> float:
        return backward(self.adapter, tokens, self.embedding_hook.checkpointing).operations

    def _windows(self) -> bool:
        """Whether the model takes windows."""
        try:
            self.adapter.check_window(2)
        except BadInput:
            return False
        return self.request.windows != ()

    def _forward_rate(self, tokens: int, window: int | None) -> float:
        """Operations per second of a forward pass over the given number of tokens."""
        row = torch.zeros(1, tokens + 1, dtype=torch.long)
        start = time.perf_counter()
        self.adapter.losses(row, min(PER_SEGMENT, tokens), window)
        return forward(self.adapter, tokens, 1, None).operations / (time.perf_counter() - start)

    def rows(self, anchors: Sequence[Anchor]) -> Iterator[Tensor]:
        """Context and target of each anchor, as rows of shape (1, T + 1)."""
        for anchor in anchors:
            yield self._row(anchor)

    def _row(self, anchor: Anchor) -> Tensor:
        start = max(0, anchor.offset - self.length)
        ids_T = self.text.documents[anchor.document][start : anchor.offset + 1].astype(np.int64)
        bos_T = np.array([self.text.bos] if self.text.bos is not None else [], np.int64)
        return torch.from_numpy(np.concatenate([bos_T, ids_T]))[None]

    def norms(self, anchors: Sequence[Anchor], journal: Journal | None = None) -> np.ndarray:
        """Gradient norms of every segment: (N, T). Each batch is kept in the journal as soon as it is computed."""
        rows = list(self.rows(anchors))
        norms = self._restore(journal, rows) if journal else []
        if len(norms) == len(rows):
            return torch.stack(norms).numpy()
        try:
            self._estimate()
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            self._reduce_memory(error, started=False)
        while len(norms) < len(rows):
            batch = rows[len(norms) : len(norms) + (1 if not norms else self.batch)]
            try:
                norms_BT = self.embedding_hook.norms(torch.cat(batch), self.request.target, self.request.window)
            except (RuntimeError, MemoryError, IndexError, ValueError) as error:
                self._reduce_memory(error, started=bool(norms))
                continue
            norms += norms_BT
            if journal:
                journal.append(self.embedding_hook.reason.encode() + b"\n" + norms_BT.numpy().tobytes())
            self._advance(len(batch), "gradients")
        return torch.stack(norms).numpy()

    def _restore(self, journal: Journal, rows: Sequence[Tensor]) -> list[Tensor]:
        """The norms of the segments that an interrupted measurement kept, from the first on."""
        norms: list[Tensor] = []
        for record in journal.read():
            reason, _, data = record.partition(b"\n")
            self.embedding_hook.reason = reason.decode() or self.embedding_hook.reason
            norms += torch.from_numpy(np.frombuffer(data, np.float64).reshape(-1, rows[0].shape[1] - 1).copy())
        if norms:
            self._advance(len(norms), "gradients")
        return norms

    def _estimate(self) -> None:
        """Report the expected duration and memory before starting, from a trial run."""
        windows = self.request.windows
        count = self.length.bit_length() if windows is None else len(windows)  # powers of two below the length
        self.watch(Estimate(self.costs.seconds(self.request, count), self.memory))

    def _rate(self, tokens: int) -> float:
        """Operations per second of a gradient at the given number of tokens; the faster of two runs."""
        row = torch.zeros(1, tokens + 1, dtype=torch.long)
        seconds, reason = float("inf"), self.embedding_hook.reason
        for _ in range(2):
            start = time.perf_counter()
            self.embedding_hook.norms(row, self.request.target, self.request.window)
            seconds = min(seconds, time.perf_counter() - start)
            if seconds > FULL_TRIAL:
                break  # long enough to be accurate
        self.embedding_hook.reason = reason  # the trial is not part of the result
        return self._operations(tokens) / seconds

    def _reduce_memory(self, error: Exception, started: bool) -> None:
        """After running out of memory, use less: batch size 1, then checkpointing. Raise any other error."""
        if not out_of_memory(error):
            if started or isinstance(error, BadInput):
                raise error
            message = " ".join(str(error).split())[:200]
            raise BadInput(
                f"{self.adapter.name} cannot take {self.length} tokens ({message}): give a smaller --length"
            ) from error
        if self.batch > 1:
            self.batch = 1
        elif (
            not self.embedding_hook.checkpointing
            and (smaller_hook := embedding_hook(self.adapter, checkpointing=True)).checkpointing
        ):
            smaller_hook.reason = self.embedding_hook.reason
            self.embedding_hook = smaller_hook
        else:
            raise OutOfMemory(
                f"not enough memory for one text of {self.length} tokens: give a smaller --length"
            ) from error

    def _advance(self, gradients: float, stage: str) -> None:
        self.done += gradients
        self.watch(Progress(self.done, self.total, stage))

    def layers(self, anchors: Sequence[Anchor]) -> dict[int, np.ndarray]:
        """Shares of each segment at the outputs of the chosen layers (numbered from 1): (N, T)."""
        if not self.layers_chosen:
            return {}
        shares = []
        for row in self.rows(anchors):
            norms_RT = self.embedding_hook.layers(row, self.request.window, self.layers_chosen)[:, 0].numpy()
            shares.append(norms_RT / norms_RT.sum(1, keepdims=True))
            self._advance(self.layer_cost, "layers")
        shares_RNT = np.stack(shares, 1)
        return dict(zip((number + 1 for number in self.layers_chosen), shares_RNT, strict=True))

    def passage(self, anchor: Anchor) -> dict[Anchor, np.ndarray]:
        """Gradient norms of targets in one passage: PASSAGE_STEP tokens apart, the last one is the anchor."""
        norms = {}
        for steps in range(PASSAGE_TARGETS - 1, -1, -1):
            target = Anchor(anchor.document, anchor.offset - steps * PASSAGE_STEP)
            if target.offset < 2:
                continue
            norms[target] = self.embedding_hook.norms(self._row(target), self.request.target, self.request.window)[0]
            self._advance(1, "passage")
        return {target: norms_T.numpy() for target, norms_T in norms.items()}

    def targets(
        self, norms: Mapping[Anchor, np.ndarray], layers: Mapping[int, np.ndarray], tokenizer: Any
    ) -> list[Target]:
        """Targets for the explorer: those with defined norms, then the first ones at the outputs of layers."""
        shares = {(anchor, 0): norms_T / norms_T.sum() for anchor, norms_T in norms.items()}
        for number, shares_NT in layers.items():
            shares |= {(anchor, number): shares_T for anchor, shares_T in zip(norms, shares_NT, strict=False)}
        tokens: dict[Anchor, list[str]] = {}
        targets = []
        for (anchor, layer), shares_T in shares.items():
            if not np.isfinite(shares_T).all():
                continue
            if anchor not in tokens:
                tokens[anchor] = token_texts(tokenizer, self._row(anchor)[0, self.text.bos is not None :].tolist())
            targets.append(Target(anchor.document, anchor.offset, tokens[anchor], shares_T, layer))
        return targets
