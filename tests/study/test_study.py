"""Studies: faults on the way, that nothing is done twice, and what is told from the results."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import studying

from fieldlens.cli import main
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.storage.run_dir import Occupied, locked
from fieldlens.study.controller import Controller, Interrupted, _Attempt, write_study
from fieldlens.study.executors import Local, Order
from fieldlens.study.forecast import STAGES, Forecast, forecast, operations
from fieldlens.study.job import PREPARING, Progress, perform
from fieldlens.study.page import page, prediction, summary
from fieldlens.study.plan import read_study
from fieldlens.study.results import comparisons, read_results
from fieldlens.study.state import StudyPaths, job_states, progress_of, state_of
from fieldlens.study.view import called, headline, overview, table, time_left

CPU = Machine(device="cpu", threads=1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that nobody disturbed, run by the command."""
    folder = tmp_path_factory.mktemp("study")
    file = studying.write_study(folder, ["alibi", "none:window=4"], seeds=[1, 2])
    done = studying.study(file, "--workers", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"report: {folder / 'results' / 'report.html'}"
    assert "4 of 4 runs done" in done.stderr
    return file


def test_each_stage_is_timed_by_the_clock_and_by_its_own_work(whole: Path) -> None:
    for file in (whole.parent / "results").glob("*/timings.json"):
        spent = json.loads(file.read_text())
        assert spent.keys() == {stage + of for stage in (PREPARING, *STAGES) for of in ("", "_cpu")}
        assert 0 < spent["train_cpu"] < spent["train"] + 1  # one thread


def test_an_attempt_whose_own_time_is_not_known_leaves_only_the_clocks(whole: Path, tmp_path: Path) -> None:
    job, places = read_study(str(whole)).jobs[0], StudyPaths(tmp_path / "results", tmp_path / "runs")
    places.work(job).mkdir(parents=True)
    places.timings(job).write_text(json.dumps({"train": 60.0}))
    progress = Progress(places, job)
    for stage in ("train", "evaluate", "evaluate"):
        with progress.at(stage):
            pass
    assert json.loads(places.timings(job).read_text()).keys() == {"train", "evaluate", "evaluate_cpu"}


def test_results_are_enough_for_tables_and_report(whole: Path) -> None:
    study, results = read_results(whole.parent / "results")
    assert study["title"] == "A small study"
    assert [result.recipe["seed"] for result in results] == [1, 1, 2, 2]
    ((key, one),) = comparisons(results).items()
    assert key.title == "words: last-token, up to 64 tokens, 12 targets"
    assert [group.name for group in one.groups] == ["alibi", "none:window=4"]
    assert one.lengths == [16, 32, 64]
    assert one.over_seeds
    window = [result for result in results if result.recipe["scheme"] == "none:window=4"]
    assert all(result.measurement and result.measurement.field.erf(0.99) <= 7 for result in window)  # 2 (4 - 1) + 1
    assert sum(prediction(results).values()) == 4
    assert "none:window=4" in summary(results)[-1].markdown()
    text = page(whole.parent / "results")
    assert text == (whole.parent / "results" / "report.html").read_text()
    assert str(whole.parent) not in text + "".join(
        path.read_text() for path in (whole.parent / "results").rglob("*.json")
    )


def test_a_whole_study_does_nothing_and_changes_no_byte(whole: Path) -> None:
    def everything() -> dict[str, tuple[bytes, int]]:
        files = [
            path for path in whole.parent.rglob("*") if path.is_file() and not {"cache", "faulty.py"} & set(path.parts)
        ]
        return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}

    before = everything()
    assert studying.study(whole).returncode == 0
    assert everything() == before


def test_status_and_dry_run_tell_without_doing(whole: Path, tmp_path: Path) -> None:
    done = studying.study(whole, "--status", "--json")
    rows = json.loads(done.stdout)["jobs"]
    assert {row["state"] for row in rows} == {"done"}
    assert {row["done"] for row in rows} == {1.0}
    fresh = studying.study(whole, "--dry-run", out="elsewhere", runs="elsewhere-runs")
    assert "0 of 4 runs done" in fresh.stdout
    assert not (whole.parent / "elsewhere").exists()


