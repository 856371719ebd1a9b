"""Evidence for claims: comparisons with a bound, and the spread between seeds."""

import numpy as np
import pytest

from fieldlens.evaluation.statistics import Interval
from fieldlens.paper.controls import PrintedResults
from fieldlens.paper.evidence import Comparison, Evidence, Run, agreed, settled
from fieldlens.study.plan import Study, read_study


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


def compared(difference: float, p: float | None, seeds: tuple[float, ...], at_most: bool = True) -> Comparison:
    return Comparison("it", difference, -0.01, at_most, seeds, Interval(0.0, 0.0), p)


@pytest.mark.parametrize(
    ("difference", "p", "seeds", "answer"),
    [
        (-0.02, 0.01, (-0.02, -0.03), True),
        (-0.02, 0.06, (-0.02, -0.03), None),
        (-0.02, None, (-0.02, -0.03), None),
        (-0.02, 0.01, (-0.05, 0.01), None),
        (-0.005, 0.01, (-0.005,), False),
        (0.02, 0.01, (0.02,), False),
    ],
)
def test_a_comparison_needs_significance_and_every_seed(
    difference: float, p: float | None, seeds: tuple[float, ...], answer: bool | None
) -> None:
    assert compared(difference, p, seeds).answer() is answer
    opposite = None if answer is None else not answer
    assert compared(difference, p, seeds, at_most=False).answer() is opposite


def test_one_false_answer_decides_and_none_leaves_it_open() -> None:
    assert settled([True, None, False]) is False
    assert settled([True, None]) is None
    assert settled([True, True]) is True
    assert agreed([True, None]) is None
    assert agreed([False, False]) is False


def test_seeds_are_pooled_by_target_and_shown_one_by_one(study: Study) -> None:
    evidence = Evidence(PrintedResults(study))
    change = evidence.change(Run("sandwich"), "github", 1, 2, bound=0.0, at_most=True)
    assert change.difference == pytest.approx(np.log(2.71 / 2.88), abs=1e-3)
    assert len(change.seeds) == 3
    assert np.mean(change.seeds) == pytest.approx(change.difference)


def test_between_models_the_larger_p_counts(study: Study) -> None:
    """Documents alone make every difference significant: the spread between seeds decides."""
    results = PrintedResults(study)
    evidence = Evidence(results)
    contrast = evidence.contrast(Run("kerple"), Run("sandwich"), "github", [1])
    within = evidence.change(Run("kerple"), "github", 1, 2, bound=0.0, at_most=True)
    assert within.p == pytest.approx(1e-4)
    assert contrast.p is not None
    assert contrast.p > within.p


def test_a_model_with_one_seed_borrows_the_spread_of_others(study: Study) -> None:
    evidence = Evidence(PrintedResults(study))
    p, reason = evidence._seed_p(0.1, [[3.0], [3.1]], "arxiv")  # no corpus but the first has several seeds
    assert (p is not None, reason) == (True, "")
    p_far, _ = evidence._seed_p(1.0, [[3.0], [3.1]], "arxiv")
    assert p_far is not None
    assert p is not None
    assert p_far < p
