"""The receptive field: how the gradient of a prediction is distributed over the context tokens.

The share of token m is s_m = ‖∂ log p / ∂ e_m‖ / Σ_n ‖∂ log p / ∂ e_n‖; the cumulative share is c_m = Σ_{n ≥ m} s_n.
The empirical receptive field is the smallest number of most recent tokens that account for more than p:
ERF(p) = L - max{m | c_m > p} + 1.

# paper: min{m | c_m > .99}, which is always 1; here: the maximum, as in the paper's figures.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, unknown
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import check_causal, eval_mode
from fieldlens.models.token_ids import own_bos, token_ids
from fieldlens.receptive.gradient_advice import LEVELS, gradient_advice
from fieldlens.receptive.input_gradients import Target, embedding_hook
from fieldlens.storage.results import write_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TIE = 1e-9
"""Tolerance for rounding in sums of shares: c_m must exceed p by more than this."""

SATURATED = 0.9
"""An ERF(99%) above this fraction of the length counts as not bounded."""

SINK = 0.01
"""Minimum share of the first token to count as an attention sink."""

Average = Literal["shares", "norms"]
"""shares: normalise each segment, then average. norms: average the norms, then normalise."""


@dataclass(frozen=True, repr=False)
class ReceptiveField:
    """The receptive field of a model, from the gradient norms of N segments.

    `norms_NT` has the oldest token first; a segment whose gradient is undefined is a row of NaN.
    """

    norms_NT: np.ndarray
    average: Average = "shares"
    name: str = ""
    train_length: int | None = None
    bos: bool = False
    """Whether each segment starts with a BOS token, which is not counted in the length."""
    reason: str = ""
    """Why segments are undefined, if any are."""

    def __post_init__(self) -> None:
        self.norms_NT.setflags(write=False)

    @property
    def defined(self) -> np.ndarray:
        """Which segments have a receptive field."""
        return ~np.isnan(self.norms_NT).any(1)

    @property
    def status(self) -> str:
        """Empty if there is a receptive field, else the reason why there is none."""
        if self.defined.any():
            return ""
        return self.reason or "the gradient is not finite, zero or below rounding error"

    @property
    def length(self) -> int:
        """Number of context tokens, without BOS."""
        return self.norms_NT.shape[1] - self.bos

    @property
    def first(self) -> int:
        """Number of tokens at the start that are reported separately: the first one, and a BOS."""
        return 1 + self.bos

    def segments(self, without_first: bool = False) -> np.ndarray:
        """The shares of each defined segment, (n, T), optionally without the first tokens."""
        norms = self.norms_NT[self.defined][:, self.first if without_first else 0 :]
        totals = norms.sum(1, keepdims=True)
        return np.divide(norms, totals, out=np.zeros_like(norms), where=totals > 0)

    def shares(self, without_first: bool = False) -> np.ndarray:
        """The shares averaged over segments, oldest token first, optionally without the first tokens."""
        if self.status:
            raise BadInput(f"{self.name or 'this model'} has no receptive field: {self.status}")
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
        """c_m, the share of token m and all later tokens, oldest first; the first entry is 1."""
        return torch.from_numpy(cumulative(self.shares()))

    def erf(self, level: float = 0.99, without_first: bool = False) -> int:
        """ERF(level): how many of the most recent tokens hold more than this share; BOS is not counted."""
        return min(self.length, erf(self.shares(without_first), level))

    def erfs(self, level: float, without_first: bool = False) -> np.ndarray:
        """ERF(level) of each defined segment."""
        return np.array([min(self.length, erf(shares_T, level)) for shares_T in self.segments(without_first)])

    @property
    def first_share(self) -> float:
        """The share of the first token, including a BOS."""
        return float(self.shares()[: self.first].sum())

    def within(self, tokens: int) -> float:
        """The share of the given number of most recent tokens."""
        return float(self.shares()[-tokens:].sum()) if tokens > 0 else 0.0

    def by_distance(self) -> list[tuple[int, int, float]]:
        """The share of tokens 1–16, 17–64, 65–256 … before the prediction: first and last distance, share."""
        edges = [0, *(16 * 4**n for n in range(20) if 16 * 4**n < self.length), self.length]
        return [(low + 1, high, self.within(high) - self.within(low)) for low, high in pairwise(edges)]

    def saturated(self, without_first: bool = False) -> bool:
        """Whether ERF(99%) exceeds 0.9 of the length, so that it is not bounded by the context."""
        return self.erf(0.99, without_first) > SATURATED * self.length

    def bounded(self) -> str:
        """ERF(99%) as text, with "> " in front if it is not bounded at this length."""
        return f"{'> ' if self.saturated() else ''}{self.erf():,}"

    @property
    def has_sink(self) -> bool:
        """Whether the first token is an attention sink: above 1% and above five times its even share."""
        return self.first_share > max(SINK, 5 * self.first / self.length)

    @property
    def stands_alone(self) -> bool:
        """Whether the gradient without the first token is nonzero, so that `without_first` is defined."""
        return bool(self.norms_NT[self.defined][:, self.first :].sum() > 0)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the cumulative share against the number of most recent tokens; return the matplotlib Axes.

        Draws on `ax` if given, else on a new figure.
        """
        from fieldlens.reporting.plots import field_curves

        return field_curves([self.curve()], ax)

    def curve(self, spec: str | None = None) -> Any:
        """The data of the plotted line: mean and quartiles over segments."""
        from fieldlens.reporting.plots import Curve

        recent = cumulative(self.shares())[::-1]
        by_segment = np.stack([cumulative(shares_T)[::-1] for shares_T in self.segments()])
        low, high = np.quantile(by_segment, [0.25, 0.75], axis=0)
        return Curve(self.name, spec, recent, low, high, self.train_length)

    def to_frame(self) -> Any:
        """The share and the cumulative share by distance from the prediction, as a pandas DataFrame."""
        from fieldlens.reporting.table import to_frame

        shares = self.shares()[::-1]
        return to_frame(
            [
                {"distance": distance, "share": float(share), "cumulative": float(total)}
                for distance, (share, total) in enumerate(zip(shares, np.cumsum(shares), strict=True), 1)
            ]
        )

    def __repr__(self) -> str:
        if self.status:
            return f"ReceptiveField({self.name or 'model'}: undefined, {self.status})"
        sizes = ", ".join(f"{level:.0%}: {self.erf(level)}" for level in LEVELS)
        return f"ReceptiveField({self.name or 'model'}, {sizes} of {self.length} tokens, {len(self.norms_NT)} segments)"

    def _repr_html_(self) -> str:
        from fieldlens.reporting.table import Table

        if self.status:
            return Table(["model", "receptive field"], [[self.name or "model", f"undefined: {self.status}"]]).html()
        columns = [f"{level:.0%}" for level in LEVELS]
        cells = [self.name or "model", *(f"{self.erf(level):,}" for level in LEVELS), f"{self.first_share:.1%}"]
        title = (
            f"number of most recent tokens (of {self.length:,}) that account for this share of the total gradient norm"
        )
        return Table(["model", *columns, "first token"], [cells], title).html()

    @property
    def advice(self) -> list[str]:
        """Conclusions from the gradient alone, as sentences; `fieldlens measure --check` tests them."""
        return gradient_advice(self)

    def save(self, path: str | Path) -> None:
        """Write a sealed JSON file with shares and advice, and the norms beside it."""
        about = {**self.to_json(), "advice": self.advice, "bos": self.bos}
        write_result(Path(path), about, {"norms": self.norms_NT.astype(np.float32)})

    def to_json(self) -> dict[str, Any]:
        """The shares and the numbers derived from them."""
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
            "erf": self._erf_table(without_first=False),
            "erf_without_first": self._erf_table(without_first=True) if self.stands_alone else None,
            "first_tokens": self.first,
            "first_share": self.first_share,
            "sink": self.has_sink,
            "saturated": self.saturated(),
            "saturated_without_first": self.saturated(without_first=True) if self.stands_alone else None,
            "by_distance": [dict(zip(("from", "to", "share"), row, strict=True)) for row in self.by_distance()],
            "share": [float(f"{value:.6g}") for value in self.shares()],
        }

    def _erf_table(self, without_first: bool) -> dict[str, dict[str, Any]]:
        """ERF of the mean, median and quartiles over segments, by level."""
        table = {}
        for level in LEVELS:
            tokens = self.erf(level, without_first)
            low, middle, high = np.quantile(self.erfs(level, without_first), [0.25, 0.5, 0.75])
            ratio = tokens / self.train_length if self.train_length else None
            row = {"tokens": tokens, "of_train_length": ratio, "median": middle, "quartiles": [low, high]}
            table[f"{level:g}"] = row
        return table


