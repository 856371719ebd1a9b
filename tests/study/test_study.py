"""Studies: faults, no repeated work, and tables and reports from the results."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import small_studies

from fieldlens.cli import main
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.storage.run_dir import Occupied, locked
from fieldlens.storage.sealed import read_sealed, write_sealed
from fieldlens.study.controller import Controller, Interrupted, _Attempt, write_study
from fieldlens.study.executors import Local, Order
from fieldlens.study.forecast import STAGES, Forecast, forecast, operations
from fieldlens.study.job import PREPARING, JobProgress, perform
from fieldlens.study.page import page, prediction, summary
from fieldlens.study.plan import read_study
from fieldlens.study.results import comparisons, read_results
from fieldlens.study.state import StudyPaths, job_states, progress_of, state_of
from fieldlens.study.view import called, headline, overview, table, time_left

CPU = Machine(device="cpu", threads=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An undisturbed study, run by the command."""
    folder = tmp_path_factory.mktemp("study")
    file = small_studies.write_study(folder, ["alibi", "none:window=4"], seeds=[1, 2])
    done = small_studies.study(file, "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"report: {folder / 'results' / 'report.html'}"
    assert "4 of 4 runs done" in done.stderr
    return file


def test_each_stage_has_wall_clock_and_cpu_time(whole: Path) -> None:
    for file in (whole.parent / "results").glob("*/timings.json"):
        spent = json.loads(file.read_text())
        assert spent.keys() == {stage + suffix for stage in (PREPARING, *STAGES) for suffix in ("", "_cpu")}
        assert 0 < spent["train_cpu"] < spent["train"] + 1  # one thread


def test_cpu_time_is_left_out_if_an_attempt_did_not_record_it(whole: Path, tmp_path: Path) -> None:
    job, paths = read_study(str(whole)).jobs[0], StudyPaths(tmp_path / "results", tmp_path / "runs")
    paths.work(job).mkdir(parents=True)
    paths.timings(job).write_text(json.dumps({"train": 60.0}))
    progress = JobProgress(paths, job)
    for stage in ("train", "evaluate", "evaluate"):
        with progress.at(stage):
            pass
    assert json.loads(paths.timings(job).read_text()).keys() == {"train", "evaluate", "evaluate_cpu"}


def test_results_are_enough_for_tables_and_report(whole: Path) -> None:
    study, results = read_results(whole.parent / "results")
    assert study["title"] == "A small study"
    assert [result.recipe["seed"] for result in results] == [1, 1, 2, 2]
    ((key, comparison),) = comparisons(results).items()
    assert key.title == "words: last-token, up to 64 tokens, 12 targets"
    assert [group.name for group in comparison.groups] == ["alibi", "none:window=4"]
    assert comparison.lengths == [16, 32, 64]
    assert comparison.over_seeds
    window = [result for result in results if result.recipe["scheme"] == "none:window=4"]
    assert all(result.measurement and result.measurement.field.erf(0.99) <= 7 for result in window)  # 2 (4 - 1) + 1
    assert sum(prediction(results).values()) == 4
    assert "none:window=4" in summary(results)[-1].markdown()
    text = page(whole.parent / "results")
    assert text == (whole.parent / "results" / "report.html").read_text()
    assert str(whole.parent) not in text + "".join(
        path.read_text() for path in (whole.parent / "results").rglob("*.json")
    )


def test_a_finished_study_changes_no_byte(whole: Path) -> None:
    def everything() -> dict[str, tuple[bytes, int]]:
        files = [
            path for path in whole.parent.rglob("*") if path.is_file() and not {"cache", "faulty.py"} & set(path.parts)
        ]
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = everything()
    assert small_studies.study(whole).returncode == 0
    assert everything() == before


def test_status_and_dry_run_start_nothing(whole: Path, tmp_path: Path) -> None:
    done = small_studies.study(whole, "--status", "--json")
    rows = json.loads(done.stdout)["jobs"]
    assert {row["state"] for row in rows} == {"done"}
    assert {row["done"] for row in rows} == {1.0}
    fresh = small_studies.study(whole, "--dry-run", out="elsewhere", runs="elsewhere-runs")
    assert "0 of 4 runs done" in fresh.stdout
    assert not (whole.parent / "elsewhere").exists()


def copied(whole: Path, folder: Path) -> Path:
    """A copy of the study in another folder, which a test may change."""
    shutil.copytree(whole.parent, folder, dirs_exist_ok=True)
    return folder / whole.name


def test_another_evaluation_makes_a_result_stale_and_trains_nothing(whole: Path, tmp_path: Path) -> None:
    file = copied(whole, tmp_path)
    study, paths = small_studies.opened(small_studies.write_study(tmp_path, ["alibi"], seeds=[1], lengths=[16, 32, 48]))
    (job,) = study.jobs
    assert job_states(study, paths) == {job.name: "stale"}
    metrics = paths.work(job) / "metrics.jsonl"
    before, when = metrics.read_bytes(), metrics.stat().st_mtime_ns
    old = {path.name for path in paths.result(job).glob("evaluation-*")}
    perform(job, paths, str(tmp_path / "words"), CPU)
    assert job_states(study, paths) == {job.name: "done"}
    assert (metrics.read_bytes(), metrics.stat().st_mtime_ns) == (before, when)
    assert not old & {path.name for path in paths.result(job).glob("evaluation-*")}
    assert file.exists()


def test_another_text_makes_a_result_stale_and_trains_again(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(copied(whole, tmp_path))
    job = study.jobs[0]
    pins = {"words": "0" * 64}
    assert state_of(job, paths, pins) == "stale"
    (tmp_path / "words" / "000.txt").write_text("another text " * 200)
    before = (paths.result(job) / "result.json").read_bytes()
    perform(job, paths, str(tmp_path / "words"), CPU)
    assert (paths.result(job) / "result.json").read_bytes() != before
    assert state_of(job, paths) == "done"


def test_a_result_that_lost_a_file_is_stale(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(copied(whole, tmp_path))
    (paths.result(study.jobs[0]) / "measurement.npz").unlink()
    (paths.result(study.jobs[1]) / "result.json").unlink()
    shutil.rmtree(paths.result(study.jobs[2]))
    shutil.rmtree(paths.work(study.jobs[2]))
    assert list(job_states(study, paths).values()) == ["stale", "partial", "missing", "done"]
    text = page(paths.results)
    assert f"**Not finished**: {study.jobs[1].name}, {study.jobs[2].name}." in text
    assert f"**Left out**: {study.jobs[0].name}: {study.jobs[0].name}/measurement.npz is missing" in text


def test_a_finished_job_is_not_repeated(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(copied(whole, tmp_path))
    job = study.jobs[0]
    before = {path: path.stat().st_mtime_ns for path in paths.work(job).rglob("*")}
    with locked(paths.lock(job), "held"):
        assert state_of(job, paths) == "running"
        with pytest.raises(Occupied):
            perform(job, paths, str(tmp_path / "words"), CPU)
    perform(job, paths, str(tmp_path / "words"), CPU)
    changed = {path.name for path, when in before.items() if path.stat().st_mtime_ns != when}
    assert changed <= {"job.lock"}


def test_two_controllers_repeat_no_work(tmp_path: Path) -> None:
    file = small_studies.write_study(tmp_path, ["alibi", "none:window=4"])
    environment = {**os.environ, **small_studies.settings(tmp_path)}
    both = [
        subprocess.Popen(small_studies.command(file, "--workers", "1"), env=environment, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [process.wait() for process in both] == [0, 0]
    logs = [path.read_text().splitlines() for path in (tmp_path / "runs").glob("*/log.txt")]
    assert len(logs) == 2
    for log in logs:
        assert [line for line in log if line in STAGES] == list(STAGES)


def test_a_finished_job_that_fails_is_failed_until_its_evaluation_changes(whole: Path, tmp_path: Path) -> None:
    file = copied(whole, tmp_path)
    small_studies.write_study(tmp_path, ["alibi"], lengths=[16, 50_000])
    done = small_studies.study(file)
    assert done.returncode == 2
    assert "1 of 1 runs failed" in done.stderr.splitlines()[-1]
    study, paths = small_studies.opened(file)
    assert list(job_states(study, paths).values()) == ["failed"]
    assert "too long for this text" in json.loads(paths.failure(study.jobs[0]).read_text())["log"][-1]
    study, _ = small_studies.opened(small_studies.write_study(tmp_path, ["alibi"], lengths=[16, 32, 48]))
    assert list(job_states(study, paths).values()) == ["stale"]


def test_evaluations_with_other_targets_are_compared_separately(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(copied(whole, tmp_path))
    folder = paths.result(study.jobs[0])
    (file,) = folder.glob("evaluation-*.json")
    write_sealed(file, read_sealed(file) | {"target_seed": 1})
    small_studies.rewrite_record(folder)
    _, results = read_results(paths.results)
    assert [len(comparison.groups) for comparison in comparisons(results).values()] == [1, 2]
    assert page(paths.results).count("Perplexity on words") == 2


def test_a_seed_that_diverged_stays_with_its_model(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(copied(whole, tmp_path))
    small_studies.rewrite_record(paths.result(study.jobs[0]), state="diverged")
    _, results = read_results(paths.results)
    (comparison,) = comparisons(results).values()
    assert [group.name for group in comparison.groups] == ["alibi", "none:window=4"]
    assert comparison.groups[0].diverged() == [1]


def test_damaged_files_make_a_result_stale(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(copied(whole, tmp_path))
    (arrays,) = paths.result(study.jobs[0]).glob("evaluation-*.npz")
    arrays.write_bytes(arrays.read_bytes()[:-9])
    (paths.result(study.jobs[1]) / "timings.json").write_text("{")
    assert list(job_states(study, paths).values()) == ["stale", "stale", "done", "done"]
    assert forecast(study, paths).rates["train"] > 0
    (paths.results / "study.json").write_text("{}")
    with pytest.raises(BadInput, match=r"is not the results folder of a study: its study\.json is not valid"):
        read_results(paths.results)


def test_a_changed_corpus_makes_a_whole_study_stale(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(copied(whole, tmp_path))
    controller = Controller(study, paths, lambda: Local(1), CPU)
    controller.prepare()
    assert not controller._unfinished()
    (tmp_path / "words" / "000.txt").write_text("another text " * 200)
    controller = Controller(study, paths, lambda: Local(1), CPU)
    controller.prepare()
    assert len(controller._unfinished()) == 4


def test_reports_need_the_results_alone(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(whole.parent / "results", tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "report.html").unlink()
    main(["study", str(tmp_path / "elsewhere"), "--report", "--json"])
    output = json.loads(capsys.readouterr().out)
    assert Path(output["report"]).read_bytes() == (whole.parent / "results" / "report.html").read_bytes()
    assert len(output["results"]) == 4


def test_models_with_different_recipes_have_different_names() -> None:
    recipes = [{"scheme": "a", "length": 8, "steps": 2, "seed": seed, "corpus": "c"} for seed in (1, 2)]
    assert called(recipes) == ["a", "a"]
    assert called([*recipes, {**recipes[0], "length": 16}]) == ["a (L_tr 8)", "a (L_tr 8)", "a (L_tr 16)"]
    assert called([recipes[0], {**recipes[0], "scheme": "b", "steps": 3}]) == ["a", "b"]


def test_a_long_table_is_cut_and_starts_with_running_jobs(whole: Path) -> None:
    study, paths = small_studies.opened(whole)
    rows = overview(study, paths, Forecast({"train": 1.0, "evaluate": 1.0, "measure": 1.0}))
    rows[3]["state"] = "running"
    sheet = table(study, rows, 1, room=2)
    assert [row[0] for row in sheet.rows] == [rows[3]["model"], rows[0]["model"], "and 2 more"]


def test_a_diverged_run_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    file = small_studies.write_study(tmp_path, ["alibi"])
    file.write_text(file.read_text().replace("bpe = 300", "bpe = 300\nlearning_rate = 1e30\nclip = 1e30"))
    study, paths = small_studies.opened(file)
    (job,) = study.jobs
    perform(job, paths, str(tmp_path / "words"), CPU)
    write_study(study, paths)
    assert state_of(job, paths) == "done"
    (row,) = overview(study, paths, Forecast({"train": 1.0, "evaluate": 1.0, "measure": 1.0}))
    assert row["state"] == "diverged"
    assert "diverged" in page(paths.results)
    small_studies.rewrite_record(paths.result(job), addresses=["odd"])
    assert state_of(job, paths) == "stale"


def test_faults_change_no_result(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker is killed, one hangs, one job always fails: the other results are the same as without faults."""
    for key, value in small_studies.settings(tmp_path).items():
        monkeypatch.setenv(key, value)
    study, paths = small_studies.opened(small_studies.write_study(tmp_path, ["alibi", "hang", "poison"]))
    alibi, hang, poison = study.jobs
    killed = []

    def kill() -> None:
        progress = progress_of(alibi, paths)
        if progress.get("stage") == "train" and not killed:
            killed.append(progress["pid"])
            os.kill(progress["pid"], signal.SIGKILL)

    controller = Controller(study, paths, lambda: Local(2), CPU, time_limit=30, refresh=kill)
    controller.prepare()
    controller.run()
    assert killed
    assert (tmp_path / "hung").exists()
    assert list(job_states(study, paths).values()) == ["done", "done", "failed"]
    failure = json.loads(paths.failure(poison).read_text())
    assert len(failure["attempts"]) == 3
    assert "poisoned" in failure["log"][-1]
    assert not paths.attempts(hang).exists()
    assert small_studies.steps_once(tmp_path / "small.toml")
    disturbed, undisturbed = (
        small_studies.contents(folder / alibi.name) for folder in (paths.results, whole.parent / "results")
    )
    assert disturbed == undisturbed
    assert "**Failed**: poison-words-1" in page(paths.results)


class Slow:
    """An executor and worker that takes long to save; meanwhile a second Ctrl-C arrives."""

    queues, room = False, 1

    def __init__(self) -> None:
        self.stops: list[bool] = []
        self.saving = 0

    def start(self, order: Order) -> "Slow":
        return self

    def code(self) -> int | None:
        if self.stops == [False]:
            os.kill(os.getpid(), signal.SIGINT)
            self.saving += 1
        return 0 if self.saving > 5 else -9 if True in self.stops else None

    def stop(self, now: bool = False) -> None:
        self.stops.append(now)

    def close(self) -> None:
        pass


def test_a_second_signal_ends_workers_that_are_still_saving(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(whole, str(tmp_path / "out"), str(tmp_path / "runs"))
    worker = Slow()
    controller = Controller(study, paths, lambda: worker, CPU, refresh=lambda: os.kill(os.getpid(), signal.SIGINT))
    controller.prepare()
    with pytest.raises(Interrupted) as stopped:
        controller.run()
    assert stopped.value.exit_code == 130
    assert worker.stops == [False, True]


def test_tokenizing_has_no_time_limit(whole: Path, tmp_path: Path) -> None:
    study, paths = small_studies.opened(whole, str(tmp_path / "out"), str(tmp_path / "runs"))
    (job, *_), attempt = study.jobs, _Attempt(Slow())
    controller = Controller(study, paths, Slow, CPU, time_limit=0)
    paths.progress(job).parent.mkdir(parents=True)
    for stage, ended in (("prepare", False), ("train", True)):
        paths.progress(job).write_text(json.dumps({"stage": stage}))
        for _ in range(3):
            controller._check_progress(job, attempt, queues=False)
        assert attempt.stopped is ended


def test_time_left_is_shared_among_workers(whole: Path) -> None:
    study, paths = small_studies.opened(whole, "none", "none")
    flat = Forecast({"train": 1e9, "evaluate": 1e9, "measure": 1e9})
    rows = overview(study, paths, flat)
    seconds = sum(operations(study.jobs[0]).values()) / 1e9
    assert time_left(rows, 1) == pytest.approx(4 * seconds)
    assert time_left(rows, 2) == pytest.approx(2 * seconds)
    assert time_left(rows, 9) == pytest.approx(seconds)
    assert "0 of 4 runs done" in headline(study, rows, 1)
    half = {"stage": "evaluate", "done": 0.5, "rate": 0.25}
    assert flat.left(study.jobs[0], half) == pytest.approx(2.0 + operations(study.jobs[0])["measure"] / 1e9)
    assert flat.left(study.jobs[0], {}, trained=True) < flat.left(study.jobs[0], {})
    assert 0 < flat.done(study.jobs[0], half) < 1


def test_a_worker_lowers_its_priority_against_other_sessions() -> None:
    """With autogroups, niceness only applies within a session, so that the worker sets its group's too."""
    group = Path("/proc/self/autogroup")
    if not group.exists():
        pytest.skip("this system has no autogroups")
    code = "import os; from fieldlens.study.job import step_back; step_back(7); print(os.nice(0), open('{}').read())"
    child = subprocess.run(
        [sys.executable, "-c", code.format(group)], start_new_session=True, capture_output=True, text=True, check=True
    )
    assert child.stdout.split()[0] == str(os.nice(0) + 7)
    assert child.stdout.split()[-1] == "7"
