"""What a receptive field means for its users: coverage, the check against measured perplexity, and advice."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldlens.batches import Watch
from fieldlens.effort import spoken_bytes
from fieldlens.evaluate import Text
from fieldlens.evaluation import Evaluation, Plan
from fieldlens.layout import narrower
from fieldlens.loss import LARGEST
from fieldlens.protocols import protocol
from fieldlens.receptive import LEVELS, ReceptiveField
from fieldlens.scoring import anchors_of, evaluate
from fieldlens.statistics import bootstrap_difference, differences
from fieldlens.subject import Subject

COVERED = 0.99
CLOSE_ENOUGH = 0.01
"""Perplexity within so much of the best is as good as the best."""


def coverage(found: ReceptiveField) -> dict[str, Any]:
    """The share of the gradient inside the training length, and what the paper's principle makes of it."""
    if found.status:
        return {"share": None, "predicts": None, "reason": found.status}
    if found.train_length is None:
        return {"share": None, "predicts": None, "reason": "the training length is not known: give --train-length"}
    if found.length <= found.train_length:
        reason = f"measured at {found.length} tokens, not beyond the training length {found.train_length}"
        return {"share": None, "predicts": None, "reason": reason}
    share = found.within(found.train_length)
    if share <= COVERED:
        return {"share": share, "predicts": "nothing", "reason": ""}
    if found.saturated():
        return {"share": share, "predicts": None, "reason": "the receptive field is not bounded at this length"}
    return {"share": share, "predicts": "extrapolates", "reason": ""}