def copied(whole: Path, folder: Path) -> Path:
    """The same study in another folder, to spoil."""
    shutil.copytree(whole.parent, folder, dirs_exist_ok=True)
    return folder / whole.name


def test_another_question_makes_stale_and_trains_nothing(whole: Path, tmp_path: Path) -> None:
    file = copied(whole, tmp_path)
    found, places = studying.opened(studying.write_study(tmp_path, ["alibi"], seeds=[1], lengths=[16, 32, 48]))
    (job,) = found.jobs
    assert job_states(found, places) == {job.name: "stale"}
    metrics = places.work(job) / "metrics.jsonl"
    before, when = metrics.read_bytes(), metrics.stat().st_mtime_ns
    old = {path.name for path in places.result(job).glob("evaluation-*")}
    perform(job, places, str(tmp_path / "words"), CPU)
    assert job_states(found, places) == {job.name: "done"}
    assert (metrics.read_bytes(), metrics.stat().st_mtime_ns) == (before, when)
    assert not old & {path.name for path in places.result(job).glob("evaluation-*")}
    assert file.exists()


def test_another_text_makes_stale_and_trains_again(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(copied(whole, tmp_path))
    job = found.jobs[0]
    pins = {"words": "0" * 64}
    assert state_of(job, places, pins) == "stale"
    (tmp_path / "words" / "000.txt").write_text("another text " * 200)
    before = (places.result(job) / "result.json").read_bytes()
    perform(job, places, str(tmp_path / "words"), CPU)
    assert (places.result(job) / "result.json").read_bytes() != before
    assert state_of(job, places) == "done"


def test_a_result_that_lost_a_file_is_stale(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(copied(whole, tmp_path))
    (places.result(found.jobs[0]) / "measurement.npz").unlink()
    (places.result(found.jobs[1]) / "result.json").unlink()
    shutil.rmtree(places.result(found.jobs[2]))
    shutil.rmtree(places.work(found.jobs[2]))
    assert list(job_states(found, places).values()) == ["stale", "partial", "missing", "done"]
    text = page(places.results)
    assert "**Still to come**: alibi-words-1" in text


def test_what_is_done_is_not_done_again(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(copied(whole, tmp_path))
    job = found.jobs[0]
    before = {path: path.stat().st_mtime_ns for path in places.work(job).rglob("*")}
    with locked(places.lock(job), "held"):
        assert state_of(job, places) == "running"
        with pytest.raises(Occupied):
            perform(job, places, str(tmp_path / "words"), CPU)
    perform(job, places, str(tmp_path / "words"), CPU)
    changed = {path.name for path, when in before.items() if path.stat().st_mtime_ns != when}
    assert changed <= {"job.lock"}


def test_two_controllers_do_nothing_twice(tmp_path: Path) -> None:
    file = studying.write_study(tmp_path, ["alibi", "none:window=4"])
    environment = {**os.environ, **studying.settings(tmp_path)}
    both = [
        subprocess.Popen(studying.command(file, "--workers", "1"), env=environment, stdout=subprocess.DEVNULL)
        for _ in range(2)
    ]
    assert [one.wait() for one in both] == [0, 0]
    logs = [path.read_text().splitlines() for path in (tmp_path / "runs").glob("*/log.txt")]
    assert len(logs) == 2
    for log in logs:
        assert [line for line in log if line in STAGES] == list(STAGES)


def test_what_fails_after_it_was_done_has_failed_until_the_question_is_mended(whole: Path, tmp_path: Path) -> None:
    file = copied(whole, tmp_path)
    studying.write_study(tmp_path, ["alibi"], lengths=[16, 50_000])
    done = studying.study(file)
    assert done.returncode == 2
    assert "1 of 1 runs failed" in done.stderr.splitlines()[-1]
    found, places = studying.opened(file)
    assert list(job_states(found, places).values()) == ["failed"]
    assert "too long for this text" in json.loads(places.failure(found.jobs[0]).read_text())["log"][-1]
    found, _ = studying.opened(studying.write_study(tmp_path, ["alibi"], lengths=[16, 32, 48]))
    assert list(job_states(found, places).values()) == ["stale"]


def test_questions_that_cannot_be_compared_stand_apart(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(copied(whole, tmp_path))
    (file,) = places.result(found.jobs[0]).glob("evaluation-*.json")
    file.write_text(file.read_text().replace('"target_seed": 0', '"target_seed": 1'))
    _, results = read_results(places.results)
    assert [len(one.groups) for one in comparisons(results).values()] == [1, 2]
    assert page(places.results).count("Perplexity on words") == 2


def test_a_seed_that_diverged_stays_with_its_model(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(copied(whole, tmp_path))
    path = places.result(found.jobs[0]) / "result.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "state": "diverged"}))
    _, results = read_results(places.results)
    (one,) = comparisons(results).values()
    assert [group.name for group in one.groups] == ["alibi", "none:window=4"]
    assert one.groups[0].diverged() == [1]


def test_damaged_files_are_noticed_or_do_not_matter(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(copied(whole, tmp_path))
    (arrays,) = places.result(found.jobs[0]).glob("evaluation-*.npz")
    arrays.write_bytes(arrays.read_bytes()[:-9])
    (places.result(found.jobs[1]) / "timings.json").write_text("{")
    assert list(job_states(found, places).values()) == ["stale", "done", "done", "done"]
    assert forecast(found, places).rates["train"] > 0
    (places.results / "study.json").write_text("{}")
    with pytest.raises(BadInput, match="is no results folder of a study"):
        read_results(places.results)


def test_a_changed_corpus_makes_a_whole_study_stale(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(copied(whole, tmp_path))
    controller = Controller(found, places, lambda: Local(1), CPU)
    controller.prepare()
    assert not controller._left()
    (tmp_path / "words" / "000.txt").write_text("another text " * 200)
    controller = Controller(found, places, lambda: Local(1), CPU)
    controller.prepare()
    assert len(controller._left()) == 4


def test_reports_need_the_results_alone(whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(whole.parent / "results", tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "report.html").unlink()
    main(["study", str(tmp_path / "elsewhere"), "--report", "--json"])
    said = json.loads(capsys.readouterr().out)
    assert Path(said["report"]).read_bytes() == (whole.parent / "results" / "report.html").read_bytes()
    assert len(said["results"]) == 4


def test_models_that_differ_in_their_recipes_have_names_that_do() -> None:
    recipes = [{"scheme": "a", "length": 8, "steps": 2, "seed": seed, "corpus": "c"} for seed in (1, 2)]
    assert called(recipes) == ["a", "a"]
    assert called([*recipes, {**recipes[0], "length": 16}]) == ["a (L_tr 8)", "a (L_tr 8)", "a (L_tr 16)"]
    assert called([recipes[0], {**recipes[0], "scheme": "b", "steps": 3}]) == ["a", "b"]


def test_many_runs_are_cut_to_the_room_with_the_running_first(whole: Path) -> None:
    found, places = studying.opened(whole)
    rows = overview(found, places, Forecast({"train": 1.0, "evaluate": 1.0, "measure": 1.0}))
    rows[3]["state"] = "running"
    sheet = table(found, rows, 1, room=2)
    assert [row[0] for row in sheet.rows] == [rows[3]["model"], rows[0]["model"], "and 2 more"]


def test_a_diverged_run_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    file = studying.write_study(tmp_path, ["alibi"])
    file.write_text(file.read_text().replace("bpe = 300", "bpe = 300\nlearning_rate = 1e30\nclip = 1e30"))
    found, places = studying.opened(file)
    (job,) = found.jobs
    perform(job, places, str(tmp_path / "words"), CPU)
    write_study(found, places)
    assert state_of(job, places) == "done"
    (row,) = overview(found, places, Forecast({"train": 1.0, "evaluate": 1.0, "measure": 1.0}))
    assert row["state"] == "diverged"
    assert "diverged" in page(places.results)
    path = places.result(job) / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "addresses": ["odd"]}))
    assert state_of(job, places) == "stale"


def test_faults_change_no_result(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is killed, one hangs, one job always fails: the rest is as if nothing had been."""
    for key, value in studying.settings(tmp_path).items():
        monkeypatch.setenv(key, value)
    found, places = studying.opened(studying.write_study(tmp_path, ["alibi", "hang", "poison"]))
    alibi, hang, poison = found.jobs
    killed = []

    def kill() -> None:
        said = progress_of(alibi, places)
        if said.get("stage") == "train" and not killed:
            killed.append(said["pid"])
            os.kill(said["pid"], signal.SIGKILL)

    controller = Controller(found, places, lambda: Local(2), CPU, time_limit=30, watch=kill)
    controller.prepare()
    controller.run()
    assert killed
    assert (tmp_path / "hung").exists()
    assert list(job_states(found, places).values()) == ["done", "done", "failed"]
    failure = json.loads(places.failure(poison).read_text())
    assert len(failure["attempts"]) == 3
    assert "poisoned" in failure["log"][-1]
    assert not places.attempts(hang).exists()
    assert studying.steps_once(tmp_path / "small.toml")
    ours, theirs = (studying.contents(folder / alibi.name) for folder in (places.results, whole.parent / "results"))
    assert ours == theirs
    assert "**Failed**: poison-words-1" in page(places.results)


class Deaf:
    """A worker that saves for long, and its executor; while it does, Ctrl-C comes again."""

    queues, room = False, 1

    def __init__(self) -> None:
        self.asked: list[bool] = []
        self.saving = 0

    def start(self, order: Order) -> "Deaf":
        return self

    def code(self) -> int | None:
        if self.asked == [False]:
            os.kill(os.getpid(), signal.SIGINT)
            self.saving += 1
        return 0 if self.saving > 5 else -9 if True in self.asked else None

    def stop(self, now: bool = False) -> None:
        self.asked.append(now)

    def close(self) -> None:
        pass


def test_a_second_signal_ends_workers_that_are_still_saving(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(whole, str(tmp_path / "out"), str(tmp_path / "runs"))
    worker = Deaf()
    controller = Controller(found, places, lambda: worker, CPU, watch=lambda: os.kill(os.getpid(), signal.SIGINT))
    controller.prepare()
    with pytest.raises(Interrupted) as stopped:
        controller.run()
    assert stopped.value.exit_code == 130
    assert worker.asked == [False, True]


def test_making_tokens_may_take_as_long_as_it_likes(whole: Path, tmp_path: Path) -> None:
    found, places = studying.opened(whole, str(tmp_path / "out"), str(tmp_path / "runs"))
    (job, *_), attempt = found.jobs, _Attempt(Deaf())
    controller = Controller(found, places, Deaf, CPU, time_limit=0)
    places.progress(job).parent.mkdir(parents=True)
    for stage, ended in (("prepare", False), ("train", True)):
        places.progress(job).write_text(json.dumps({"stage": stage}))
        for _ in range(3):
            controller._hurry(job, attempt, queues=False)
        assert attempt.stopped is ended


def test_time_left_is_shared_among_workers(whole: Path) -> None:
    found, places = studying.opened(whole, "none", "none")
    flat = Forecast({"train": 1e9, "evaluate": 1e9, "measure": 1e9})
    rows = overview(found, places, flat)
    each = sum(operations(found.jobs[0]).values()) / 1e9
    assert time_left(rows, 1) == pytest.approx(4 * each)
    assert time_left(rows, 2) == pytest.approx(2 * each)
    assert time_left(rows, 9) == pytest.approx(each)
    assert "0 of 4 runs done" in headline(found, rows, 1)
    half = {"stage": "evaluate", "done": 0.5, "rate": 0.25}
    assert flat.left(found.jobs[0], half) == pytest.approx(2.0 + operations(found.jobs[0])["measure"] / 1e9)
    assert flat.left(found.jobs[0], {}, trained=True) < flat.left(found.jobs[0], {})
    assert 0 < flat.done(found.jobs[0], half) < 1


def test_a_worker_steps_back_behind_other_sessions() -> None:
    """Niceness alone counts among the processes of one session where Linux shares cores out among sessions."""
    group = Path("/proc/self/autogroup")
    if not group.exists():
        pytest.skip("this system does not share cores out among sessions")
    code = "import os; from fieldlens.study.job import step_back; step_back(7); print(os.nice(0), open('{}').read())"
    found = subprocess.run(
        [sys.executable, "-c", code.format(group)], start_new_session=True, capture_output=True, text=True, check=True
    )
    assert found.stdout.split()[0] == str(os.nice(0) + 7)
    assert found.stdout.split()[-1] == "7"
