"""Measurements that test a receptive field: loss with a cut context, perplexity by context length and window."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
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
"""Relative difference in perplexity from the best that counts as equal to it."""


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
        watch({"done": number, "total": len(rows), "what": "probe"})
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
class Check:
    """Perplexity by context length, and by window at the longest context."""

    contexts: Evaluation
    windows: dict[int, Evaluation]
    cache: Mapping[str, int]
    """Bytes of the KV cache of each candidate, by its name; empty if unknown."""
    cache_dtype: str
    """The dtype of that cache."""

    @property
    def longest(self) -> int:
        """The longest context."""
        return max(self.contexts.losses)

    def losses(self) -> dict[str, np.ndarray]:
        """The losses of every candidate, contexts and windows, by name."""
        candidates = {f"context {length}": losses for length, losses in self.contexts.losses.items()}
        candidates |= {f"window {w}": evaluation.losses[self.longest] for w, evaluation in self.windows.items()}
        return {name: losses.double().numpy() for name, losses in candidates.items()}

    def smallest(self, kind: str) -> dict[str, Any] | None:
        """The smallest context or window (`kind`) whose perplexity is within 1% of the best, with a 95% interval."""
        losses = self.losses()
        best = min(losses, key=lambda name: float(losses[name].mean()))
        units_N, unit = self.contexts.units()
        sizes = sorted(int(name.split()[1]) for name in losses if name.startswith(kind))
        for size in sizes:
            name = f"{kind} {size}"
            differences_N = differences(losses[name], losses[best])
            if differences_N.mean() <= math.log1p(CLOSE_ENOUGH):
                interval, _ = bootstrap_difference(differences_N, units_N)
                low, high = (math.exp(v) if math.isfinite(v) and v < LARGEST else None for v in interval)
                cache, full_cache = self.cache.get(name), self.cache.get(f"context {self.longest}")
                return {
                    "tokens": size,
                    "best": best,
                    "ratio": math.exp(float(differences_N.mean())),
                    "low": low,
                    "high": high,
                    "resampled": unit,
                    "cache_saved": 1 - cache / full_cache if cache and full_cache else None,
                    "cache_bytes": cache,
                }
        return None

    def to_json(self) -> dict[str, Any]:
        perplexities = {window: evaluation.table[self.longest] for window, evaluation in self.windows.items()}
        return {
            "contexts": self.contexts.rows(),
            "windows": [{"window": window, "perplexity": value} for window, value in perplexities.items()],
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
    journal: Path | None = None,
) -> Check:
    """Measure perplexity by context length, and by window at the longest context, on the same targets.

    Partial results are kept beside `journal`, from which an interrupted check resumes.
    """
    lengths = {2**n for n in range(4, 30) if 2**n < length} | {length}
    if adapter.train_length and adapter.train_length < length:
        lengths.add(adapter.train_length)
    options: dict[str, Any] = {
        "about": {"model": about, **text.about, "align": "tokens"},
        "sizes": text.sizes,
        "watch": watch,
    }
    plan = Plan(protocol("last-token"), tuple(lengths), targets, seed, window, text.bos)
    anchors = draw_anchors(text.documents, plan)

    def kept(name: str) -> Path | None:
        return journal and journal.with_name(f"{journal.stem}-{targets}-{name}{journal.suffix}")

    contexts = evaluate(adapter, text.documents, plan, anchors=anchors, journal=kept("contexts"), **options)
    widest = max(min(min_window(own, window) or length, length) for own in adapter.windows)
    windows = {}
    for width in _candidate_windows(adapter, widest):
        windowed = Plan(protocol("last-token"), (length,), targets, seed, width, text.bos)
        partial = kept(f"window-{width}")
        windows[width] = evaluate(adapter, text.documents, windowed, anchors=anchors, journal=partial, **options)
    dtype = adapter.named_dtype or adapter.dtype
    sizes = {f"context {tokens}": adapter.cache_size(tokens, window) for tokens in lengths}
    sizes |= {f"window {width}": adapter.cache_size(length, width) for width in windows}
    cache = {name: size * dtype.itemsize // adapter.dtype.itemsize for name, size in sizes.items() if size}
    return Check(contexts, windows, cache, str(dtype).removeprefix("torch."))


def _candidate_windows(adapter: ModelAdapter, widest: int) -> list[int]:
    """Powers of two below the model's own widest window; empty if the model does not support windows."""
    try:
        adapter.check_window(2)
    except ValueError:
        return []
    return [2**n for n in range(1, 30) if 2**n < widest]