def cumulative(shares_T: np.ndarray) -> np.ndarray:
    """c_m: shares summed from the most recent token backwards."""
    return np.cumsum(shares_T[::-1])[::-1].copy()


def erf(shares_T: np.ndarray, level: float) -> int:
    """The smallest number of most recent tokens whose shares sum to more than `level`."""
    if not 0 < level < 1:
        raise BadInput(f"level must be between 0 and 1, got {level}")
    return min(len(shares_T), int((np.cumsum(shares_T[::-1]) <= level + TIE).sum()) + 1)


def receptive_field(
    model: Any,
    ids: Any,
    *,
    bos: int | None = None,
    target: Target = "log-likelihood",
    average: Average = "shares",
    window: int | None = None,
    checkpointing: bool = False,
) -> ReceptiveField:
    """Compute the receptive field of a model on the given tokens.

    Parameters
    ----------
    model
        What `load_model` returns, a Decoder, a transformers model, or a module with a submodule named `embedding`.
    ids
        Context tokens followed by the token to predict: shape (T + 1,), or (N, T + 1) to average over N segments, as a
        tensor, an array, lists of integers or the output of a transformers tokenizer. For a model from `load_model`
        also text, or the path of a text file: its last token is predicted from the others.
    bos
        Token put before every context and not counted in its length. Default: for text, the one that the model's
        tokenizer adds; for token ids none.
    target
        The scalar to differentiate: log p of the token to predict, or the largest logit.
    average
        Normalise each segment and average the shares, or average the norms and normalise.
    window
        Attention window of every layer; None keeps the model's own windows.
    checkpointing
        Recompute activations in the backward pass to save memory.
    """
    for name, value, allowed in (("target", target, get_args(Target)), ("average", average, get_args(Average))):
        if value not in allowed:
            raise unknown(name, value, allowed)
    with eval_mode(model):
        adapter = adapt(model)
        ids_BT, bos = _rows(token_ids(ids, adapter)), own_bos(ids, adapter) if bos is None else bos
        if adapter.dtype.itemsize < 4:
            message = f"{adapter.name} has dtype {adapter.dtype}: gradients need at least float32"
            raise BadInput(f"{message}; call model.float() first")
        adapter.check_ids(int(ids_BT.min()), int(ids_BT.max()))
        if bos is not None:
            adapter.check_ids(bos, bos)
            ids_BT = torch.cat([torch.full_like(ids_BT[:, :1], bos), ids_BT], 1)
        tokens = ids_BT.shape[1] - 1
        if adapter.limit is not None and tokens > adapter.limit:
            raise BadInput(f"{tokens} tokens exceed the {adapter.limit} positions of {adapter.name}")
        check_causal(adapter)
        adapter.check_window(window)
        hook = embedding_hook(adapter, checkpointing)
        norms_BT = torch.cat([hook.norms(row[None], target, window) for row in ids_BT])
    has_bos = bos is not None
    return ReceptiveField(norms_BT.numpy(), average, adapter.name, adapter.train_length, has_bos, hook.reason)


def _rows(ids: Any) -> Tensor:
    """Token ids as a tensor of shape (N, T + 1)."""
    try:
        ids_BT = torch.as_tensor(ids)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadInput(f"ids must be integers, in one row or several of the same length ({error})") from None
    ids_BT = ids_BT[None] if ids_BT.ndim == 1 else ids_BT
    if ids_BT.is_floating_point():
        raise BadInput(f"ids must be integers, got {ids_BT.dtype}")
    if ids_BT.ndim != 2 or ids_BT.shape[1] < 2 or not len(ids_BT):
        shape = tuple(ids_BT.shape)
        raise BadInput(f"ids must hold at least one context token and the token to predict per row, got shape {shape}")
    return ids_BT
