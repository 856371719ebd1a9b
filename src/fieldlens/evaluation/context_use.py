"""Context use: how much the loss falls when the context grows from one length to another."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import bootstrap_difference, differences


@dataclass(frozen=True)
class ContextUse:
    """The difference NLL(long) - NLL(short) over the same targets in nats, with its 95 % interval over documents."""

    short: int
    long: int
    difference: float
    low: float
    high: float

    @property
    def fall(self) -> float:
        """The relative fall of perplexity: 0.15 is 15 % lower."""
        return 1 - math.exp(self.difference)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "fall": self.fall}


def context_use(evaluation: Evaluation, short: int, long: int) -> ContextUse:
    """Compare two context lengths of one evaluation."""
    for length in (short, long):
        if length not in evaluation.losses:
            raise BadInput(f"length {length} was not evaluated; lengths: {', '.join(map(str, evaluation.losses))}")
    differences_N = differences(evaluation.quantities(long), evaluation.quantities(short))
    interval, paired = bootstrap_difference(differences_N, evaluation.units()[0])
    return ContextUse(short, long, paired.difference, interval.low, interval.high)
