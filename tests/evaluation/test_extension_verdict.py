"""Outcomes of methods against a crop: decided in order, and seldom wrong where there is no difference."""

import null_simulation
import numpy as np
import pytest

from fieldlens.evaluation.equivalence import Contrast
from fieldlens.evaluation.extension_verdict import judge_methods, outcome, targets_needed
from fieldlens.evaluation.statistics import bootstrap_difference, sign_flip


@pytest.mark.parametrize(
    ("difference", "low", "high", "p", "expected"),
    [
        (-0.004, -0.006, -0.002, 0.001, "crops"),  # significant, but inside the margin
        (-0.05, -0.06, -0.04, 0.001, "uses"),
        (0.05, 0.04, 0.06, 0.001, "breaks"),
        (-0.05, -0.06, -0.04, 0.2, "undecided"),
        (0.0, -0.03, 0.03, 1.0, "undecided"),
        (0.0, 0.0, 0.0, 1.0, "crops"),
        (0.01, float("nan"), float("nan"), None, "undecided"),
    ],
)
def test_outcomes_are_decided_in_order(
    difference: float, low: float, high: float, p: float | None, expected: str
) -> None:
    assert outcome(Contrast(difference, low, high, 100, 0.02), p) == expected


def losses(rng: np.random.Generator, spread: float, shift: float = 0.0) -> np.ndarray:
    """Differences of 90 targets in 30 documents, correlated within documents."""
    return np.repeat(rng.normal(shift, spread, 30), 3) + rng.normal(0, spread, 90)


def test_real_differences_are_found() -> None:
    rng, units_N = np.random.default_rng(0), np.repeat(np.arange(30), 3)
    methods = {
        "better": {64: losses(rng, 0.1, -0.3)},
        "worse": {64: losses(rng, 0.1, 0.3)},
        "equal": {64: losses(rng, 0.005)},
        "unclear": {64: losses(rng, 0.1, 0.01)},
    }
    rows = {row["method"]: row for row in judge_methods(methods, np.zeros(90), units_N)}
    outcomes = {name: row["outcome"] for name, row in rows.items()}
    assert outcomes == {"better": "uses", "worse": "breaks", "equal": "crops", "unclear": "undecided"}
    assert rows["unclear"]["targets_needed"] > 90
    assert rows["better"]["p_holm"] == pytest.approx(4 * rows["better"]["p"], rel=0.3)  # corrected over all rows


@pytest.mark.parametrize("shape", list(null_simulation.SHAPES))
def test_no_difference_is_seldom_reported_as_one(shape: str) -> None:
    """Two methods at two lengths without a difference: `python tests/null_simulation.py` has the larger simulation."""
    counts = list(null_simulation.outcomes(shape, documents=30, methods=2, count=400, resamples=399))
    assert not any(count["crops"] for count in counts)  # the intervals are far wider than the margin
    assert sum(map(null_simulation.wrong, counts)) / 400 <= 0.06


def test_skewed_differences_of_few_documents_are_seldom_reported() -> None:
    """Sign flips alone, which assume symmetry, report one in about 8 % of these data sets."""
    counts = list(null_simulation.outcomes("skewed", documents=15, methods=7, count=300, resamples=399))
    assert sum(map(null_simulation.wrong, counts)) / 300 <= 0.06


def test_both_tests_must_reject() -> None:
    """12 of 15 documents are a little better and one is much worse: only sign flips reject."""
    losses_N = np.concatenate([np.full(12, -0.2) - 0.01 * np.arange(12), [-0.05, 0.05, 0.6]])
    flips, bootstrap = sign_flip(losses_N, np.arange(15)).p, bootstrap_difference(losses_N, np.arange(15))[1].p
    assert flips is not None
    assert bootstrap is not None
    assert flips < 0.05 < bootstrap
    (row,) = judge_methods({"method": {64: losses_N}}, np.zeros(15), np.arange(15))
    assert (row["p"], row["outcome"]) == (bootstrap, "undecided")


def test_few_documents_are_not_a_matter_of_targets() -> None:
    """Four documents cannot give p < 0.05, however many targets they have."""
    losses_N = np.random.default_rng(0).normal(-0.5, 0.1, 400)
    (row,) = judge_methods({"method": {64: losses_N}}, np.zeros(400), np.repeat(np.arange(4), 100))
    assert (row["outcome"], row["targets_needed"]) == ("undecided", None)


def test_more_comparisons_need_more_targets() -> None:
    """An interval that excludes 0 decides alone, but not among 28 comparisons."""
    row = Contrast(0.223, 0.069, 0.377, 960, 0.02)
    assert (targets_needed(row, 1), targets_needed(row, 28)) == (None, 1200)
    close = Contrast(0.0, -0.04, 0.04, 100, 0.02)
    assert targets_needed(close, 28) == targets_needed(close, 1) == close.targets_needed  # the margin decides
