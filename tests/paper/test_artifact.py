"""Artifacts: fresh, partial, stale or missing, by their results and existing files."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up_results import MadeUpResults, write_result

from fieldlens.cli import main
from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols.last_token import LastToken
from fieldlens.paper.artifact import cut, find, redraw, state
from fieldlens.paper.results import PaperResults
from fieldlens.storage.sealed import read_sealed, write_sealed
from fieldlens.study.plan import Job, Study, read_study


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper-first")


@pytest.fixture
def rotary(study: Study, tmp_path: Path) -> tuple[Study, Path, Path]:
    """A figure with all its results, drawn."""
    folder, out = tmp_path / "results", tmp_path / "out"
    for job in find("rotary_512").jobs(PaperResults(study, folder)):
        write_result(job, study, folder)
    redraw(find("rotary_512"), PaperResults(study, folder), out)
    return study, folder, out


def state_and_reason(study: Study, folder: Path, out: Path) -> tuple[str, str]:
    summary = state(find("rotary_512"), PaperResults(study, folder), out)
    return summary["state"], summary["why"]


def test_with_all_its_results_an_artifact_is_fresh(rotary: tuple[Study, Path, Path]) -> None:
    assert state_and_reason(*rotary) == ("fresh", "")


def test_without_some_of_its_results_it_is_partial(rotary: tuple[Study, Path, Path]) -> None:
    study, folder, out = rotary
    shutil.rmtree(out)
    shutil.rmtree(next(folder.glob("rotary-latex-1239-*")))
    assert state_and_reason(study, folder, out) == ("partial", "4 of 5 seeds, 4 of 5 runs")


def test_without_any_it_is_missing(rotary: tuple[Study, Path, Path], tmp_path: Path) -> None:
    assert state_and_reason(rotary[0], tmp_path / "none", tmp_path / "nothing") == ("missing", "none of 5 runs")


def test_a_study_without_its_runs_has_nothing_to_draw(study: Study, tmp_path: Path) -> None:
    jobs = tuple(job for job in study.whole if job.recipe.scheme == "sandwich")
    results = PaperResults(dataclasses.replace(study, jobs=jobs, whole=jobs), tmp_path)
    summary = state(find("arxiv_sec3"), results, tmp_path)
    assert (summary["state"], summary["why"]) == ("missing", "study 'paper-first' contains none of its runs")
    with pytest.raises(BadInput, match="arxiv_sec3: study 'paper-first' contains none of its runs"):
        redraw(find("arxiv_sec3"), results, tmp_path)
    assert state(find("heatmap_8"), results, tmp_path)["state"] == "fresh"


def test_the_summary_of_runs_has_the_number_of_seeds(study: Study, tmp_path: Path) -> None:
    def available(job: Job) -> bool:
        return job.recipe.corpus == "latex" and (job.recipe.seed == 1235 or job.name.startswith("sandwich-latex-1236"))

    jobs = [job for job in study.whole if job.recipe.scheme in ("sandwich", "rotary") and job.recipe.corpus == "latex"]
    assert cut(jobs, MadeUpResults(study, available=available)).startswith("1 to 2 of 5 seeds, 3 of ")


def test_controls_need_one_seed_and_lack_none(study: Study) -> None:
    jobs = find("arxiv").jobs(MadeUpResults(study))

    def first_three(job: Job) -> bool:
        return job.recipe.seed <= 1237

    assert cut(jobs, MadeUpResults(study, available=first_three)).startswith("3 of 5 seeds, ")
    assert cut(jobs, MadeUpResults(study)) == "91 of 91 runs"
    shifted = [job for job in jobs if job.recipe.scheme == "alibi"]
    without = MadeUpResults(study, available=lambda job: job not in shifted)
    assert cut(jobs, without).startswith("0 of 5 seeds, ")
    controls = [job for job in study.whole if job.recipe.corpus == "latex"]
    neither = MadeUpResults(study, available=lambda job: job.recipe.scheme not in ("alibi", "none", "t5"))
    assert cut(controls, neither).startswith("0 of 5 seeds, ")


def test_one_damaged_result_leaves_the_other_artifacts_to_be_drawn(
    rotary: tuple[Study, Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder, out = rotary
    losses = next(iter(sorted(folder.glob("rotary-*"))[0].glob("measurement.npz")))
    data = bytearray(losses.read_bytes())
    data[len(data) // 2] ^= 255
    losses.write_bytes(bytes(data))
    main(["paper", "all", "--study", "paper-first", "--results", str(folder), "--out", str(out)])
    assert "window.png" in capsys.readouterr().out
    assert "Left out: 1 of 5 results are stale (other training settings" in (out / "rotary_512.md").read_text()


def test_another_configuration_makes_it_stale(rotary: tuple[Study, Path, Path]) -> None:
    study, folder, out = rotary
    jobs = tuple(
        dataclasses.replace(job, evaluations=({**job.evaluations[0], "segments": 401},)) for job in study.whole
    )
    current, reason = state_and_reason(dataclasses.replace(study, jobs=jobs, whole=jobs), folder, out)
    assert current == "stale"
    assert "5 of 5 results are stale (other training settings, another evaluation request" in reason


def test_another_training_makes_it_stale(rotary: tuple[Study, Path, Path]) -> None:
    study, folder, out = rotary
    longer = tuple(dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, steps=801)) for job in study.whole)
    changed = dataclasses.replace(study, jobs=longer, whole=longer)
    assert state_and_reason(changed, folder, out)[0] == "stale"  # drawn from other results
    shutil.rmtree(out)
    current, reason = state_and_reason(changed, folder, out)
    assert current == "stale"
    assert "5 of 5 results are stale" in reason


@pytest.mark.parametrize("name", ["evaluation-*.npz", "measurement.json", "result.json"])
def test_a_changed_byte_makes_it_stale(rotary: tuple[Study, Path, Path], name: str) -> None:
    study, folder, out = rotary
    shutil.rmtree(out)
    assert state_and_reason(study, folder, out)[0] == "fresh"
    path = min(folder.glob(f"*/{name}"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 if name != "result.json" else 0] ^= 1
    path.write_bytes(data)
    current, reason = state_and_reason(study, folder, out)
    assert current == "stale"
    assert "1 of 5 results" in reason


@pytest.mark.parametrize("name", ["model_configs", "dataset"])
def test_an_artifact_without_runs_is_stale_when_the_study_changes(study: Study, tmp_path: Path, name: str) -> None:
    redraw(find(name), PaperResults(study, tmp_path / "results"), tmp_path / "out")
    longer = tuple(dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, steps=801)) for job in study.whole)
    others = [dataclasses.replace(study, jobs=longer, whole=longer), dataclasses.replace(study, pins={"latex": "new"})]
    states = [
        state(find(name), PaperResults(other, tmp_path / "results"), tmp_path / "out")["state"]
        for other in (study, *others)
    ]
    assert states == ["fresh", "stale", "stale"]


def test_other_printed_numbers_make_a_drawing_stale(
    rotary: tuple[Study, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldlens.paper.artifact.printed_text", lambda: "others")
    assert state_and_reason(*rotary)[0] == "stale"


def test_another_protocol_version_makes_it_stale(
    rotary: tuple[Study, Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LastToken, "version", 2)
    _, folder, out = rotary
    assert state_and_reason(read_study("paper-first"), folder, out)[0] == "stale"


def test_another_text_makes_it_stale(rotary: tuple[Study, Path, Path]) -> None:
    study, folder, out = rotary
    assert state_and_reason(dataclasses.replace(study, pins={"latex": "another"}), folder, out)[0] == "stale"


def test_a_changed_result_makes_the_drawing_stale_until_it_is_drawn_again(rotary: tuple[Study, Path, Path]) -> None:
    study, folder, out = rotary
    job = find("rotary_512").jobs(PaperResults(study, folder))[0]
    write_result(job, study, folder, spread=lambda job, length: np.ones(length))
    assert state_and_reason(*rotary) == ("stale", "drawn from other results or settings than the current ones")
    redraw(find("rotary_512"), PaperResults(study, folder), out)
    assert state_and_reason(*rotary)[0] == "fresh"


def test_files_that_are_no_longer_drawn_are_removed(rotary: tuple[Study, Path, Path]) -> None:
    study, folder, out = rotary
    about = json.loads((out / "rotary_512.json").read_text())
    for name in ("rotary_512-prose.png", "mine.txt"):
        (out / name).write_text("old")
    (out / "rotary_512.json").write_text(json.dumps(about | {"files": [*about["files"], "rotary_512-prose.png"]}))
    redraw(find("rotary_512"), PaperResults(study, folder), out)
    assert not (out / "rotary_512-prose.png").exists()
    assert (out / "mine.txt").exists()
    assert state_and_reason(*rotary)[0] == "fresh"


def test_failed_runs_are_reported_after_the_drawing(
    rotary: tuple[Study, Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    study, folder, out = rotary
    monkeypatch.setattr(sys.modules["fieldlens.cli.paper"], "conduct", lambda *_: None)
    jobs = find("rotary_512").jobs(PaperResults(study, folder))
    shutil.rmtree(folder / jobs[0].name)
    (folder / jobs[0].name).mkdir()
    (folder / jobs[0].name / "failed.json").write_text(json.dumps({"addresses": jobs[0].config_hashes}))
    words = ["paper", "rotary_512", "--run", "--study", "paper-first", "--results", str(folder), "--out", str(out)]
    with pytest.raises(SystemExit) as stop:
        main([*words, "--runs", str(folder.parent / "runs")])
    assert stop.value.code == 2
    output = capsys.readouterr()
    assert "written: " in output.out
    assert f"1 of {len(jobs)} runs failed" in output.err
    main([*words, "--runs", str(folder.parent / "runs"), "--retry"])
    assert not (folder / jobs[0].name / "failed.json").exists()


def test_a_stale_result_is_not_drawn(rotary: tuple[Study, Path, Path], tmp_path: Path) -> None:
    study, folder, _ = rotary
    results = PaperResults(dataclasses.replace(study, pins={"latex": "another"}), folder)
    with pytest.raises(BadInput, match=r"5 of 5 results are stale .* another text"):
        redraw(find("rotary_512"), results, tmp_path)


def test_training_times_are_the_processors_own_on_a_cpu(rotary: tuple[Study, Path, Path]) -> None:
    study, folder, _ = rotary
    assert set(PaperResults(study, folder).seconds("rotary", "arxiv").values()) == {60.0}
    path = next(folder.glob("rotary-latex-1239-*")) / "result.json"
    write_sealed(path, read_sealed(path) | {"machine": {"device": "cpu"}})
    assert PaperResults(study, folder).seconds("rotary", "arxiv")[1239] == 50.0
