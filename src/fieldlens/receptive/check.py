"""Measured, not predicted: loss as the context is cut, and perplexity by context length and window."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldlens.data.text import Text
from fieldlens.evaluation.evaluate import draw_anchors, evaluate
from fieldlens.evaluation.protocols import protocol
from fieldlens.evaluation.result import Evaluation, Plan
from fieldlens.evaluation.runner import Watch
from fieldlens.evaluation.statistics import bootstrap_difference, differences
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.schemes.window import min_window
from fieldlens.training.loss import LARGEST

CLOSE_ENOUGH = 0.01
"""Perplexity within so much of the best is as good as the best."""


def probe(
    adapter: ModelAdapter, rows: Sequence[Tensor], window: int | None, bos: int | None, watch: Watch
) -> dict[str, Any]:
    """A second opinion without gradients: how prediction and loss change as the context is cut to its last tokens.

    Rows are context and target, with a BOS in front if there is one; it stays in front of what is cut.
    """
    cuts: list[int] = []
    losses, divergences = [], []
    head_T = torch.tensor([] if bos is None else [bos], dtype=torch.long)
    for number, row in enumerate(rows, 1):
        context_T, truth = row[0, len(head_T) : -1], int(row[0, -1])
        cuts = [2**n for n in range(len(context_T).bit_length()) if 2**n < len(context_T)] + [len(context_T)]
        whole_V = _logs(adapter, row[0, :-1], window)
        some = [_logs(adapter, torch.cat([head_T, context_T[-cut:]]), window) for cut in cuts]
        losses.append([-float(logs_V[truth]) for logs_V in some])
        divergences.append([float((whole_V.exp() * (whole_V - logs_V)).sum()) for logs_V in some])
        watch({"done": number, "total": len(rows), "what": "probe"})
    return {
        "cuts": cuts,
        "loss": np.mean(losses, 0).tolist(),
        "divergence": np.mean(divergences, 0).tolist(),
    }


@torch.no_grad()
def _logs(adapter: ModelAdapter, ids_T: Tensor, window: int | None) -> Tensor:
    logits_V = next(adapter.logits(ids_T[None].to(adapter.device), 1, window, 0))[0, -1]
    return logits_V.double().log_softmax(0).cpu()


@dataclass(frozen=True)
class Check:
    """Perplexity by context length, and by window at the longest."""

    contexts: Evaluation
    windows: dict[int, Evaluation]
    cache: Mapping[str, int]
    """Bytes of the cache that each candidate needs, by its name; empty if not known."""
    cache_dtype: str
    """What those bytes are counted in."""

    @property
    def longest(self) -> int:
        return max(self.contexts.losses)

    def losses(self) -> dict[str, np.ndarray]:
        """The losses of every candidate, contexts and windows."""
        found = {f"context {n}": losses.double().numpy() for n, losses in self.contexts.losses.items()}
        return found | {f"window {w}": one.losses[self.longest].double().numpy() for w, one in self.windows.items()}

    def smallest(self, kind: str) -> dict[str, Any] | None:
        """The smallest context, or window, whose perplexity is within 1% of the best of all, with an interval."""
        losses = self.losses()
        best = min(losses, key=lambda name: float(losses[name].mean()))
        units_N, unit = self.contexts.units()
        sizes = sorted(int(name.split()[1]) for name in losses if name.startswith(kind))
        for size in sizes:
            differences_N = differences(losses[f"{kind} {size}"], losses[best])
            if differences_N.mean() <= math.log1p(CLOSE_ENOUGH):
                interval, _ = bootstrap_difference(differences_N, units_N)
                low, high = (math.exp(v) if math.isfinite(v) and v < LARGEST else None for v in interval)
                kept, whole = (self.cache.get(name) for name in (f"{kind} {size}", f"context {self.longest}"))
                return {
                    "tokens": size,
                    "best": best,
                    "ratio": math.exp(float(differences_N.mean())),
                    "low": low,
                    "high": high,
                    "resampled": unit,
                    "cache_saved": 1 - kept / whole if kept and whole else None,
                    "cache_bytes": kept,
                }
        return None

    def to_json(self) -> dict[str, Any]:
        return {
            "contexts": self.contexts.rows(),
            "windows": [{"window": w, "perplexity": one.table[self.longest]} for w, one in self.windows.items()],
            "verdict": self.contexts.verdict,
            "smallest_context": self.smallest("context"),
            "smallest_window": self.smallest("window"),
            "cache_dtype": self.cache_dtype,
        }


def check(
    adapter: ModelAdapter,
    text: Text,
    length: int,
    window: int | None,
    targets: int,
    seed: int,
    about: dict[str, Any],
    watch: Watch,
) -> Check:
    """Measure what the receptive field predicts: perplexity against context length and against window."""
    trained = adapter.train_length
    lengths = {2**n for n in range(4, 30) if 2**n < length} | {length}
    if trained and trained < length:
        lengths.add(trained)
    asked: dict[str, Any] = {
        "about": {"model": about, **text.about, "align": "tokens"},
        "sizes": text.sizes,
        "watch": watch,
    }
    plan = Plan(protocol("last-token"), tuple(lengths), targets, seed, window, text.bos)
    anchors = draw_anchors(text.documents, plan)
    contexts = evaluate(adapter, text.documents, plan, anchors=anchors, **asked)
    widest = max(min(min_window(own, window) or length, length) for own in adapter.windows)
    windows = {}
    for width in _windows(adapter, widest):
        banded = Plan(protocol("last-token"), (length,), targets, seed, width, text.bos)
        windows[width] = evaluate(adapter, text.documents, banded, anchors=anchors, **asked)
    asked_for = [("context", n, (n, window)) for n in lengths] + [("window", w, (length, w)) for w in windows]
    dtype = adapter.named_dtype or adapter.dtype
    sizes = {f"{kind} {size}": adapter.cache_size(*cache) for kind, size, cache in asked_for}
    scaled = {name: size * dtype.itemsize // adapter.dtype.itemsize for name, size in sizes.items() if size}
    return Check(contexts, windows, scaled, str(dtype).removeprefix("torch."))


def _windows(adapter: ModelAdapter, widest: int) -> list[int]:
    """Windows worth trying: powers of two below what the model sees anyway, if it takes any."""
    try:
        adapter.check_window(2)
    except ValueError:
        return []
    return [2**n for n in range(1, 30) if 2**n < widest]
