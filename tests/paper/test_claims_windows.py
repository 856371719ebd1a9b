"""Claims about windows, plateaus and longer training."""

from typing import Any

import numpy as np
import pytest
from made_up_results import MadeUpResults
from made_up_worlds import as_printed, fields_as_printed, first_wave, judge, kind_of, spoil, with_a_second_seed

from fieldlens.study.plan import Job, Study, read_study


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


def test_windows_that_may_have_risen_decide_nothing(study: Study) -> None:
    results = MadeUpResults(study, as_printed, fields_as_printed, first_wave)
    assert judge(results, "erf-predicts").verdict == "holds"
    spoil(results, ["window:80", "window:100"], 256, 1.0)
    for name in ("erf-predicts", "windows-covered"):
        claim = judge(results, name)
        assert claim.verdict == "undecided"
        assert any("uncertain (× 1.09" in line for line in claim.evidence)


def test_windows_that_are_all_covered_say_nothing_of_what_lies_beyond(study: Study) -> None:
    claim = judge(MadeUpResults(study, available=first_wave, noise=0.001), "windows-covered")
    assert claim.verdict == "undecided"
    assert all(", stays (× " in line for line in claim.evidence)


def test_perplexity_that_never_moves_is_constant_before_the_field(study: Study) -> None:
    claim = judge(MadeUpResults(study, available=first_wave, noise=0.001), "plateau-at-erf")
    assert claim.verdict == "does not hold"
    assert all("ERF 74, constant from 32" in line for line in claim.evidence)


def test_a_plateau_that_one_seed_lacks_is_not_placed_by_the_other(study: Study) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        printed = as_printed(job, length, request)
        if kind_of(job)[1].get("window") != 40:
            return printed
        return printed + (0.2 * (length < 1024) if job.recipe.seed == 1235 else -0.05 * np.log2(length))

    late = MadeUpResults(study, law, fields_as_printed, first_wave)
    assert judge(late, "plateau-at-erf").verdict == "does not hold"
    never = MadeUpResults(study, law, fields_as_printed, with_a_second_seed)
    assert judge(never, "plateau-at-erf").verdict == "undecided"


@pytest.mark.parametrize(
    ("moves", "ends", "verdict"),
    [(0.02, True, "does not hold"), (0.02, False, "undecided"), (0.0, True, "holds"), (0.0, False, "holds")],
)
def test_what_still_moves_decides_only_where_its_field_has_an_end(
    study: Study, moves: float, ends: bool, verdict: str
) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        return 3.0 + moves * (length > 1024 and kind_of(job)[1].get("window") == 40)

    def spread(job: Job, length: int) -> np.ndarray:
        return fields_as_printed(job, length) if ends else np.ones(length)

    results = MadeUpResults(study, law, spread, first_wave, noise=0.001)
    assert judge(results, "constant-or-explodes").verdict == verdict


def test_a_repair_must_predict_better_not_only_rise_less(study: Study) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        return as_printed(job, length, request) if job.recipe.length == 128 else 9.0

    results = MadeUpResults(study, law, fields_as_printed, with_a_second_seed)
    assert judge(results, "longer-training-repairs").verdict == "does not hold"
    unknown = MadeUpResults(study, law, lambda job, length: np.ones(length), with_a_second_seed)
    assert judge(unknown, "longer-training-repairs").verdict == "undecided"


@pytest.mark.parametrize("nats", [1e-6, 1e-3])
def test_one_target_that_hardly_moves_leaves_nothing_uncertain(study: Study, nats: float) -> None:
    """A window that reaches hardly beyond both lengths: changed by a rounding error, or a little more."""
    results = MadeUpResults(study, as_printed, fields_as_printed, first_wave)
    before = judge(results, "erf-predicts")
    for evaluation in results.evaluations("window:100", "arxiv").values():
        for length in (256, 512, 1024, 2048):
            evaluation.losses[length] = evaluation.losses[128].clone()
            evaluation.losses[length][3] += nats
    after = judge(results, "erf-predicts")
    assert (before.verdict, after.verdict) == ("holds", "holds")


def test_a_plateau_is_placed_only_where_seeds_agree(study: Study) -> None:
    both = MadeUpResults(study, as_printed, fields_as_printed, with_a_second_seed)
    assert judge(both, "plateau-at-erf").verdict == "holds"

    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        late = 0.2 if job.recipe.seed == 1236 and job.recipe.scheme.startswith("none") and length < 1024 else 0.0
        return as_printed(job, length, request) + late

    apart = MadeUpResults(study, law, fields_as_printed, with_a_second_seed)
    assert judge(apart, "plateau-at-erf").verdict == "undecided"


@pytest.mark.parametrize(("settles", "verdict"), [(256, "does not hold"), (512, "holds"), (1024, "does not hold")])
def test_a_plateau_begins_at_the_first_length_that_holds_the_field(study: Study, settles: int, verdict: str) -> None:
    """The widest window's ERF is 386: a plateau one length earlier or later does not match."""

    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        widest = kind_of(job)[1].get("window") == 80
        return 3.0 + 0.2 * (length < settles) if widest else as_printed(job, length, request)

    results = MadeUpResults(study, law, fields_as_printed, with_a_second_seed)
    assert judge(results, "plateau-at-erf").verdict == verdict
