"""Equivalence by its definition and by simulation: at the edge of the margin "equivalent" is said seldom."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.equivalence import MARGIN, Contrast, check_margin, contrast, percent
from fieldlens.evaluation.statistics import bootstrap_difference

EDGE = math.log1p(MARGIN)
finite = st.floats(-1, 1)


@given(finite, st.floats(0, 1), st.floats(0.001, 0.5))
def test_the_interval_decides_not_the_estimate(difference: float, half: float, margin: float) -> None:
    row = Contrast(difference, difference - half, difference + half, 100, margin)
    limit = math.log1p(margin)
    assert row.equivalent == (row.low >= -limit and row.high <= limit)
    assert row.not_worse == (row.high <= limit)
    assert not (row.worse and row.not_worse)
    assert row.ratio == math.exp(difference)


@pytest.mark.parametrize("bounds", [(math.nan, math.nan), (-math.inf, math.inf)])
def test_no_interval_is_no_equivalence(bounds: tuple[float, float]) -> None:
    row = Contrast(0.0, *bounds, 2)
    assert (row.equivalent, row.not_worse, row.worse, row.targets_needed) == (False, False, False, None)
    assert row.to_json() == {"difference": 0.0, "low": None, "high": None, "ratio": 1.0}


def test_targets_by_hand() -> None:
    assert Contrast(0.0, -2 * EDGE, 2 * EDGE, 100).targets_needed == 400  # half as wide
    assert Contrast(0.307, -0.04, 0.654, 200).targets_needed == math.ceil(200 * (0.347 / 0.307) ** 2 / 10) * 10
    assert Contrast(EDGE / 2, EDGE / 2 - EDGE, EDGE / 2 + EDGE, 100).targets_needed == 400
    assert Contrast(0.0, -EDGE / 2, EDGE / 2, 100).targets_needed == 100  # already decided


def test_targets_to_bound_a_rise_by_hand() -> None:
    assert Contrast(0.0, -2 * EDGE, 2 * EDGE, 100).targets_to_bound == 400
    assert Contrast(-EDGE, -5 * EDGE, 3 * EDGE, 100).targets_to_bound == 400  # there is twice as much room
    assert Contrast(3 * EDGE, -EDGE, 7 * EDGE, 100).targets_to_bound == 400
    assert Contrast(EDGE, -EDGE, 3 * EDGE, 100).targets_to_bound is None


@given(st.floats(-0.5, 0.5), st.floats(0.001, 2), st.integers(1, 10**6))
def test_with_these_targets_the_interval_decides(difference: float, half: float, targets: int) -> None:
    needed = Contrast(difference, difference - half, difference + half, targets).targets_needed
    assert needed is not None
    assert needed >= targets
    narrow = half * math.sqrt(targets / needed) * (1 - 1e-9)
    later = Contrast(difference, difference - narrow, difference + narrow, needed)
    assert later.equivalent or later.low > 0 or later.high < 0


def simulated(rng: np.random.Generator, mean: float, documents: int = 30) -> tuple[np.ndarray, np.ndarray]:
    """Differences of ten targets in each of some documents, with an effect per document."""
    labels_N = np.repeat(np.arange(documents), 10)
    return mean + 0.02 * rng.standard_normal(documents)[labels_N] + 0.05 * rng.laplace(size=len(labels_N)), labels_N


@pytest.mark.parametrize("mean", [EDGE, -EDGE])
def test_a_difference_as_large_as_the_margin_is_seldom_called_equivalent(mean: float) -> None:
    """One side of a 95 % interval errs in 2.5 %: of 400 samples, more than 20 are as rare as 1 in 800."""
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(400):
        differences_N, labels_N = simulated(rng, mean)
        rows.append(contrast(3 + differences_N, np.full(300, 3.0), labels_N, MARGIN, resamples=199))
    assert sum(row.equivalent for row in rows) <= 20
    assert 365 <= sum(row.low <= mean <= row.high for row in rows) <= 395  # and the intervals keep their level


def test_equal_losses_are_called_equivalent_when_the_targets_suffice() -> None:
    rng = np.random.default_rng(1)
    few = [contrast(*_pair(rng, 8), MARGIN, resamples=199) for _ in range(100)]
    many = [contrast(*_pair(rng, 120), MARGIN, resamples=199) for _ in range(100)]
    assert sum(row.equivalent for row in few) < 50 < sum(row.equivalent for row in many)


def _pair(rng: np.random.Generator, documents: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    differences_N, labels_N = simulated(rng, 0.0, documents)
    return 3 + differences_N, np.full(len(labels_N), 3.0), labels_N


def test_the_interval_is_the_bootstrap_over_documents() -> None:
    differences_N, labels_N = simulated(np.random.default_rng(2), 0.1)
    interval, test = bootstrap_difference(differences_N, labels_N)
    row = contrast(differences_N, np.zeros(300), labels_N, 0.05)
    assert (row.low, row.high, row.difference, row.targets) == (*interval, test.difference, 300)


def test_identical_losses_are_equivalent_even_in_one_document() -> None:
    row = contrast(np.ones(5), np.ones(5), np.zeros(5), MARGIN)
    assert (row.low, row.high, row.equivalent) == (0.0, 0.0, True)


@pytest.mark.parametrize("margin", [0, -0.1, 1, 2, math.nan])
def test_a_margin_is_a_fraction(margin: float) -> None:
    with pytest.raises(BadInput, match=r"margin must be between 0 and 1, such as 0\.02 for 2 %, got"):
        check_margin(margin)
    assert (percent(0.02), percent(0.005)) == ("2%", "0.5%")
