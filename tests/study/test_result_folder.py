"""Result folders: an altered file is noticed by every reader, and its result is left out."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_studies

from fieldlens.cli import main
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.evaluation.result import read_evaluation
from fieldlens.paper.results import PaperResults
from fieldlens.receptive.result import read_measurement
from fieldlens.storage.atomic import hash_of
from fieldlens.storage.results import read_arrays, write_arrays, write_result
from fieldlens.storage.sealed import read_sealed, write_sealed
from fieldlens.study import result_folder
from fieldlens.study.controller import write_study
from fieldlens.study.job import perform
from fieldlens.study.page import page
from fieldlens.study.plan import Study
from fieldlens.study.result_folder import RECORD, read_record
from fieldlens.study.results import Result, read_result, read_results, rejected_results
from fieldlens.study.state import StudyPaths, job_states, record_of, state_of

Altered = tuple[Study, StudyPaths, Path]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of two short runs."""
    folder = tmp_path_factory.mktemp("results")
    file = small_studies.write_study(folder, ["sandwich"], seeds=[1, 2], steps=4, lengths=[16, 32])
    study, paths = small_studies.opened(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDLENS_CACHE", str(folder / "cache"))
        for job in study.jobs:
            perform(job, paths, str(folder / "words"), Machine(device="cpu", threads=1))
    write_study(study, paths)
    return file


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Altered:
    """A copy of the study and its results that a test may alter, and the folder of its first result."""
    shutil.copyfile(finished, tmp_path / finished.name)
    shutil.copytree(finished.parent / "results", tmp_path / "results")
    study, paths = small_studies.opened(tmp_path / finished.name)
    return study, paths, paths.result(study.jobs[0])


def lower_losses(folder: Path) -> Path:
    """Lower every loss of the evaluation in a result folder by 1.0; return the file."""
    (path,) = folder.glob("evaluation-*.npz")
    arrays = read_arrays(path)
    write_arrays(path, arrays | {"losses": arrays["losses"] - np.float32(1.0)})
    return path


def assert_left_out(study: Study, paths: StudyPaths, folder: Path) -> None:
    """Every reader rejects the first result and accepts the second."""
    altered, intact = study.jobs
    assert job_states(study, paths) == {altered.name: "stale", intact.name: "done"}
    assert state_of(altered, paths, locks=False) == "stale"
    assert record_of(altered, paths) is None
    with pytest.raises(BadInput):
        read_result(folder)
    assert [result.name for result in read_results(paths.results)[1]] == [intact.name]
    assert list(rejected_results(paths.results)) == [altered.name]
    paper = PaperResults(study, paths.results)
    assert paper.states == {altered.name: "stale", intact.name: "done"}
    assert paper.result(altered) is None
    assert paper.result(intact) is not None


def test_intact_results_are_accepted(copy: Altered) -> None:
    study, paths, _ = copy
    assert set(job_states(study, paths).values()) == {"done"}
    assert rejected_results(paths.results) == {}
    assert set(PaperResults(study, paths.results).states.values()) == {"done"}
    assert "Left out" not in page(paths.results)


def test_lowered_losses_are_left_out_by_every_reader(copy: Altered) -> None:
    path = lower_losses(copy[2])
    assert_left_out(*copy)
    with pytest.raises(BadInput, match=r"\.npz was altered after it was written"):
        read_evaluation(path.with_suffix(".json"))


def test_the_report_command_leaves_out_lowered_losses_with_a_warning(
    copy: Altered, capsys: pytest.CaptureFixture[str]
) -> None:
    study, paths, folder = copy
    altered, intact = study.jobs
    main(["study", str(paths.results), "--report", "--json"])
    output = capsys.readouterr()
    assert (json.loads(output.out)["rejected"], output.err) == ({}, "")
    path = lower_losses(folder)
    reason = f"{path} is missing or was altered after it was written: re-run the study"
    main(["study", str(paths.results), "--report"])
    output = capsys.readouterr()
    assert output.err.splitlines() == [f"warning: {altered.name} is left out: {reason}"]
    assert output.out.splitlines()[-1] == f"report: {paths.results / 'report.html'}"
    html = (paths.results / "report.html").read_text()
    assert f"**Left out**: {altered.name}: {reason}".replace(f"{paths.results}/", "") in html
    assert str(paths.results) not in html
    assert "1 of 2 runs" in html
    main(["study", str(paths.results), "--report", "--json"])
    output = capsys.readouterr()
    assert output.err.startswith(f"warning: {altered.name} is left out: ")
    content = json.loads(output.out)
    assert content["rejected"] == {altered.name: reason}
    assert [row["name"] for row in content["results"]] == [intact.name]


def test_an_evaluation_that_was_sealed_again_is_left_out(copy: Altered) -> None:
    """The record lists the hashes of the files, so that a consistent pair of files is not enough."""
    path = lower_losses(copy[2])
    content = read_sealed(path.with_suffix(".json"))
    write_result(path.with_suffix(".json"), content, read_arrays(path))
    read_evaluation(path.with_suffix(".json"))
    assert_left_out(*copy)


@pytest.mark.parametrize("name", ["timings.json", "measurement.json", "measurement.npz", RECORD])
def test_a_missing_or_truncated_file_is_noticed(name: str, copy: Altered) -> None:
    study, paths, folder = copy
    data = (folder / name).read_bytes()
    (folder / name).write_bytes(data[:-2])
    assert_left_out(study, paths, folder)
    if name != RECORD:
        (folder / name).unlink()
        assert_left_out(study, paths, folder)
    (folder / name).write_bytes(data)
    result_folder._hash_once.cache_clear()
    assert set(job_states(study, paths).values()) == {"done"}


@pytest.mark.parametrize("change", ["no files", "files unlisted", "no seal"])
def test_a_record_without_hashes_is_refused(change: str, copy: Altered) -> None:
    """Also if it is sealed: a record that lists no evaluation would allow any."""
    _, _, folder = copy
    record = read_sealed(folder / RECORD)
    if change == "no seal":
        (folder / RECORD).write_text(json.dumps(record))
    elif change == "no files":
        write_sealed(folder / RECORD, {key: value for key, value in record.items() if key != "files"})
    else:
        write_sealed(folder / RECORD, record | {"files": {}})
    with pytest.raises(BadInput):
        read_result(folder)
    if change != "files unlisted":
        with pytest.raises(BadInput, match="has no seal" if change == "no seal" else "does not list the hashes"):
            read_record(folder)


def evaluation_values(path: Path) -> dict[str, Any]:
    evaluation = read_evaluation(path)
    losses = {length: losses.tolist() for length, losses in evaluation.losses.items()}
    return {"about": evaluation.about, "losses": losses, "targets": evaluation.targets}


def measurement_values(path: Path) -> dict[str, Any]:
    measurement = read_measurement(path)
    return {"about": measurement.about, "norms": measurement.field.norms_NT.tolist(), "json": measurement.to_json()}


def result_values(folder: Path) -> dict[str, Any]:
    result: Result = read_result(folder)
    values = {"about": result.about, "evaluations": [evaluation.to_json() for evaluation in result.evaluations]}
    return values | {"measurement": result.measurement and result.measurement.to_json()}


READERS: dict[str, Callable[[Path], dict[str, Any]]] = {
    RECORD: lambda path: read_record(path.parent),
    "evaluation-*.json": evaluation_values,
    "measurement.json": measurement_values,
}


@pytest.mark.parametrize("pattern", list(READERS))
def test_a_flipped_bit_is_noticed_or_changes_no_value(pattern: str, copy: Altered) -> None:
    """By the reader of the file alone, and by the reader of the whole folder."""
    _, _, folder = copy
    (path,) = folder.glob(pattern)
    data, expected, expected_result = path.read_bytes(), READERS[pattern](path), result_values(folder)
    generator, noticed = random.Random(pattern), 0
    for _ in range(60):
        bit = generator.randrange(8 * len(data))
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        result_folder._hash_once.cache_clear()  # all flips may happen within one tick of the clock
        try:
            assert READERS[pattern](path) == expected, f"bit {bit}"
        except BadInput:
            noticed += 1
        try:
            assert result_values(folder) == expected_result, f"bit {bit}"
        except BadInput:
            pass
        else:
            assert pattern == RECORD, f"bit {bit}: the record lists the hash of this file"
    assert noticed > 50


def test_every_file_of_a_result_is_listed(copy: Altered) -> None:
    _, _, folder = copy
    files = read_record(folder)["files"]
    assert {*files, RECORD} == {path.name for path in folder.iterdir()}
    assert files == {name: hash_of(folder / name) for name in files}
