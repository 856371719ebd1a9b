"""Evidence for claims: paired gaps, pooled seeds, plateaus."""

import numpy as np
import pytest
from made_up_results import MadeUpResults
from made_up_worlds import as_printed, fields_as_printed

from fieldlens.evaluation.statistics import Interval, Paired
from fieldlens.paper.evidence import Gap, corrected, plateau
from fieldlens.study.plan import Study, read_study


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


@pytest.mark.parametrize(
    ("low", "high", "at_most", "within"),
    [
        (-0.02, 0.04, True, True),
        (0.02, 0.08, None, None),
        (0.06, 0.08, False, False),
        (-0.08, -0.06, True, False),
        (-0.08, 0.0, True, None),
        (float("nan"), float("nan"), None, None),
    ],
)
def test_an_interval_decides_where_all_of_it_lies_on_one_side(
    low: float, high: float, at_most: bool | None, within: bool | None
) -> None:
    gap = Gap(Paired((low + high) / 2, 0.0, None), Interval(low, high), (0.01, 0.02))
    assert (gap.at_most(0.05), gap.within(0.05)) == (at_most, within)


def test_seeds_are_pooled_by_target(study: Study) -> None:
    results = MadeUpResults(study, as_printed, fields_as_printed, lambda job: job.recipe.corpus == "latex")
    pooled = results.pooled("sandwich", "arxiv")
    assert pooled is not None
    losses = [evaluation.losses[128].double() for evaluation in results.evaluations("sandwich", "arxiv").values()]
    assert len(losses) == 5
    assert pooled.losses[128].numpy() == pytest.approx(sum(losses).numpy() / 5)  # type: ignore[union-attr]


def test_a_plateau_begins_where_perplexity_stays() -> None:
    losses = {32: 3.5, 64: 3.1, 128: 3.005, 256: 3.0, 512: 3.0}
    assert plateau({length: np.full(4, value) for length, value in losses.items()}) == 128
    assert plateau({1: np.zeros(2), 2: np.ones(2)}) == 2


def test_the_tests_of_one_claim_are_corrected_for_their_number() -> None:
    gaps = [Gap(Paired(-0.1, 0.0, p), Interval(-0.2, 0.0), (-0.1, -0.1)) for p in (0.03, 0.04, 0.9)]
    assert [gap.certain for gap in gaps] == [True, True, False]
    assert [gap.paired.p for gap in corrected(gaps)] == pytest.approx([0.09, 0.09, 0.9])
    assert not any(gap.certain for gap in corrected(gaps))
