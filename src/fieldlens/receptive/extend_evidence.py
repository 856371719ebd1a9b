"""What a method shows besides its losses: gradient past the training length, retrieval, time; computed once and kept.

Every value is appended to a journal as soon as it is known, so that an interrupted command resumes where it stopped,
and a command with more gradients or trials computes only those that are missing.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.core.events import Progress, Watch
from fieldlens.evaluation.retrieval import Retrieval, Trial, answers
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.receptive.input_gradients import embedding_hook
from fieldlens.storage.journal import Journal


class Evidence:
    """Values of one method by name, kept in a file; a file that was made under another key starts anew.

    Parameters
    ----------
    adapter
        The model with the method.
    path
        The journal.
    key
        Hash of everything that decides the values.
    total
        Number of values, for the display of progress.
    """

    def __init__(self, adapter: ModelAdapter, path: Path, key: str, total: int, watch: Watch) -> None:
        self.adapter, self.journal, self.total, self.watch = adapter, Journal(path), total, watch
        records = [json.loads(record) for record in self.journal.read()]
        if records[:1] != [key]:
            self.journal.end, records = 0, []
            self.journal.append(json.dumps(key).encode())
        self.values: dict[str, Any] = dict(records[1:])
        self.done = 0

    def value(self, name: str, compute: Callable[[], Any]) -> Any:
        """A value, from the journal if it is there."""
        if name not in self.values:
            self.values[name] = compute()
            self.journal.append(json.dumps([name, self.values[name]]).encode())
        self.done += 1
        self.watch(Progress(self.done, max(self.done, self.total), name.rpartition(" ")[0] or name))
        return self.values[name]

    def seconds(self, row: torch.Tensor) -> float:
        """Seconds of a forward pass, the least of three; CPU time on a CPU, which other processes lengthen little."""
        on_cpu = self.adapter.device.type == "cpu"
        clock = time.process_time if on_cpu else time.perf_counter
        name = "CPU time" if on_cpu else "time"
        return self.value(name, lambda: min(self._seconds(row, clock) for _ in range(3)))

    def retrieval(self, length: int, trials: list[Trial]) -> Retrieval:
        """Right answers among the trials of a length."""
        adapter = self.adapter
        right = [
            self.value(f"retrieval at {length} {number}", lambda trial=trial: answers(adapter, trial))  # type: ignore[misc]
            for number, trial in enumerate(trials)
        ]
        return Retrieval(sum(right), len(right))

    def gradient_beyond(self, rows: list[torch.Tensor], train_length: int) -> float | None:
        """Mean share of the gradient that lies more than the training length before the target; None if undefined."""
        if not rows:
            return None
        hook = embedding_hook(self.adapter)

        def share(row: torch.Tensor) -> float | None:
            norms_T = hook.norms(row)[0]
            total = float(norms_T.sum())
            return float(norms_T[:-train_length].sum()) / total if np.isfinite(total) and total > 0 else None

        shares = [self.value(f"gradient {number}", lambda row=row: share(row)) for number, row in enumerate(rows)]  # type: ignore[misc]
        defined = [value for value in shares if value is not None]
        return float(np.mean(defined)) if defined else None

    def _seconds(self, row: torch.Tensor, clock: Callable[[], float]) -> float:
        start = clock()
        self.adapter.losses(row)
        return clock() - start
