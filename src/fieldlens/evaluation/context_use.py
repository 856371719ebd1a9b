"""Context use: how much the loss falls when the context grows from one length to another."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import numpy as np

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.statistics import bootstrap_difference, differences, finite


class Losses(Protocol):
    """Losses of the same targets by context length, as in an Evaluation."""

    @property
    def losses(self) -> Mapping[int, Any]: ...
    @property
    def train_length(self) -> int | None: ...
    def quantities(self, length: int) -> np.ndarray: ...
    def units(self) -> tuple[np.ndarray, str]: ...


@dataclass(frozen=True)
class ContextUse:
    """The difference NLL(long) - NLL(short) over the same targets in nats, with its 95 % interval over documents."""

    short: int
    long: int
    difference: float
    low: float
    high: float
    loss: float = math.nan
    """NLL(short), the mean in nats."""

    @property
    def fall(self) -> float:
        """The relative fall of perplexity: 0.15 is 15 % lower."""
        return 1 - math.exp(self.difference)

    @property
    def loss_fall(self) -> float:
        """The relative fall of the loss: 0.05 is 5 % lower."""
        return 0.0 - self.difference / self.loss if self.loss > 0 else 0.0

    @property
    def shown(self) -> bool:
        """Whether the loss is known to fall: the interval excludes 0."""
        return self.high < 0

    def __str__(self) -> str:
        """The line that accompanies every verdict."""
        change, low, high = (math.expm1(value) + 0.0 for value in (self.difference, self.low, self.high))
        interval = f", 95% interval {low:+.1%} to {high:+.1%}" if math.isfinite(low) and math.isfinite(high) else ""
        known = "uses context" if self.shown else "context use not shown"
        verb = "falls" if self.loss_fall >= 0 else "rises"
        return (
            f"{known}: loss from {self.short:,} to {self.long:,} tokens {verb} by {abs(self.loss_fall):.1%} "
            f"(perplexity {change:+.1%}{interval})"
        )

    def to_json(self) -> dict[str, Any]:
        bounds = {"low": finite(self.low), "high": finite(self.high)}
        shares = {"fall": self.fall, "loss_fall": self.loss_fall}
        return {**asdict(self), **bounds, **shares, "shown": self.shown, "text": str(self)}


def context_use(evaluation: Losses, short: int, long: int) -> ContextUse:
    """Compare two context lengths of one evaluation."""
    for length in (short, long):
        if length not in evaluation.losses:
            raise BadInput(f"length {length} was not evaluated; lengths: {', '.join(map(str, evaluation.losses))}")
    short_N, long_N = evaluation.quantities(short), evaluation.quantities(long)
    interval, paired = bootstrap_difference(differences(long_N, short_N), evaluation.units()[0])
    return ContextUse(short, long, paired.difference, interval.low, interval.high, float(short_N.mean()))


def usual_context_use(evaluation: Losses) -> ContextUse | None:
    """Context use from L/4 to L, where L is the training length, or the longest evaluated length below it.

    If L/4 was not evaluated, the closest shorter length is used instead. None if there is no shorter length.
    """
    trained = [n for n in evaluation.losses if evaluation.train_length is None or n <= evaluation.train_length]
    if not trained:
        return None
    long = max(trained)
    shorter = [length for length in trained if length < long]
    if not shorter:
        return None
    return context_use(evaluation, min(shorter, key=lambda length: abs(math.log(4 * length / long))), long)
