"""The controller: changed corpora, plugins and tokenizers, useless workers, and invalid studies."""

import json
import shutil
import sys
from pathlib import Path

import pytest
import small_studies

from fieldlens.cli import main
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput, explain
from fieldlens.schemes import base, discovery
from fieldlens.schemes.spec import source_of
from fieldlens.storage.atomic import FAILPOINT
from fieldlens.study.controller import ATTEMPTS, Controller, MachineFault, write_study
from fieldlens.study.executors import Local, Order, Worker
from fieldlens.study.forecast import Forecast, forecast
from fieldlens.study.job import perform
from fieldlens.study.page import page
from fieldlens.study.plan import Job, read_study
from fieldlens.study.state import job_states
from fieldlens.study.view import overview

CPU = Machine(device="cpu", threads=1)
EVEN = Forecast({"train": 1.0, "evaluate": 1.0, "measure": 1.0})


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished study of one short run, whose corpus was moved afterwards."""
    folder = tmp_path_factory.mktemp("conduct")
    file = small_studies.write_study(folder, ["alibi"], steps=4)
    study, paths = small_studies.opened(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDLENS_CACHE", str(folder / "cache"))
        perform(study.jobs[0], paths, str(folder / "words"), CPU)
    write_study(study, paths)
    (folder / "corpora").mkdir()
    (folder / "words").rename(folder / "corpora" / "words")
    return file


@pytest.fixture
def copy(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it that a test may change."""
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    shutil.copytree(done.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / done.name


class Idle:
    """An executor and worker that returns success without doing anything."""

    queues, room = False, 1

    def __init__(self) -> None:
        self.started = 0

    def start(self, order: Order) -> "Idle":
        self.started += 1
        assert self.started < 9, "the controller never gives up"
        return self

    def code(self) -> int:
        return 0

    def stop(self, now: bool = False) -> None: ...

    def close(self) -> None: ...


def test_a_worker_without_results_is_not_restarted_for_ever(tmp_path: Path) -> None:
    study, paths = small_studies.opened(small_studies.write_study(tmp_path, ["alibi"]))
    idle = Idle()
    controller = Controller(study, paths, lambda: idle, CPU)
    controller.prepare()
    controller.run()
    assert idle.started == ATTEMPTS
    assert list(job_states(study, paths).values()) == ["failed"]
    assert "did the corpus change" in json.loads(paths.failure(study.jobs[0]).read_text())["attempts"][-1]["reason"]


class FullDisk(Local):
    """Starts real workers that find the disk full at their fourth change to it."""

    def start(self, order: Order) -> Worker:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(FAILPOINT, "4:ENOSPC")
            return super().start(order)


def test_a_full_disk_stops_the_command_and_fails_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 4 and one line; the same command goes on when there is space again."""
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("fieldlens.study.controller.ATTEMPTS", 1)
    study, paths = small_studies.opened(small_studies.write_study(tmp_path, ["alibi"], steps=4))
    for name in ("first", "again"):
        controller = Controller(study, paths, lambda: FullDisk(1), CPU)
        controller.prepare()
        with pytest.raises(MachineFault, match=r"1 of 1 runs could not be finished; alibi.*: the disk is full") as stop:
            controller.run()
        assert explain(stop.value) == (str(stop.value), 4), name
    log = paths.log(study.jobs[0]).read_text()
    assert "fieldlens: the disk is full" in log
    assert "Traceback" not in log
    controller = Controller(study, paths, lambda: Local(1), CPU)
    controller.prepare()
    controller.run()
    assert list(job_states(study, paths).values()) == ["done"]


def test_corpora_may_move(copy: Path) -> None:
    """Another evaluation, with the corpus in another folder than during training."""
    study, paths = small_studies.opened(small_studies.write_study(copy.parent, ["alibi"], steps=4, lengths=[16, 48]))
    shutil.rmtree(copy.parent / "words")
    perform(study.jobs[0], paths, str(copy.parent / "corpora" / "words"), CPU)
    assert list(job_states(study, paths).values()) == ["done"]


def test_an_edited_text_shows_before_anything_runs(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def states() -> list[str]:
        paths = ["--out", str(copy.parent / "results"), "--runs", str(copy.parent / "runs")]
        main(["study", str(copy), *paths, "--corpora", str(copy.parent / "corpora"), "--dry-run", "--json"])
        return [row["state"] for row in json.loads(capsys.readouterr().out)["jobs"]]

    assert states() == ["done"]
    (copy.parent / "corpora" / "words" / "000.txt").write_text("another text " * 200)
    assert states() == ["stale"]


def test_time_is_estimated_from_results_with_the_same_settings(copy: Path) -> None:
    """Timings of other evaluations are not used, and a model that is missing is trained again."""
    study, paths = small_studies.opened(copy)
    assert set(forecast(study, paths).rates) == set(EVEN.rates)
    changed, _ = small_studies.opened(small_studies.write_study(copy.parent, ["alibi"], steps=4, lengths=[16, 48]))
    (row,) = overview(changed, paths, EVEN)
    everything = sum(EVEN.seconds(changed.jobs[0]).values())
    assert row["state"] == "stale"
    assert row["seconds_left"] == everything - EVEN.seconds(changed.jobs[0])["train"]
    shutil.rmtree(paths.work(changed.jobs[0]) / "model")
    assert overview(changed, paths, EVEN)[0]["seconds_left"] == everything
    timings = paths.result(study.jobs[0]) / "timings.json"
    timings.write_text('{"train": 1e-9, "evaluate": 1e-9, "measure": 1e-9}')
    small_studies.rewrite_record(timings.parent)
    assert forecast(changed, paths).rates["train"] < forecast(study, paths).rates["train"]


def test_lengths_beyond_the_text_are_refused_before_training(tmp_path: Path) -> None:
    study, paths = small_studies.opened(small_studies.write_study(tmp_path, ["alibi"], lengths=[16, 50_000]))
    with pytest.raises(BadInput, match="50000 is too long for this text"):
        perform(study.jobs[0], paths, str(tmp_path / "words"), CPU)
    assert not (paths.work(study.jobs[0]) / "config.json").exists()


def test_an_unavailable_device_is_reported_once(tmp_path: Path) -> None:
    file = small_studies.write_study(tmp_path, ["alibi"])
    done = small_studies.study(file, "--device", "nowhere")
    assert done.returncode == 2
    assert "device 'nowhere' cannot be used" in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_report_lists_failures_next_to_an_earlier_result(copy: Path) -> None:
    study, paths = small_studies.opened(copy)
    paths.failure(study.jobs[0]).write_text("{}")
    assert f"**Failed**: {study.jobs[0].name}" in page(paths.results)


def test_report_prefers_the_study_over_a_folder_of_its_name(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent)
    (copy.parent / "demo").mkdir()
    with pytest.raises(SystemExit):
        main(["study", "demo", "--report", "--out", "nowhere"])
    assert "nowhere" in capsys.readouterr().err


def test_a_plugin_that_is_edited_is_another_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "mine.py"
    source = "from fieldlens.schemes import Scheme\nclass Mine(Scheme):\n    name = 'mine'\n"
    plugin.write_text(source + "    def bias(self, distances_N):\n        return -distances_N.double()[None]\n")
    kept = dict(base.REGISTERED)

    def identity() -> tuple[dict[str, str], str]:
        return source_of("mine"), read_study(str(small_studies.write_study(tmp_path, ["mine"]))).jobs[0].name

    def imported() -> tuple[dict[str, str], str]:
        monkeypatch.setattr(base, "REGISTERED", dict(kept))
        for name in [name for name, module in sys.modules.items() if getattr(module, "__file__", "") == str(plugin)]:
            monkeypatch.delitem(sys.modules, name)
        discovery._load_file(str(plugin))
        return identity()

    before = imported()
    plugin.write_text(plugin.read_text() + "    # edited\n")
    assert identity() == before  # the imported version is used
    after = imported()
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert source_of("alibi") == {}


def test_a_tokenizer_is_identified_by_its_content(tmp_path: Path) -> None:
    file = small_studies.write_study(tmp_path, ["alibi"])

    def name(folder: str, content: str) -> str:
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "tokenizer.json").write_text(content)
        file.write_text(text.replace("bpe = 300", f"tokenizer = '{tmp_path / folder}'"))
        return job().name

    def job() -> Job:
        return read_study(str(file)).jobs[0]

    text = file.read_text()
    assert name("one", "{}") == name("two", "{}") != name("two", "[]")


def test_a_study_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    file = small_studies.write_study(tmp_path, ["alibi"])
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_study(str(file)).title == "A small study"
