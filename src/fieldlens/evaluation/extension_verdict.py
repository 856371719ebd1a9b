"""What a method makes of the context past the training length, against a crop to the training length.

d is the mean over targets of NLL(method, L) - NLL(crop), with a 95 % bootstrap interval over documents. Its p is the
larger of two two-sided tests over documents, sign flips and the studentised bootstrap, Holm-corrected over all methods
and lengths of a command. Flips are exact for symmetric differences and reject too often for skewed ones; the bootstrap
rejects too often for few documents. Both must reject. In this order:

crops: the interval of d lies inside ± log(1 + margin): the method gives what a crop gives. uses: d < 0 is significant.
breaks: d > 0 is significant. undecided: none of these.
"""

import math
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any

import numpy as np

from fieldlens.evaluation.equivalence import MARGIN, Contrast, contrast
from fieldlens.evaluation.statistics import RESAMPLES, differences, holm, sign_flip

ALPHA = 0.05
OUTCOMES = ("uses", "crops", "breaks", "undecided")


def judge_methods(
    losses: Mapping[str, Mapping[int, np.ndarray]],
    crop_N: np.ndarray,
    units_N: np.ndarray,
    margin: float = MARGIN,
    resamples: int = RESAMPLES,
) -> list[dict[str, Any]]:
    """One row per method and length: the difference to the crop, its interval and test, and the outcome."""
    pairs = [(method, length, values_N) for method, rows in losses.items() for length, values_N in rows.items()]
    contrasts = [contrast(values_N, crop_N, units_N, margin, resamples) for _, _, values_N in pairs]
    flips = [sign_flip(differences(values_N, crop_N), units_N, resamples).p for _, _, values_N in pairs]
    ps = [None if p is None or row.p is None else max(p, row.p) for p, row in zip(flips, contrasts, strict=True)]
    return [
        {
            "method": method,
            "length": length,
            **row.to_json(),
            "p": p,
            "p_holm": corrected,
            "outcome": outcome(row, corrected),
            "targets_needed": targets_needed(row, len(pairs)),
        }
        for (method, length, _), row, p, corrected in zip(pairs, contrasts, ps, holm(ps), strict=True)
    ]


def outcome(row: Contrast, p: float | None) -> str:
    """What one method shows at one length: crops, uses, breaks or undecided."""
    if row.equivalent:
        return "crops"
    if p is not None and p < ALPHA:
        return "breaks" if row.difference > 0 else "uses"
    return "undecided"


def targets_needed(row: Contrast, comparisons: int) -> int | None:
    """About how many targets decide, more than these, if the estimate stays and documents grow alike; None: unknown.

    The interval must lie inside the margin, or exclude 0 at the level that correction leaves, whichever comes first.
    """
    normal = NormalDist()
    widening = normal.inv_cdf(1 - ALPHA / (2 * comparisons)) / normal.inv_cdf(1 - ALPHA / 2)
    size = abs(row.difference)
    needed = row.targets_for(max(math.log1p(row.margin) - size, size / widening))
    return needed if needed is None or needed > row.targets else None  # too few documents for a test
