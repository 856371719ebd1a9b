"""Measurements that test a receptive field: loss with a cut context, perplexity by context length and window."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldlens.core.events import Progress, Watch
from fieldlens.data.text import Text
from fieldlens.evaluation.equivalence import Contrast, contrast, ratio
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import finite
from fieldlens.evaluation.verdict import Verdict
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.receptive.request import CACHE_DTYPES, MeasureRequest
from fieldlens.receptive.rounds import Rounds, context_lengths
from fieldlens.schemes.window import min_window
from fieldlens.storage.records import ModelRecord

RISES = ("drifts", "explodes")
"""Verdicts on a loss that rises past the training length."""
GUESSES = 0.5
"""A perplexity above this share of the vocabulary size is close to that of a uniform guess."""


def probe(
    adapter: ModelAdapter, rows: Sequence[Tensor], window: int | None, bos: int | None, watch: Watch
) -> dict[str, Any]:
    """Loss and KL divergence with the context cut to its last 1, 2, 4 … tokens, averaged over segments; no gradients.

    Each row holds context and target, after a BOS if `bos` is given; the BOS is kept in front of the cut context.
    """
    cuts: list[int] = []
    losses, divergences = [], []
    bos_T = torch.tensor([] if bos is None else [bos], dtype=torch.long)
    for number, row in enumerate(rows, 1):
        context_T, target = row[0, len(bos_T) : -1], int(row[0, -1])
        cuts = [2**n for n in range(len(context_T).bit_length()) if 2**n < len(context_T)] + [len(context_T)]
        full_V = _log_probabilities(adapter, row[0, :-1], window)
        cut_rows = [torch.cat([bos_T, context_T[-cut:]]) for cut in cuts]
        predictions = [_log_probabilities(adapter, cut_T, window) for cut_T in cut_rows]
        losses.append([-float(log_p_V[target]) for log_p_V in predictions])
        divergences.append([float((full_V.exp() * (full_V - log_p_V)).sum()) for log_p_V in predictions])
        watch(Progress(number, len(rows), "probe"))
    return {
        "cuts": cuts,
        "loss": np.mean(losses, 0).tolist(),
        "divergence": np.mean(divergences, 0).tolist(),
    }


@torch.no_grad()
def _log_probabilities(adapter: ModelAdapter, ids_T: Tensor, window: int | None) -> Tensor:
    logits_V = next(adapter.logits(ids_T[None].to(adapter.device), 1, window, 0))[0, -1]
    return logits_V.double().log_softmax(0).cpu()


@dataclass(frozen=True)
class Candidate:
    """A context or a window, compared with the reference context on the same targets."""

    kind: str
    """context or window."""
    tokens: int
    perplexity: float
    contrast: Contrast
    cache_bytes: int | None

    @property
    def outcome(self) -> str:
        """What the interval shows: not worse (by more than the margin), worse, or undecided."""
        if self.contrast.not_worse:
            return "not worse"
        return "worse" if self.contrast.worse else "undecided"

    @property
    def interval(self) -> str:
        """The ratio of perplexities with its interval, as text."""
        low, high = (
            ratio(bound) if math.isfinite(bound) else None for bound in (self.contrast.low, self.contrast.high)
        )
        bounds = "no interval" if low is None or high is None else f"95% interval {low:.3f} to {high:.3f}"
        return f"× {self.contrast.ratio:.3f}, {bounds}"

    def to_json(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "perplexity": finite(self.perplexity),
            **self.contrast.to_json(),
            "outcome": self.outcome,
            "targets_needed": self.contrast.targets_to_bound,
            "cache_bytes": self.cache_bytes,
        }


@dataclass(frozen=True)
class Check:
    """Perplexity by context length, and by window at the longest context."""

    contexts: Evaluation
    windows: dict[int, Evaluation]
    cache: Mapping[str, int]
    """Bytes of the KV cache of each candidate, by its name; empty if unknown."""
    cache_dtype: str
    """The dtype of that cache."""
    vocab_size: int | None = None

    @property
    def guesses(self) -> bool:
        """Whether the model predicts the text hardly better than by chance, so that no context can be recommended."""
        return self.vocab_size is not None and self.contexts.table[self.reference] > GUESSES * self.vocab_size

    @property
    def longest(self) -> int:
        """The longest context."""
        return max(self.contexts.losses)

    @cached_property
    def verdict(self) -> Verdict:
        """The verdict on the loss past the training length."""
        return self.contexts.verdict

    @property
    def reference(self) -> int:
        """The context to compare with: the longest, or the training length if the loss rises past it."""
        return self.verdict["train_length"] if self.verdict["verdict"] in RISES else self.longest

    @property
    def candidates(self) -> list[Candidate]:
        """Contexts below the reference, then windows up to it, each from the largest down."""
        return [row for row in self.compared if row.tokens < self.reference + (row.kind == "window")]

    @cached_property
    def compared(self) -> list[Candidate]:
        """All contexts but the reference, then all windows below the longest context, each from the largest down."""
        losses = {("context", length): losses for length, losses in self.contexts.losses.items()}
        losses |= {("window", width): evaluation.losses[self.longest] for width, evaluation in self.windows.items()}
        reference_N, (units_N, _) = self.contexts.quantities(self.reference), self.contexts.units()
        candidates = []
        for kind, tokens in sorted(losses, key=lambda name: (name[0], -name[1])):
            if tokens != (self.reference if kind == "context" else self.longest):
                values_N = losses[kind, tokens].double().numpy()
                row = contrast(values_N, reference_N, units_N, self.contexts.margin)
                perplexity, cache = ratio(float(values_N.mean())), self.cache.get(f"{kind} {tokens}")
                candidates.append(Candidate(kind, tokens, perplexity, row, cache))
        return candidates

    def against_context(self, width: int) -> Contrast | None:
        """A window against a context of the same size, which is encoded from its first token; None without one."""
        if width not in self.windows or width not in self.contexts.losses:
            return None
        losses_N = self.windows[width].losses[self.longest].double().numpy()
        return contrast(losses_N, self.contexts.quantities(width), self.contexts.units()[0], self.contexts.margin)

    def of(self, kind: str) -> list[Candidate]:
        """The candidates of one kind, largest first."""
        return [candidate for candidate in self.candidates if candidate.kind == kind]

    def smallest(self, kind: str) -> Candidate | None:
        """The smallest context or window (`kind`) that is shown to be within the margin of the reference.

        Candidates are tested from the largest down to the first that fails, which needs no correction for their number.
        """
        passed = list(takewhile(lambda candidate: candidate.contrast.not_worse, self.of(kind)))
        return passed[-1] if passed else None

    def largest_worse(self, kind: str) -> Candidate | None:
        """The largest context or window that is shown to be worse than the margin, tested from the smallest up."""
        passed = list(takewhile(lambda candidate: candidate.contrast.worse, reversed(self.of(kind))))
        return passed[-1] if passed else None

    @property
    def seconds(self) -> float:
        """How long the evaluations took."""
        return sum(part.about.get("seconds", 0.0) for part in (self.contexts, *self.windows.values()))

    def saved(self, candidate: Candidate) -> float | None:
        """The share of the cache of the reference context that a candidate saves."""
        full = self.cache.get(f"context {self.reference}")
        return 1 - candidate.cache_bytes / full if candidate.cache_bytes and full else None

    def to_json(self) -> dict[str, Any]:
        smallest, worse = {kind: self.smallest(kind) for kind in ("context", "window")}, self.largest_worse("context")
        return {
            "contexts": self.contexts.rows(),
            "windows": [
                {"window": width, "perplexity": finite(evaluation.table[self.longest])}
                for width, evaluation in self.windows.items()
            ],
            "verdict": self.verdict,
            "reference": self.reference,
            "resampled": self.contexts.units()[1],
            "candidates": [{"kind": row.kind, **row.to_json()} for row in self.candidates],
            "past_reference": [
                {"kind": row.kind, **row.to_json()} for row in self.compared if row not in self.candidates
            ],
            "counts": self.contexts.counts,
            **{
                f"smallest_{kind}": {**best.to_json(), "cache_saved": self.saved(best)} if best else None
                for kind, best in smallest.items()
            },
            "largest_worse_context": worse.to_json() if worse else None,
            "cache_dtype": self.cache_dtype,
        }


def check(
    adapter: ModelAdapter,
    text: Text,
    length: int,
    request: MeasureRequest,
    about: ModelRecord,
    watch: Watch,
    journal: Path | None = None,
    deadline: float | None = None,
) -> Check:
    """Measure perplexity by context length, and by window at the longest context, on the same targets.

    With a deadline, as many rounds of targets are evaluated as fit. Partial results are kept beside `journal`, from
    which an interrupted check resumes.
    """
    lengths = context_lengths(length, adapter.train_length)
    windows = candidate_windows(adapter, length, request.window) if request.windows is None else request.windows
    record = {"model": about, **text.about, "align": "tokens", "margin": request.margin}
    rounds = Rounds(adapter, text, request, lengths, windows, about=record, watch=watch, journal=journal)
    evaluations = rounds.run(deadline)
    sizes = {f"context {tokens}": adapter.cache_size(tokens, request.window) for tokens in lengths}
    sizes |= {f"window {width}": adapter.cache_size(length, width) for width in windows}
    served = request.cache_dtype or str(adapter.named_dtype or adapter.dtype).removeprefix("torch.")
    itemsize = CACHE_DTYPES.get(served) or adapter.dtype.itemsize
    cache = {name: int(size * itemsize / adapter.dtype.itemsize) for name, size in sizes.items() if size}
    by_window = {width: evaluations[f"window {width}"] for width in windows}
    return Check(evaluations["contexts"], by_window, cache, served, adapter.vocab_size)


def candidate_windows(adapter: ModelAdapter, length: int, window: int | None) -> list[int]:
    """Powers of two below the model's own widest window; empty if the model does not support windows."""
    widest = max(min(min_window(own, window) or length, length) for own in adapter.windows)
    try:
        adapter.check_window(2)
    except ValueError:
        return []
    return [2**n for n in range(1, 30) if 2**n < widest]
