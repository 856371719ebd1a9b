"""Equation 3 from a trained run to its claim."""

from dataclasses import replace
from pathlib import Path

import pytest
import short_training as training

from fieldlens.core.device import Machine
from fieldlens.paper.artifacts.equation_3 import Equation3, sinusoidal_job
from fieldlens.paper.claims.equation import equation_3
from fieldlens.paper.equation_3 import read_parts, result_file
from fieldlens.paper.evidence import Evidence, Missing
from fieldlens.paper.results import PaperResults
from fieldlens.study.plan import Job, read_study
from fieldlens.training.recipe import recipe


@pytest.fixture
def results(tmp_path: Path) -> PaperResults:
    return PaperResults(read_study("paper"), tmp_path)


def small_job(results: PaperResults) -> Job:
    job = sinusoidal_job(results)
    assert job is not None
    return replace(job, recipe=recipe("smoke", scheme="sinusoidal"))


def test_a_trained_run_gives_a_result_and_the_claim_an_answer(
    results: PaperResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    job = small_job(results)
    monkeypatch.setattr("fieldlens.paper.artifacts.equation_3.sinusoidal_job", lambda results: job)
    runs = training.short_runs(tmp_path / "runs", ["sinusoidal"])
    (runs / "sinusoidal").rename(runs / job.name)
    with pytest.raises(Missing, match="equation_3 --run"):
        equation_3(Evidence(results), "github")
    Equation3().run(results, runs, 1, Machine())
    content = read_parts(tmp_path, job)
    assert content is not None
    for side, distances in (("inside", job.recipe.length // 2 + 1), ("past", 2 * job.recipe.length + 1)):
        assert sum(content[side]["shares"].values()) == pytest.approx(1)
        assert len(content[side]["curves"]["cross"]) == distances
    finding = equation_3(Evidence(results), "github")
    assert finding.answers[0] == (abs(content["inside"]["shares"]["cross"]) <= 0.1)
    assert len(finding.lines) == 2


def test_an_altered_result_is_left_out(results: PaperResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test_a_trained_run_gives_a_result_and_the_claim_an_answer(results, tmp_path, monkeypatch)
    file = result_file(tmp_path)
    file.write_text(file.read_text().replace('"cross": ', '"cross": 1', 1))
    assert read_parts(tmp_path, small_job(results)) is None


@pytest.mark.parametrize(("cross", "similarity", "holds"), [(-0.1, 0.9, True), (0.11, 0.95, False), (0.0, 0.89, False)])
def test_the_rule(
    cross: float, similarity: float, holds: bool, results: PaperResults, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = {"shares": {"semantic": 1 - cross, "cross": cross}, "similarity": similarity}
    monkeypatch.setattr("fieldlens.paper.claims.equation.parts_of", lambda results: {"inside": side, "past": side})
    assert all(equation_3(Evidence(results), "github").answers) == holds
