"""Today's designs: the table has every run, and says of each what coverage predicts and what perplexity does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_results import write_result

from fieldlens.paper.modern import COMPARED, done, modern_table
from fieldlens.study.plan import Job, Study, read_study


@pytest.fixture(scope="module")
def studies() -> tuple[Study, Study]:
    return read_study("modern"), read_study("paper")


def law(job: Job, length: int, request: dict[str, Any]) -> float:
    """Rotary explodes past its training length unless it is extended; everything else stays as it is."""
    explodes = job.recipe.scheme in ("rotary", "fox") and not request.get("method")
    return 3.0 + (1.0 if explodes and length > job.recipe.length else 0.0)


def spread(job: Job, length: int) -> np.ndarray:
    """All schemes but Rotary look at the last 32 tokens."""
    return np.arange(length) >= (0 if job.recipe.scheme == "rotary" else length - 32)


def rows_of(studies: tuple[Study, Study], folder: Path) -> dict[str, list[str]]:
    study, paper = studies
    return {row[0]: row[1:] for row in modern_table(study, folder / "modern", paper, folder / "paper").rows}


def test_without_results_every_run_is_listed_as_missing(studies: tuple[Study, Study], tmp_path: Path) -> None:
    rows = rows_of(studies, tmp_path)
    assert set(COMPARED) < rows.keys()
    assert {job.recipe.scheme for job in studies[0].whole} < rows.keys()
    assert {
        "rotary + yarn:factor=4",
        "rotary + yarn:factor=16",
        "2*rotary:window=16/none + yarn:factor=4",
    } < rows.keys()
    assert {cell for row in rows.values() for cell in row} == {"–"}
    assert done(studies[0], tmp_path / "modern") == []


def test_a_row_says_whether_perplexity_does_what_coverage_predicts(
    studies: tuple[Study, Study], tmp_path: Path
) -> None:
    study, paper = studies
    for job in study.whole:
        if job.recipe.scheme in ("rotary", "fox", "none"):
            write_result(job, study, tmp_path / "modern", law, spread)
    for job in paper.whole:
        if job.recipe.scheme == "rotary" and job.recipe.seed == 1235:
            write_result(job, paper, tmp_path / "paper", law, spread)
    rows = rows_of(studies, tmp_path)
    assert rows["rotary"][1].startswith("× 2.7")
    assert rows["rotary"][4].startswith("explodes from 128")
    assert rows["rotary"][-1] == "predicts nothing"
    assert rows["fox"][-1] == "no"
    assert rows["none"][-2:] == ["100.0%", "yes"]
    assert rows["rotary + yarn:factor=4"][1].startswith(("× 1.0", "× 0.9"))
    assert rows["rotary + yarn:factor=4"][-1] == "–"
    assert len(done(study, tmp_path / "modern")) == 3


def test_it_shares_recipe_targets_and_fields_with_the_paper(studies: tuple[Study, Study]) -> None:
    study, paper = studies
    (ours,) = [job for job in study.whole if job.recipe.scheme == "rotary"]
    (theirs,) = [job for job in paper.whole if job.name == ours.name]
    assert ours.config_hashes["evaluations"][0] == theirs.config_hashes["evaluations"][0]
    assert ours.measurement_hash == theirs.measurement_hash
    assert len(set(ours.config_hashes["evaluations"])) == 3, "a method has a hash of its own"
