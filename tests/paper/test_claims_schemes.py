"""Claims about single schemes: slopes, Rotary, Sinusoidal, Sandwich, and their costs."""

from typing import Any

import numpy as np
import pytest
from made_up_results import MadeUpResults
from made_up_worlds import as_printed, fields_as_printed, first_wave, judge, kind_of, spoil, with_a_second_seed

from fieldlens.paper.artifacts import sinusoidal_128_512
from fieldlens.paper.claims import slopes
from fieldlens.receptive.field import ReceptiveField
from fieldlens.study.plan import Job, Study, read_study


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


@pytest.mark.parametrize(
    ("cost", "verdict"),
    [(0.02, "holds"), (0.004, "holds"), (0.0, "does not hold"), (0.2, "does not hold"), (-0.02, "does not hold")],
)
def test_a_cache_must_cost_sandwich_a_little(study: Study, cost: float, verdict: str) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        return 3.0 + cost * (request.get("window") is not None and job.recipe.scheme == "sandwich")

    results = MadeUpResults(study, law, available=first_wave, noise=0.001)
    assert judge(results, "sliding-cache").verdict == verdict


def test_a_rise_that_is_not_certain_decides_nothing(study: Study) -> None:
    """One document of twelve is much worse at long lengths: more than 1 % in the mean, and no evidence."""
    results = MadeUpResults(study, available=first_wave)
    (job,) = [job for job in results.jobs(["alibi"], ["arxiv"]) if first_wave(job)]
    result = results.result(job)
    assert result is not None
    for length in (256, 512, 1024, 2048):
        result.evaluations[0].losses[length][:3] += 1.0
    assert judge(results, "alibi-rises").verdict == "undecided"


def test_a_rise_that_documents_disagree_on_decides_nothing(study: Study) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        return as_printed(job, 128 if kind_of(job)[1].get("same", 0) >= 4 else length, request)

    results = MadeUpResults(study, law, fields_as_printed, first_wave)
    assert judge(results, "large-slopes").verdict == "does not hold"
    spoil(results, ["same:6", "same:8"], 256, 1.0)
    assert judge(results, "large-slopes").verdict == "undecided"


@pytest.mark.parametrize(("gains", "verdict"), [((0.0, -0.002), "does not hold"), ((0.02, -0.03), "undecided")])
def test_a_gain_in_pieces_that_seeds_disagree_on_is_left_open(
    study: Study, gains: tuple[float, float], verdict: str
) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        pieces = request.get("protocol") == "non-overlapping" and length > 128
        return 3.0 - gains[job.recipe.seed != 1235] * pieces

    results = MadeUpResults(study, law, available=with_a_second_seed, noise=0.001)
    assert judge(results, "early-tokens").verdict == verdict


@pytest.mark.parametrize(("flat", "verdict"), [(0.5, "holds"), (0.05, "does not hold")])
def test_slopes_are_judged_by_growth_beyond_that_of_alibi(study: Study, flat: float, verdict: str) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        rise = flat if kind_of(job)[1].get("shift") == 6 else 0.05
        return 3.0 + rise * (length > 128)

    results = MadeUpResults(study, law, available=with_a_second_seed, noise=0.001)
    assert judge(results, "slope-values").verdict == verdict


@pytest.mark.parametrize(("second", "verdict"), [(-379, "holds"), (-300, "does not hold")])
def test_rotary_rings_at_a_wavelength(study: Study, second: int, verdict: str) -> None:
    def spread(job: Job, length: int) -> np.ndarray:
        shares = np.ones(length)
        shares[[-180, second]] += 100
        return shares

    results = MadeUpResults(study, spread=spread, available=first_wave)
    assert judge(results, "rotary-rings").verdict == verdict


@pytest.mark.parametrize(
    ("at_end", "elsewhere", "verdict"),
    [(50, 0, "holds"), (50, 49, "undecided"), (50, 99, "does not hold"), (0, 0, "does not hold")],
)
def test_sinusoidal_must_jump_where_training_ended_and_nowhere_as_much(
    study: Study, at_end: int, elsewhere: int, verdict: str
) -> None:
    def spread(job: Job, length: int) -> np.ndarray:
        back = np.arange(length)[::-1]
        shares = 1.0 + 1e-3 * back
        shares[job.recipe.length] += at_end
        shares[2 * job.recipe.length] += elsewhere
        return shares

    results = MadeUpResults(study, spread=spread, available=first_wave)
    assert judge(results, "sinusoidal-jumps").verdict == verdict


def test_dimensions_that_do_not_differ_decide_nothing(study: Study) -> None:
    claim = judge(MadeUpResults(study, available=first_wave), "dims-128")
    assert claim.verdict == "undecided"
    assert "alike with each of two or more seeds" in claim.wants[0]


@pytest.mark.parametrize(
    ("seeds", "times", "verdict"),
    [
        ((1235, 1236), {1235: 1.1, 1236: 1.2}, "holds"),
        ((1235, 1236), {1235: 0.8, 1236: 0.9}, "does not hold"),
        ((1235, 1236), {1235: 1.1, 1236: 1.0}, "undecided"),
        ((1235, 1236), {1235: 1.04, 1236: 1.04}, "undecided"),
        ((1235,), {1235: 1.1}, "undecided"),
    ],
)
def test_times_decide_where_seeds_agree(
    study: Study, seeds: tuple[int, ...], times: dict[int, float], verdict: str
) -> None:
    def train(job: Job) -> float:
        scale = {"t5": 1.0, "kerple": 0.99}.get(job.recipe.scheme.split(":")[0])
        return 100 * (times[job.recipe.seed] * scale if scale else 1)

    results = MadeUpResults(
        study, available=lambda job: job.recipe.corpus == "latex" and job.recipe.seed in seeds, train=train
    )
    assert judge(results, "learned-costs").verdict == verdict


@pytest.mark.parametrize(("noise", "verdict"), [(1.1, "holds"), (1.3, "undecided"), (1 / 1.3, "undecided")])
def test_times_must_differ_by_more_than_those_of_equal_models(study: Study, noise: float, verdict: str) -> None:
    def train(job: Job) -> float:
        learned = job.recipe.scheme.startswith(("t5", "kerple"))
        unlucky = job.recipe.scheme == "smoothed" and job.recipe.seed == 1236
        return 100 * (1.2 if learned else noise if unlucky else 1)

    seeds = (1235, 1236)
    results = MadeUpResults(
        study, available=lambda job: job.recipe.corpus == "latex" and job.recipe.seed in seeds, train=train
    )
    claim = judge(results, "learned-costs")
    assert claim.verdict == verdict
    assert f"one takes up to × {max(noise, 1 / noise):.2f} as long" in " ".join(claim.evidence)


def test_a_jump_is_found_where_it_is() -> None:
    shares = np.full((1, 400), 1.0)
    shares[0, 99] = 50.0
    position, weight = sinusoidal_128_512.jump(ReceptiveField(shares), 32)
    assert abs(position - 100) <= 1
    assert weight == pytest.approx(51 / (2 + 98 / 367), rel=0.02)


@pytest.mark.parametrize(
    ("breaks", "ordered"),
    [
        ([False, False, None, True, True], True),
        ([None, False, True], None),
        ([False, None, None, True], None),
        ([False, True, None], None),
        ([True, None, False], False),
        ([False, False], False),
        ([False, None], None),
    ],
)
def test_what_is_uncertain_matters_only_where_it_could_be_out_of_order(
    breaks: list[bool | None], ordered: bool | None
) -> None:
    assert slopes.in_order(breaks) is ordered