def probe(
    subject: Subject, rows: Sequence[Tensor], window: int | None, bos: int | None, watch: Watch
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
        whole_V = _logs(subject, row[0, :-1], window)
        some = [_logs(subject, torch.cat([head_T, context_T[-cut:]]), window) for cut in cuts]
        losses.append([-float(logs_V[truth]) for logs_V in some])
        divergences.append([float((whole_V.exp() * (whole_V - logs_V)).sum()) for logs_V in some])
        watch({"done": number, "total": len(rows), "what": "probe"})
    return {
        "cuts": cuts,
        "loss": np.mean(losses, 0).tolist(),
        "divergence": np.mean(divergences, 0).tolist(),
    }


@torch.no_grad()
def _logs(subject: Subject, ids_T: Tensor, window: int | None) -> Tensor:
    logits_V = next(subject.logits(ids_T[None].to(subject.device), 1, window, 0))[0, -1]
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
    subject: Subject,
    text: Text,
    length: int,
    window: int | None,
    targets: int,
    seed: int,
    about: dict[str, Any],
    watch: Watch,
) -> Check:
    """Measure what the receptive field predicts: perplexity against context length and against window."""
    trained = subject.train_length
    lengths = {2**n for n in range(4, 30) if 2**n < length} | {length}
    if trained and trained < length:
        lengths.add(trained)
    asked: dict[str, Any] = {
        "about": {"model": about, **text.about, "align": "tokens"},
        "sizes": text.sizes,
        "watch": watch,
    }
    plan = Plan(protocol("last-token"), tuple(lengths), targets, seed, window, text.bos)
    anchors = anchors_of(text.documents, plan)
    contexts = evaluate(subject, text.documents, plan, anchors=anchors, **asked)
    widest = max(min(narrower(own, window) or length, length) for own in subject.windows)
    windows = {}
    for width in _windows(subject, widest):
        banded = Plan(protocol("last-token"), (length,), targets, seed, width, text.bos)
        windows[width] = evaluate(subject, text.documents, banded, anchors=anchors, **asked)
    asked_for = [("context", n, (n, window)) for n in lengths] + [("window", w, (length, w)) for w in windows]
    dtype = subject.named_dtype or subject.dtype
    sizes = {f"{kind} {size}": subject.cache_size(*cache) for kind, size, cache in asked_for}
    scaled = {name: size * dtype.itemsize // subject.dtype.itemsize for name, size in sizes.items() if size}
    return Check(contexts, windows, scaled, str(dtype).removeprefix("torch."))


def _windows(subject: Subject, widest: int) -> list[int]:
    """Windows worth trying: powers of two below what the model sees anyway, if it takes any."""
    try:
        subject.check_window(2)
    except ValueError:
        return []
    return [2**n for n in range(1, 30) if 2**n < widest]


def advise(found: ReceptiveField, theoretical: dict[str, Any] | None, checked: Check | None) -> list[str]:
    """What a user can do with it, in sentences."""
    if found.status:
        return [f"There is no receptive field here: {found.status}."]
    said = []
    if found.saturated():
        apart = found.has_sink and found.stands_alone and not found.saturated(without_first=True)
        said.append(
            f"Not bounded at this length: 99% of the gradient needs {found.erf(0.99):,} of {found.length:,} tokens. "
            "Nothing is advised from that: measure at a larger --length, if model and text have room"
            f"{', or see below' if apart else ''}."
        )
    said.append(f"The gradient lies {_spread(found, False)} of {found.length:,} tokens.")
    if found.has_sink and found.stands_alone:
        what = "BOS and the first token hold" if found.bos else "The first token alone holds"
        rest = _spread(found, without_first=True)
        said.append(
            f"{what} {found.first_share:.0%}, many times its part: an attention sink, if the model is trained. "
            f"Without: {rest}."
        )
    lost = int((~found.defined).sum())
    if lost:
        said.append(
            f"{lost} of {len(found.norms_NT)} segments have no receptive field ({found.reason}); they are left out."
        )
    covered = coverage(found)
    if covered["share"] is None:
        said.append(f"Coverage is not known: {covered['reason']}.")
    elif covered["predicts"] is None:
        said.append(f"Coverage predicts nothing here: {covered['reason']}.")
    elif covered["predicts"] == "extrapolates":
        said.append(
            f"The training length {found.train_length:,} covers {covered['share']:.1%} of it: by the paper's principle "
            "perplexity should hold at longer contexts."
        )
    else:
        said.append(
            f"The training length {found.train_length:,} covers {covered['share']:.1%} of it, not more than 99%: "
            "that predicts nothing about longer contexts."
        )
    if theoretical:
        said.append(
            f"Its windows reach exactly {theoretical['exact']:,} tokens back "
            f"(the paper's formula says {theoretical['paper']:,})."
        )
    return [*said, *_checked(checked)]


def _spread(found: ReceptiveField, without_first: bool) -> str:
    return ", ".join(f"{level:.0%} in the last {found.erf(level, without_first):,}" for level in LEVELS)


def _checked(checked: Check | None) -> list[str]:
    if checked is None:
        return []
    said = []
    verdict = checked.contexts.verdict
    if verdict["verdict"]:
        said.append(f"Measured past the training length, perplexity {_sentence(verdict)}.")
    for kind, words in (("context", "context"), ("window", "sliding window")):
        found = checked.smallest(kind)
        if found is None:
            none = kind == "window" and not checked.windows
            said.append("It was given no window." if none else f"No {words} is within 1% of the best perplexity.")
            continue
        saved = ""
        if found["cache_saved"]:
            size, part = f"{spoken_bytes(found['cache_bytes'])} in {checked.cache_dtype}", found["cache_saved"]
            saved = f"; a cache of that size, {size}, saves {min(part, 0.999):.{0 if part < 0.99 else 1}%}"
            saved += f" of the cache of {checked.longest:,} tokens"
        if found["best"] == f"{kind} {found['tokens']}":
            said.append(f"The best perplexity is that with a {words} of {found['tokens']:,} tokens{saved}.")
            continue
        interval = f", 95% {found['low']:.3f} to {found['high']:.3f}" if found["low"] and found["high"] else ""
        said.append(
            f"The smallest {words} within 1% of the best perplexity ({found['best']}) is {found['tokens']:,} tokens "
            f"(× {found['ratio']:.3f}{interval} over {found['resampled']}){saved}."
        )
    return said


def _sentence(verdict: dict[str, Any]) -> str:
    first = f" from {verdict['first']:,} tokens on" if verdict["first"] else ""
    return f"{verdict['verdict']}{first}"
