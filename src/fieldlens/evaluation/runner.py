"""Computes the losses of a plan's excerpts in batches that fit in memory; a journal keeps partial results."""

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import numpy as np
import torch

from fieldlens.core.errors import BadInput, FieldlensError, NonFiniteResult, OutOfMemory
from fieldlens.core.events import Estimate, Progress, Warned, Watch
from fieldlens.core.memory import free_memory, out_of_memory
from fieldlens.evaluation.protocols import Excerpt
from fieldlens.evaluation.result import Plan
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.cost import SHARE, forward
from fieldlens.storage.results import read_arrays, write_arrays

AT_ONCE = 8192
"""Maximum number of tokens in a batch on a CPU, where larger batches are not faster."""

AT_ONCE_ON_GPU = 1 << 16
SAVE_EVERY = 15.0


class EvaluationRunner:
    """Evaluates the excerpts of a plan in batches, longest length first.

    Parameters
    ----------
    excerpts
        Excerpts by length.
    batch
        Maximum batch size; chosen by free memory if None.
    journal
        File for partial results, from which an interrupted run resumes. The caller removes it after saving.
    watch
        Called with progress events.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        documents: Sequence[np.ndarray],
        plan: Plan,
        *,
        excerpts: dict[int, list[Excerpt]],
        batch: int | None,
        journal: Path | None,
        watch: Watch,
    ) -> None:
        self.adapter, self.documents, self.plan, self.excerpts = adapter, documents, plan, excerpts
        self.max_batch, self.journal, self.watch = batch, journal, watch
        self.max_tokens: int | None = None
        """Maximum number of tokens in a batch, set when memory has run out."""
        self.started = False
        targets = sum(excerpt.scored for excerpt in excerpts[plan.longest])
        self.losses_LN = np.full((len(plan.lengths), targets), np.nan)
        self.done, self.saved = 0.0, time.monotonic()
        self.total = sum(self._operations(excerpt) for group in excerpts.values() for excerpt in group)

    def run(self) -> np.ndarray:
        self._restore()
        try:
            for row in reversed(range(len(self.plan.lengths))):
                self._evaluate_length(row)
        finally:
            self._save()
        return self.losses_LN

    def _evaluate_length(self, row: int) -> None:
        """Fill one row of the losses; targets restored from the journal are skipped."""
        pending, column = [], 0
        for excerpt in self.excerpts[self.plan.lengths[row]]:
            if np.isnan(self.losses_LN[row, column]):
                pending.append((excerpt, column))
            else:
                self.done += self._operations(excerpt)
            column += excerpt.scored
        shapes = groupby(pending, key=lambda pair: (pair[0].stop - pair[0].start, pair[0].scored))
        for (tokens, scored), pairs in shapes:
            group = list(pairs)
            while group:
                size = self._batch_size(tokens, scored)
                losses_BN = self._losses([excerpt for excerpt, _ in group[:size]], scored)
                for (_, column), losses_N in zip(group[: len(losses_BN)], losses_BN, strict=True):
                    self.losses_LN[row, column : column + scored] = losses_N
                group = group[len(losses_BN) :]

    def _batch_size(self, tokens: int, scored: int) -> int:
        """Number of excerpts in the next batch; the first batch has one, to measure its cost."""
        if not self.started:
            return 1
        usual = AT_ONCE if self.adapter.device.type == "cpu" else AT_ONCE_ON_GPU
        needed = self.adapter.needed(tokens, scored, self.plan.window)
        memory = forward(self.adapter, needed, scored, self.plan.window).bytes
        bounds = [int(SHARE * free_memory(self.adapter.device) / memory), self.max_batch or usual // needed]
        if self.max_tokens is not None:
            bounds.append(self.max_tokens // needed)
        return max(1, min(bounds))

    def _losses(self, excerpts: list[Excerpt], scored: int) -> np.ndarray:
        """Losses of as many of these excerpts as fit in memory, of shape (n, scored)."""
        while True:
            start = time.perf_counter()
            losses_BN = self._attempt(excerpts, scored)
            if losses_BN is not None:
                break
            excerpts = self._half(excerpts, scored)
        if not np.isfinite(losses_BN).all():
            raise NonFiniteResult(f"{self.adapter.name} produced NaN or inf at length {self._length_of(excerpts)}")
        self.done += sum(self._operations(excerpt) for excerpt in excerpts)
        if not self.started:
            self.started = True
            self._estimate(excerpts[0], scored, time.perf_counter() - start)
        self.watch(Progress(self.done, self.total, f"length {self._length_of(excerpts)}"))
        if time.monotonic() - self.saved > SAVE_EVERY:
            self._save()
        return losses_BN

    def _attempt(self, excerpts: list[Excerpt], scored: int) -> np.ndarray | None:
        """The losses, or None if memory ran out; on return the tensors of the attempt have been freed."""
        ids_BT = torch.from_numpy(np.stack([self._ids(excerpt) for excerpt in excerpts]))
        try:
            return self.adapter.losses(ids_BT, scored, self.plan.window).numpy()
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            if out_of_memory(error):
                return None
            if isinstance(error, FieldlensError) or self.started:
                raise
            message = " ".join(str(error).split())[:200]
            trained = f"; its training length is {self.adapter.train_length}" if self.adapter.train_length else ""
            raise BadInput(
                f"{self.adapter.name} cannot process {len(ids_BT[0]) - 1} tokens{trained} ({message})"
            ) from error

    def _half(self, excerpts: list[Excerpt], scored: int) -> list[Excerpt]:
        """The first half of a batch that did not fit in memory; later batches are limited to its size."""
        if len(excerpts) == 1:
            raise OutOfMemory(
                f"not enough memory for one excerpt of {self._length_of(excerpts)} tokens: use shorter --lengths"
            )
        half = excerpts[: len(excerpts) // 2]
        self.max_tokens = len(half) * self.adapter.needed(self._length_of(half), scored, self.plan.window)
        self.watch(Warned(f"not enough memory: reducing the batch size to {len(half)}"))
        return half

    def _ids(self, excerpt: Excerpt) -> np.ndarray:
        ids = self.documents[excerpt.document][excerpt.start : excerpt.stop + 1].astype(np.int64)
        return ids if self.plan.bos is None else np.concatenate([[self.plan.bos], ids])

    def _length_of(self, excerpts: list[Excerpt]) -> int:
        return excerpts[0].stop - excerpts[0].start

    def _operations(self, excerpt: Excerpt) -> float:
        needed = self.adapter.needed(excerpt.stop - excerpt.start, excerpt.scored, self.plan.window)
        return forward(self.adapter, needed, excerpt.scored, self.plan.window).operations

    def _estimate(self, excerpt: Excerpt, scored: int, seconds: float) -> None:
        """Report the expected time and memory, from the time of one excerpt."""
        needed = self.adapter.needed(excerpt.stop - excerpt.start, scored, self.plan.window)
        cost = forward(self.adapter, needed, scored, self.plan.window)
        memory = cost.bytes * self._batch_size(excerpt.stop - excerpt.start, scored)
        self.watch(Estimate(seconds * (self.total - self.done) / cost.operations, memory))

    def _restore(self) -> None:
        if self.journal is not None and self.journal.exists():
            with suppress(BadInput, KeyError):  # a damaged journal is ignored
                saved = read_arrays(self.journal)
                intact = saved["sha256"].tobytes() == _sha256(saved["losses"])
                if intact and saved["losses"].shape == self.losses_LN.shape:
                    self.losses_LN[:] = saved["losses"]

    def _save(self) -> None:
        self.saved = time.monotonic()
        if self.journal is not None and self.done:
            sha256 = np.frombuffer(_sha256(self.losses_LN), np.uint8)
            write_arrays(self.journal, {"losses": self.losses_LN, "sha256": sha256})


def _sha256(losses_LN: np.ndarray) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(losses_LN).tobytes()).digest()
