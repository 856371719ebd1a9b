"""The receptive field: how a prediction's gradient is spread over the tokens before it.

s_m = ‖∂ log p / ∂ e_m‖ / Σ_n ‖∂ log p / ∂ e_n‖ is the share of token m, and c_m = Σ_{n ≥ m} s_n that of all from m on.
The empirical receptive field ERF(p) is how many of the most recent tokens hold more than p: L - max{m | c_m > p} + 1.

# paper: min{m | c_m > .99}, which is always 1; here: the maximum, as its figures mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, unknown
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import check_causal, eval_mode
from fieldlens.receptive.input_gradients import Target, embedding_hook

TIE = 1e-9
"""What exceeds p by less does not exceed it: sums of many shares round."""

SATURATED = 0.9
"""An ERF above this part of the length is not bounded by it."""

SINK = 0.01
"""A first token with less than this is no attention sink."""

LEVELS = (0.5, 0.9, 0.95, 0.99)
Average = Literal["shares", "norms"]
"""Normalise each segment, then average the shares; or average the norms, then normalise."""


@dataclass(frozen=True)
class ReceptiveField:
    """Gradient norms of some segments, (N, T), oldest token first; rows of nan are undefined."""

    norms_NT: np.ndarray
    average: Average = "shares"
    name: str = ""
    train_length: int | None = None
    bos: bool = False
    """Whether a token that is no part of the text, and not counted in its length, stands before it."""
    reason: str = ""
    """Why segments are undefined, if some are."""

    def __post_init__(self) -> None:
        self.norms_NT.setflags(write=False)

    @property
    def defined(self) -> np.ndarray:
        """Which segments have a receptive field."""
        return ~np.isnan(self.norms_NT).any(1)

    @property
    def status(self) -> str:
        """Empty if all is well, else the reason why there is no receptive field."""
        if self.defined.any():
            return ""
        return self.reason or "the gradient is not finite, zero or no more than round-off"

    @property
    def length(self) -> int:
        """Tokens of text, without a BOS."""
        return self.norms_NT.shape[1] - self.bos

    @property
    def first(self) -> int:
        """How many tokens at the very beginning are shown apart: the first, and a BOS before it."""
        return 1 + self.bos

    def segments(self, without_first: bool = False) -> np.ndarray:
        """The shares of each defined segment: (n, T), or without the tokens that are shown apart."""
        norms = self.norms_NT[self.defined][:, self.first if without_first else 0 :]
        totals = norms.sum(1, keepdims=True)
        return np.divide(norms, totals, out=np.zeros_like(norms), where=totals > 0)

    def shares(self, without_first: bool = False) -> np.ndarray:
        """The averaged shares, oldest token first."""
        if self.status:
            raise BadInput(f"{self.name or 'this model'} has no receptive field here: {self.status}")
        if self.average == "norms":
            norms = self.norms_NT[self.defined][:, self.first if without_first else 0 :].mean(0)
            return norms / norms.sum() if norms.sum() > 0 else norms
        return self.segments(without_first).mean(0)

    @property
    def share(self) -> Tensor:
        """The share of each context token, oldest first."""
        return torch.from_numpy(self.shares().copy())

    @property
    def cumulative(self) -> Tensor:
        """c_m: the share of the tokens from m on, oldest first; the first entry is 1."""
        return torch.from_numpy(cumulative(self.shares()))

    def erf(self, level: float = 0.99, without_first: bool = False) -> int:
        """How many of the most recent tokens hold more than this share of the gradient, a BOS not counted."""
        return min(self.length, erf(self.shares(without_first), level))

    def erfs(self, level: float, without_first: bool = False) -> np.ndarray:
        """The same of each segment."""
        return np.array([min(self.length, erf(one, level)) for one in self.segments(without_first)])

    @property
    def first_share(self) -> float:
        """The share of the tokens that are shown apart."""
        return float(self.shares()[: self.first].sum())

    def within(self, tokens: int) -> float:
        """The share of so many most recent tokens."""
        return float(self.shares()[-tokens:].sum()) if tokens > 0 else 0.0

    def saturated(self, without_first: bool = False) -> bool:
        """Whether the ERF is not bounded at this length."""
        return self.erf(0.99, without_first) > SATURATED * self.length

    def bounded(self) -> str:
        """The ERF in words; as a bound where the field does not end within the length."""
        return f"{'> ' if self.saturated() else ''}{self.erf():,}"

    @property
    def has_sink(self) -> bool:
        """Whether the beginning holds so much more than its part that it is probably an attention sink."""
        return self.first_share > max(SINK, 5 * self.first / self.length)

    @property
    def stands_alone(self) -> bool:
        """Whether anything but the beginning matters, so that there are numbers without it."""
        return bool(self.norms_NT[self.defined][:, self.first :].sum() > 0)

    def plot(self) -> Any:
        """A figure of the cumulative share against the number of most recent tokens."""
        from fieldlens.reporting.plots import field_curves

        return field_curves([self.curve()])

    def curve(self, spec: str | None = None) -> Any:
        """The receptive field as a line of a figure."""
        from fieldlens.reporting.plots import Curve

        recent = cumulative(self.shares())[::-1]
        each = np.stack([cumulative(one)[::-1] for one in self.segments()])
        low, high = np.quantile(each, [0.25, 0.75], axis=0)
        return Curve(self.name, spec, recent, low, high, self.train_length)

    def to_json(self) -> dict[str, Any]:
        """The curve and what is read from it."""
        about: dict[str, Any] = {
            "name": self.name,
            "length": self.length,
            "segments": len(self.norms_NT),
            "undefined_segments": int((~self.defined).sum()),
            "undefined_reason": self.reason,
            "average": self.average,
            "train_length": self.train_length,
            "status": self.status or "ok",
        }
        if self.status:
            return about
        return about | {
            "erf": {f"{level:g}": self._read(level, False) for level in LEVELS},
            "erf_without_first": {f"{level:g}": self._read(level, True) for level in LEVELS}
            if self.stands_alone
            else None,
            "first_tokens": self.first,
            "first_share": self.first_share,
            "sink": self.has_sink,
            "saturated": self.saturated(),
            "saturated_without_first": self.saturated(without_first=True) if self.stands_alone else None,
            "share": [float(f"{value:.6g}") for value in self.shares()],
        }

    def _read(self, level: float, without_first: bool) -> dict[str, Any]:
        tokens = self.erf(level, without_first)
        low, middle, high = np.quantile(self.erfs(level, without_first), [0.25, 0.5, 0.75])
        trained = tokens / self.train_length if self.train_length else None
        return {"tokens": tokens, "of_train_length": trained, "median": middle, "quartiles": [low, high]}


def cumulative(shares_T: np.ndarray) -> np.ndarray:
    """c_m, summed from the most recent token on."""
    return np.cumsum(shares_T[::-1])[::-1].copy()


def erf(shares_T: np.ndarray, level: float) -> int:
    """The smallest number of most recent tokens that hold more than a level."""
    if not 0 < level < 1:
        raise BadInput(f"level is {level}: between 0 and 1 is needed")
    return min(len(shares_T), int((np.cumsum(shares_T[::-1]) <= level + TIE).sum()) + 1)


def receptive_field(
    model: Any,
    ids: Tensor | Sequence[int],
    *,
    target: Target = "log-likelihood",
    average: Average = "shares",
    window: int | None = None,
    checkpointing: bool = False,
) -> ReceptiveField:
    """The receptive field of a Decoder, a transformers model, or a module with an embedding.

    `ids` are context tokens followed by the token to predict: one row, or many of the same length to average.
    """
    for given, allowed, kind in ((target, get_args(Target), "target"), (average, get_args(Average), "average")):
        if given not in allowed:
            raise unknown(kind, given, allowed)
    ids_BT = _rows(ids)
    with eval_mode(model):
        one = adapt(model)
        if one.dtype.itemsize < 4:
            raise BadInput(f"{one.name} is in {one.dtype}: gradients need at least float32; call model.float() first")
        one.check_ids(int(ids_BT.min()), int(ids_BT.max()))
        tokens = ids_BT.shape[1] - 1
        if one.limit is not None and tokens > one.limit:
            raise BadInput(f"{tokens} tokens are beyond the {one.limit} positions that {one.name} has")
        check_causal(one)
        one.check_window(window)
        opened = embedding_hook(one, checkpointing)
        norms_BT = torch.cat([opened.norms(row[None], target, window) for row in ids_BT])
    return ReceptiveField(norms_BT.numpy(), average, one.name, one.train_length, reason=opened.reason)


def _rows(ids: Tensor | Sequence[int]) -> Tensor:
    try:
        ids_BT = torch.as_tensor(ids)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadInput(f"ids are whole numbers, one row or many of the same length ({error})") from None
    ids_BT = ids_BT[None] if ids_BT.ndim == 1 else ids_BT
    if ids_BT.ndim != 2 or ids_BT.is_floating_point() or ids_BT.shape[1] < 2 or not len(ids_BT):
        raise BadInput("ids are whole numbers, one row or many: at least one context token and the one to predict")
    return ids_BT
