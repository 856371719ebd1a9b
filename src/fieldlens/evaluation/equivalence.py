"""Equivalence: whether a difference in loss is within a margin, and how many targets are needed to decide.

d is a mean difference of losses in nats, and e^d the ratio of two perplexities. Two losses are equivalent within a
margin m if the 95 % interval of d lies inside ± log(1 + m). An estimate that is close to 0 does not suffice.
"""

import math
from dataclasses import dataclass
from typing import TypedDict

from numpy.typing import ArrayLike

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.statistics import RESAMPLES, bootstrap_difference, differences, finite
from fieldlens.training.loss import LARGEST

MARGIN = 0.02
"""Default margin: a change of perplexity by at most 2 % counts as none."""


class ContrastRecord(TypedDict):
    """A difference in nats with its 95 % interval (None: undefined), and the ratio of perplexities."""

    difference: float
    low: float | None
    high: float | None
    ratio: float


@dataclass(frozen=True)
class Contrast:
    """Losses of some targets against reference losses of the same targets, with the 95 % interval of the mean."""

    difference: float
    low: float
    high: float
    targets: int
    margin: float = MARGIN
    p: float | None = None
    """Of the studentised bootstrap test: at most 0.05 if and only if the interval excludes 0. None: undefined."""

    @property
    def ratio(self) -> float:
        """Ratio of the perplexities."""
        return ratio(self.difference)

    @property
    def equivalent(self) -> bool:
        """Whether the interval lies inside the margin. An undefined interval does not."""
        limit = math.log1p(self.margin)
        return -limit <= self.low and self.high <= limit

    @property
    def not_worse(self) -> bool:
        """Whether perplexity is known to rise by less than the margin."""
        return self.high <= math.log1p(self.margin)

    @property
    def worse(self) -> bool:
        """Whether perplexity is known to rise by more than the margin."""
        return self.low > math.log1p(self.margin)

    @property
    def targets_needed(self) -> int | None:
        """About how many targets are needed to decide, if the estimate stays and documents grow alike; None: unknown.

        The interval narrows with the square root of the number of targets. It decides when it lies inside the margin
        or excludes 0, whichever comes first.
        """
        size = abs(self.difference)
        return self.targets_for(max(math.log1p(self.margin) - size, size))

    @property
    def targets_to_bound(self) -> int | None:
        """About how many targets would show that perplexity rises by less, or by more, than the margin."""
        return self.targets_for(abs(math.log1p(self.margin) - self.difference))

    def targets_for(self, half_width: float) -> int | None:
        """About how many targets give an interval of this half width; None if unknown."""
        present = (self.high - self.low) / 2
        if not math.isfinite(present) or not half_width:
            return None
        return _round_up(self.targets * max(1.0, (present / half_width) ** 2))

    def to_json(self) -> ContrastRecord:
        """The difference with its interval, and the ratio of perplexities."""
        low, high = finite(self.low), finite(self.high)
        return {"difference": self.difference, "low": low, "high": high, "ratio": self.ratio}


def contrast(
    losses_N: ArrayLike, reference_N: ArrayLike, units_N: ArrayLike, margin: float, resamples: int = RESAMPLES
) -> Contrast:
    """Compare losses with reference losses of the same targets; targets of one unit are resampled together."""
    differences_N = differences(losses_N, reference_N)
    interval, test = bootstrap_difference(differences_N, units_N, resamples=resamples)
    low, high = interval if differences_N.any() else (0.0, 0.0)  # also if there is only one document
    return Contrast(test.difference, low, high, len(differences_N), margin, test.p)


def check_margin(margin: float) -> None:
    """Raise BadInput unless the margin is a fraction between 0 and 1."""
    if not 0 < margin < 1:
        raise BadInput(f"margin must be between 0 and 1, such as 0.02 for 2 %, got {margin}")


def ratio(difference: float) -> float:
    """The ratio of perplexities that belongs to a difference in nats, cut where it would overflow."""
    return math.exp(min(difference, LARGEST))


def percent(margin: float) -> str:
    """A margin as text: 2%, 0.5%."""
    return f"{100 * margin:g}%"


def _round_up(count: float) -> int:
    """Round up to two significant digits."""
    step = 10 ** max(0, math.floor(math.log10(max(1.0, count))) - 1)
    return math.ceil(count / step - 1e-9) * step
