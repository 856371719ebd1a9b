"""The gradients of one model on one text: within memory, with an estimate first, layer by layer and as heat maps."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, OutOfMemory
from fieldlens.core.memory import free_memory, out_of_memory
from fieldlens.data.text import Text
from fieldlens.data.tokenizer import token_texts
from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.runner import Watch
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.cost import SHARE, backward, forward
from fieldlens.receptive.input_gradients import EmbeddingHook, embedding_hook
from fieldlens.receptive.result import HeatMap, MeasureRequest

SHORT = 128
"""Tokens of the text that the estimate of time is made from."""

TRIED = 0.5
"""Seconds in which a whole text is tried instead: in small models a short one is mostly overhead."""

LAYERS, LAYER_SEGMENTS = 12, 2
"""So many layers at most are measured, evenly from the first to the last, on so many segments."""

HEAT_TARGETS, HEAT_STEP, HEAT_TOKENS = 8, 24, 240
"""So many targets, so far from each other, have their text shown, with so many tokens before each."""


class GradientRunner:
    """The gradients of one model on one text."""

    def __init__(self, adapter: ModelAdapter, text: Text, length: int, question: MeasureRequest, watch: Watch) -> None:
        self.adapter, self.text, self.length, self.question, self.watch = adapter, text, length, question, watch
        room = SHARE * free_memory(adapter.device)
        heavy = backward(adapter, length, checkpointing=False).bytes > room
        self.embedding_hook: EmbeddingHook = embedding_hook(adapter, checkpointing=heavy)
        effort = backward(adapter, length, self.embedding_hook.checkpointing)
        self.batch = max(1, min(8, int(room / effort.bytes), 4096 // length))
        self.memory = self.batch * effort.bytes
        count = len(self.embedding_hook.its_layers)
        self.layers_chosen = sorted({round(n) for n in np.linspace(0, count - 1, min(LAYERS, count))}) if count else []
        # in gradients: a layer's gradient costs as much as lies below it
        self.layer_cost = 1 + sum((number + 1) / count for number in self.layers_chosen)
        more = HEAT_TARGETS + min(LAYER_SEGMENTS, question.segments) * self.layer_cost
        self.total = question.segments + (0 if question.plain else more)
        self.done = 0.0

    def rows(self, anchors: Sequence[Anchor]) -> Iterator[Tensor]:
        """Context and target of each anchor, one row at a time: (1, T + 1)."""
        for anchor in anchors:
            yield self._row(anchor)

    def _row(self, anchor: Anchor) -> Tensor:
        first = max(0, anchor.offset - self.length)
        ids = self.text.documents[anchor.document][first : anchor.offset + 1].astype(np.int64)
        head = [self.text.bos] if self.text.bos is not None else []
        return torch.from_numpy(np.concatenate([np.array(head, np.int64), ids]))[None]

    def norms(self, anchors: Sequence[Anchor]) -> np.ndarray:
        """Gradient norms of every segment: (N, T)."""
        rows = list(self.rows(anchors))
        found: list[Tensor] = []
        try:
            self._estimate()
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            self._smaller(error, begun=False)
        while len(found) < len(rows):
            some = rows[len(found) : len(found) + (1 if not found else self.batch)]
            try:
                found += self.embedding_hook.norms(torch.cat(some), self.question.target, self.question.window)
            except (RuntimeError, MemoryError, IndexError, ValueError) as error:
                self._smaller(error, bool(found))
                continue
            self._advance(len(some), "gradients")
        return torch.stack(found).numpy()

    def _estimate(self) -> None:
        """Before starting: what a gradient takes, of a short text unless a whole one is as good as free, for all."""
        each = backward(self.adapter, self.length, self.embedding_hook.checkpointing).operations
        rate = self._rate(min(SHORT, self.length))
        if each / rate < TRIED:
            rate = self._rate(self.length)
        once = forward(self.adapter, self.length, 1, self.question.window).operations
        asked = self.question
        # contexts that halve take twice the longest together; windows, as many as halvings, the longest once each
        extra = once * (2 * asked.segments * asked.probe + (2 + self.length.bit_length()) * asked.targets * asked.check)
        self.watch({"estimate": (self.total * each + extra) / rate, "memory": self.memory})

    def _rate(self, tokens: int) -> float:
        """Operations per second in a gradient of a text of so many tokens."""
        row = torch.zeros(1, tokens + 1, dtype=torch.long)
        seconds = float("inf")
        for _ in range(2):  # the first call warms up
            start = time.perf_counter()
            self.embedding_hook.norms(row, self.question.target, self.question.window)
            seconds = min(seconds, time.perf_counter() - start)
        self.embedding_hook.reason = ""  # this text is nobody's
        return backward(self.adapter, tokens, self.embedding_hook.checkpointing).operations / seconds

    def _smaller(self, error: Exception, begun: bool) -> None:
        """After a failure: try with less memory, or say what cannot be done."""
        if not out_of_memory(error):
            if begun or isinstance(error, BadInput):
                raise error
            said = " ".join(str(error).split())[:200]
            raise BadInput(
                f"{self.adapter.name} cannot take {self.length} tokens ({said}): give a smaller --length"
            ) from error
        if self.batch > 1:
            self.batch = 1
        elif (
            not self.embedding_hook.checkpointing
            and (lighter := embedding_hook(self.adapter, checkpointing=True)).checkpointing
        ):
            self.embedding_hook = lighter
        else:
            raise OutOfMemory(
                f"not enough memory for one text of {self.length} tokens: give a smaller --length"
            ) from error

    def _advance(self, gradients: float, what: str) -> None:
        self.done += gradients
        self.watch({"done": self.done, "total": self.total, "what": what})

    def layers(self, anchors: Sequence[Anchor]) -> dict[int, np.ndarray]:
        """Shares of the outputs of some layers, averaged over some segments."""
        if not self.layers_chosen:
            return {}
        found = []
        for row in self.rows(anchors):
            norms_RT = self.embedding_hook.layers(row, self.question.window, self.layers_chosen)[:, 0].numpy()
            found.append(norms_RT / norms_RT.sum(1, keepdims=True))
            self._advance(self.layer_cost, "layers")
        return dict(zip((number + 1 for number in self.layers_chosen), np.mean(found, 0), strict=True))

    def heats(self, anchor: Anchor, tokenizer: Any) -> list[HeatMap]:
        """The texts before some targets that follow each other."""
        found = []
        for back in range(HEAT_TARGETS - 1, -1, -1):
            place = Anchor(anchor.document, anchor.offset - back * HEAT_STEP)
            if place.offset < 2:
                continue
            row = self._row(place)
            norms_T = self.embedding_hook.norms(row, self.question.target, self.question.window)[0].numpy()
            self._advance(1, "heat maps")
            if not np.isfinite(norms_T).all():
                continue
            shares_T = norms_T / norms_T.sum()
            shown = min(HEAT_TOKENS, len(shares_T))
            tokens = token_texts(tokenizer, row[0, -shown - 1 :].tolist())
            earlier = float(shares_T[:-shown].sum()) if shown < len(shares_T) else 0.0
            found.append(HeatMap(tokens[:-1], shares_T[-shown:].tolist(), tokens[-1], earlier))
        return found
