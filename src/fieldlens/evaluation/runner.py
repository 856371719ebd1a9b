"""The losses of a plan's excerpts, batch by batch, within the memory there is; a journal keeps what is done."""

import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.core.errors import BadInput, FieldlensError, NonFiniteResult, OutOfMemory
from fieldlens.core.memory import free_memory, out_of_memory
from fieldlens.evaluation.protocols import Excerpt
from fieldlens.evaluation.result import Plan
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.cost import SHARE, forward
from fieldlens.storage.results import read_arrays, write_arrays

AT_ONCE = 8192
"""Tokens in a batch, at most: more gain nothing on a CPU."""

AT_ONCE_ON_GPU = 1 << 16
SAVE_EVERY = 15.0

Watch = Callable[[dict[str, Any]], None]


class EvaluationRunner:
    """The excerpts of a plan, batch by batch, the longest first."""

    def __init__(
        self,
        adapter: ModelAdapter,
        documents: Sequence[np.ndarray],
        plan: Plan,
        excerpts: dict[int, list[Excerpt]],
        batch: int | None,
        journal: Path | None,
        watch: Watch,
    ) -> None:
        self.adapter, self.documents, self.plan, self.excerpts = adapter, documents, plan, excerpts
        self.most, self.journal, self.watch = batch, journal, watch
        self.room: int | None = None
        """Tokens that a batch may have, once memory ran out."""
        self.begun = False
        targets = sum(excerpt.scored for excerpt in excerpts[plan.longest])
        self.losses_LN = np.full((len(plan.lengths), targets), np.nan)
        self.done, self.saved = 0.0, time.monotonic()
        self.total = sum(self._operations(excerpt) for some in excerpts.values() for excerpt in some)

    def run(self) -> np.ndarray:
        self._restore()
        try:
            for row in reversed(range(len(self.plan.lengths))):
                self._length(row)
        finally:
            self._save()
        if self.journal is not None:
            self.journal.unlink(missing_ok=True)
        return self.losses_LN

    def _length(self, row: int) -> None:
        todo, place = [], 0
        for excerpt in self.excerpts[self.plan.lengths[row]]:
            if np.isnan(self.losses_LN[row, place]):
                todo.append((excerpt, place))
            else:
                self.done += self._operations(excerpt)
            place += excerpt.scored
        for (tokens, scored), some in groupby(todo, key=lambda pair: (pair[0].stop - pair[0].start, pair[0].scored)):
            group = list(some)
            while group:
                taken = self._batch(tokens, scored)
                found = self._losses([excerpt for excerpt, _ in group[:taken]], scored)
                for (_, place), losses in zip(group[: len(found)], found, strict=True):
                    self.losses_LN[row, place : place + scored] = losses
                group = group[len(found) :]

    def _batch(self, tokens: int, scored: int) -> int:
        """How many excerpts at once; the very first goes alone, to see what it takes."""
        if not self.begun:
            return 1
        usual = AT_ONCE if self.adapter.device.type == "cpu" else AT_ONCE_ON_GPU
        needed = self.adapter.needed(tokens, scored, self.plan.window)
        each = forward(self.adapter, needed, scored, self.plan.window).bytes
        bounds = [int(SHARE * free_memory(self.adapter.device) / each), self.most or usual // needed]
        if self.room is not None:
            bounds.append(self.room // needed)
        return max(1, min(bounds))

    def _losses(self, excerpts: list[Excerpt], scored: int) -> np.ndarray:
        """The losses of as many of these excerpts as memory allows: (n, scored)."""
        while True:
            start = time.perf_counter()
            found = self._attempt(excerpts, scored)
            if found is not None:
                break
            excerpts = self._half(excerpts, scored)
        if not np.isfinite(found).all():
            raise NonFiniteResult(
                f"{self.adapter.name} gives a loss that is not finite, at length {self._length_of(excerpts)}"
            )
        self.done += sum(self._operations(excerpt) for excerpt in excerpts)
        if not self.begun:
            self.begun = True
            self._estimate(excerpts[0], scored, time.perf_counter() - start)
        self.watch({"done": self.done, "total": self.total, "what": f"length {self._length_of(excerpts)}"})
        if time.monotonic() - self.saved > SAVE_EVERY:
            self._save()
        return found

    def _attempt(self, excerpts: list[Excerpt], scored: int) -> np.ndarray | None:
        """The losses, or None if memory ran out; by then everything of the attempt is gone."""
        ids_BT = torch.from_numpy(np.stack([self._ids(excerpt) for excerpt in excerpts]))
        try:
            return self.adapter.losses(ids_BT, scored, self.plan.window).numpy()
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            if out_of_memory(error):
                return None
            if isinstance(error, FieldlensError) or self.begun:
                raise
            said = " ".join(str(error).split())[:200]
            trained = f"; its configuration says {self.adapter.train_length}" if self.adapter.train_length else ""
            raise BadInput(f"{self.adapter.name} cannot take {len(ids_BT[0]) - 1} tokens{trained} ({said})") from error

    def _half(self, excerpts: list[Excerpt], scored: int) -> list[Excerpt]:
        if len(excerpts) == 1:
            raise OutOfMemory(
                f"not enough memory for one text of {self._length_of(excerpts)} tokens: give shorter --lengths"
            )
        kept = excerpts[: len(excerpts) // 2]
        self.room = len(kept) * self.adapter.needed(self._length_of(kept), scored, self.plan.window)
        self.watch({"warning": f"not enough memory: going on with batches of {len(kept)}"})
        return kept

    def _ids(self, excerpt: Excerpt) -> np.ndarray:
        ids = self.documents[excerpt.document][excerpt.start : excerpt.stop + 1].astype(np.int64)
        return ids if self.plan.bos is None else np.concatenate([[self.plan.bos], ids])

    def _length_of(self, excerpts: list[Excerpt]) -> int:
        return excerpts[0].stop - excerpts[0].start

    def _operations(self, excerpt: Excerpt) -> float:
        needed = self.adapter.needed(excerpt.stop - excerpt.start, excerpt.scored, self.plan.window)
        return forward(self.adapter, needed, excerpt.scored, self.plan.window).operations

    def _estimate(self, excerpt: Excerpt, scored: int, seconds: float) -> None:
        needed = self.adapter.needed(excerpt.stop - excerpt.start, scored, self.plan.window)
        each = forward(self.adapter, needed, scored, self.plan.window)
        memory = each.bytes * self._batch(excerpt.stop - excerpt.start, scored)
        self.watch({"estimate": seconds * (self.total - self.done) / each.operations, "memory": memory})

    def _restore(self) -> None:
        if self.journal is not None and self.journal.exists():
            found = read_arrays(self.journal)["losses"]
            if found.shape == self.losses_LN.shape:
                self.losses_LN[:] = found

    def _save(self) -> None:
        self.saved = time.monotonic()
        if self.journal is not None and self.done:
            write_arrays(self.journal, {"losses": self.losses_LN})
