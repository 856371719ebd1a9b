"""The data of the explorer: targets with the shares of their contexts, small enough to be embedded in a report.

Texts are lists of indices into `pieces`, the distinct tokens. A share s > 0 becomes a 16-bit number,
1 + round(65534 (log s - low) / (high - low)) with the `range` [low, high] of the target's log shares; what is below
1e-12 becomes 0. The relative error is at most (high - low) / 131068, about 0.02 %. Marks are those of exact shares.
"""

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fieldlens.receptive.field import erf

MARKS = (0.5, 0.9, 0.99)
"""Shares of the gradient whose number of most recent tokens is marked."""

LEVELS, SMALLEST = 65534, 1e-12
EMBEDDED = 60 * 2048
"""Maximum number of shares in one report, so that it stays below a megabyte."""


@dataclass(frozen=True)
class Target:
    """A predicted token, the text before it, and the share of each token of that text."""

    document: int
    offset: int
    """Position of the target in its document, in tokens."""
    tokens: Sequence[str]
    """The context, oldest first, then the target."""
    shares_T: np.ndarray
    """Shares of the context, oldest first; those of a BOS come before it."""
    layer: int = 0
    """The layer at whose output the gradient starts, from 1; 0 for the prediction."""

    @property
    def length(self) -> int:
        """Number of context tokens, without BOS."""
        return len(self.tokens) - 1

    @property
    def start(self) -> int:
        """Position of the first context token in the document."""
        return self.offset - self.length

    def to_json(self) -> dict[str, Any]:
        """The shares, the marks and the share of a BOS."""
        extra = len(self.shares_T) - self.length
        low_high, quantised = quantise(self.shares_T[extra:])
        return {
            "layer": self.layer,
            "range": low_high,
            "shares": encode(quantised),
            "marks": marks(self.shares_T, self.length),
            "bos": float(f"{self.shares_T[:extra].sum():.4g}") if extra else None,
        }


@dataclass
class Texts:
    """The texts of the targets; a stretch of a document that several targets share is stored once."""

    pieces: dict[str, int] = field(default_factory=dict)
    stretches: list[tuple[int, int, list[str]]] = field(default_factory=list)
    """Document, position of the first token, tokens."""

    def add(self, targets: Iterable[Target]) -> None:
        for target in sorted(targets, key=lambda target: (target.document, target.start, target.offset)):
            if self.place(target) is None:
                self._extend(target)

    def _extend(self, target: Target) -> None:
        """Lengthen the last stretch if the target overlaps its end, else begin another one."""
        if self.stretches:
            document, start, tokens = self.stretches[-1]
            shared = start + len(tokens) - target.start
            overlaps = document == target.document and target.start >= start and shared > 1
            if overlaps and tokens[-shared + 1 :] == list(target.tokens[1:shared]):  # the first may lack a space
                tokens.extend(target.tokens[shared:])
                return
        self.stretches.append((target.document, target.start, list(target.tokens)))

    def place(self, target: Target) -> tuple[int, int] | None:
        """The text that contains a target with its context, and the position of the target in it."""
        for number, (document, start, tokens) in enumerate(self.stretches):
            begin, end = target.start - start, target.offset - start
            inside = document == target.document and begin >= 0 and end < len(tokens)
            if inside and tokens[begin + 1 : end + 1] == list(target.tokens[1:]):
                return number, end
        return None

    def to_json(self) -> dict[str, Any]:
        for _, _, tokens in self.stretches:
            for token in tokens:
                self.pieces.setdefault(token, len(self.pieces))
        kind = np.uint16 if len(self.pieces) <= 1 << 16 else np.uint32
        texts = [encode(np.array([self.pieces[token] for token in tokens], kind)) for _, _, tokens in self.stretches]
        return {"pieces": list(self.pieces), "texts": texts, "bytes": kind(0).itemsize}


def embed(models: Sequence[tuple[Mapping[str, Any], Sequence[Target]]], objective: str) -> dict[str, Any] | None:
    """The data of a report: what is known of each model, and its targets; None if there are no targets.

    Targets beyond EMBEDDED shares are left out, evenly for all models and from the end of their lists.
    """
    room = EMBEDDED // max(1, len(models))
    kept = [_within(targets, room) for _, targets in models]
    texts = Texts()
    for targets in kept:
        texts.add(targets)
    rows = []
    for number, targets in enumerate(kept):
        for target in targets:
            place = texts.place(target)
            assert place is not None
            rows.append({"model": number, "text": place[0], "at": place[1], "start": place[1] - target.length}
                        | target.to_json())  # fmt: skip
    if not rows:
        return None
    return {"models": [about for about, _ in models], "objective": objective, **texts.to_json(), "targets": rows}


def _within(targets: Sequence[Target], room: int) -> list[Target]:
    """The first targets whose shares fit, at least one."""
    totals = np.cumsum([target.length for target in targets])
    return list(targets[: max(1, int((totals <= room).sum()))])


def marks(shares_T: np.ndarray, length: int) -> list[int]:
    """The number of most recent tokens that hold more than 50, 90 and 99 % of the gradient."""
    return [min(length, erf(shares_T, level)) for level in MARKS]


def quantise(shares_T: np.ndarray) -> tuple[list[float], np.ndarray]:
    """The range of the log shares, and the shares as 16-bit numbers."""
    positive_T = shares_T >= SMALLEST
    if not positive_T.any():
        return [0.0, 0.0], np.zeros(len(shares_T), np.uint16)
    logs_T = np.log(shares_T, where=positive_T, out=np.zeros(len(shares_T)))
    low, high = (float(f"{bound:.9g}") for bound in (logs_T[positive_T].min(), logs_T[positive_T].max()))
    steps_T = np.rint(LEVELS * (logs_T - low) / max(high - low, 1e-9)).clip(0, LEVELS)
    return [low, high], np.where(positive_T, 1 + steps_T, 0).astype(np.uint16)


def encode(array: np.ndarray) -> str:
    """Little-endian bytes in base64."""
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()).decode()
