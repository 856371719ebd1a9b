"""Studies: what changes under their feet, and what cannot be done."""

import json
import shutil
from pathlib import Path

import pytest
import studying

from fieldlens.cli import main
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.schemes import base, discovery
from fieldlens.schemes.spec import source_of
from fieldlens.study.controller import ATTEMPTS, Controller, write_study
from fieldlens.study.executors import Order
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
    """A study of one short run, done; its text has been moved since."""
    folder = tmp_path_factory.mktemp("conduct")
    file = studying.write_study(folder, ["alibi"], steps=4)
    found, places = studying.opened(file)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDLENS_CACHE", str(folder / "cache"))
        perform(found.jobs[0], places, str(folder / "words"), CPU)
    write_study(found, places)
    (folder / "corpora").mkdir()
    (folder / "words").rename(folder / "corpora" / "words")
    return file


@pytest.fixture
def copy(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The same in another folder, to spoil."""
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    shutil.copytree(done.parent, tmp_path, dirs_exist_ok=True)
    return tmp_path / done.name


class Idle:
    """A worker that says it is done and has done nothing, and its executor."""

    queues, room = False, 1

    def __init__(self) -> None:
        self.started = 0

    def start(self, order: Order) -> "Idle":
        self.started += 1
        assert self.started < 9, "for ever"
        return self

    def code(self) -> int:
        return 0

    def stop(self, now: bool = False) -> None: ...

    def close(self) -> None: ...


def test_work_that_brings_nothing_is_not_given_out_for_ever(tmp_path: Path) -> None:
    found, places = studying.opened(studying.write_study(tmp_path, ["alibi"]))
    idle = Idle()
    controller = Controller(found, places, lambda: idle, CPU)
    controller.prepare()
    controller.run()
    assert idle.started == ATTEMPTS
    assert list(job_states(found, places).values()) == ["failed"]
    assert "did its text change" in json.loads(places.failure(found.jobs[0]).read_text())["attempts"][-1]["reason"]


def test_corpora_may_move(copy: Path) -> None:
    """Another question, and the text elsewhere than when the run was trained."""
    found, places = studying.opened(studying.write_study(copy.parent, ["alibi"], steps=4, lengths=[16, 48]))
    shutil.rmtree(copy.parent / "words")
    perform(found.jobs[0], places, str(copy.parent / "corpora" / "words"), CPU)
    assert list(job_states(found, places).values()) == ["done"]


def test_an_edited_text_shows_before_anything_runs(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def states() -> list[str]:
        places = ["--out", str(copy.parent / "results"), "--runs", str(copy.parent / "runs")]
        main(["study", str(copy), *places, "--corpora", str(copy.parent / "corpora"), "--dry-run", "--json"])
        return [row["state"] for row in json.loads(capsys.readouterr().out)["jobs"]]

    assert states() == ["done"]
    (copy.parent / "corpora" / "words" / "000.txt").write_text("another text " * 200)
    assert states() == ["stale"]


def test_time_is_foreseen_from_what_was_asked_then(copy: Path) -> None:
    """Other questions take another time; and what lies in no folder must be trained."""
    found, places = studying.opened(copy)
    assert set(forecast(found, places).rates) == set(EVEN.rates)
    asked, _ = studying.opened(studying.write_study(copy.parent, ["alibi"], steps=4, lengths=[16, 48]))
    (row,) = overview(asked, places, EVEN)
    everything = sum(EVEN.seconds(asked.jobs[0]).values())
    assert row["state"] == "stale"
    assert row["seconds_left"] == everything - EVEN.seconds(asked.jobs[0])["train"]
    shutil.rmtree(places.work(asked.jobs[0]) / "model")
    assert overview(asked, places, EVEN)[0]["seconds_left"] == everything
    timings = places.result(found.jobs[0]) / "timings.json"
    timings.write_text('{"train": 1e-9, "evaluate": 1e-9, "measure": 1e-9}')
    assert forecast(asked, places).rates["train"] < forecast(found, places).rates["train"]


def test_what_has_no_room_in_the_text_is_refused_before_training(tmp_path: Path) -> None:
    found, places = studying.opened(studying.write_study(tmp_path, ["alibi"], lengths=[16, 50_000]))
    with pytest.raises(BadInput, match="50000 is too long for this text"):
        perform(found.jobs[0], places, str(tmp_path / "words"), CPU)
    assert not (places.work(found.jobs[0]) / "config.json").exists()


def test_a_device_that_is_not_there_is_said_once(tmp_path: Path) -> None:
    file = studying.write_study(tmp_path, ["alibi"])
    done = studying.study(file, "--device", "nowhere")
    assert done.returncode == 2
    assert "device 'nowhere' cannot be used" in done.stderr
    assert not (tmp_path / "results").exists()


def test_a_report_says_what_failed_although_an_earlier_result_is_there(copy: Path) -> None:
    found, places = studying.opened(copy)
    places.failure(found.jobs[0]).write_text("{}")
    assert f"**Failed**: {found.jobs[0].name}" in page(places.results)


def test_reports_go_by_the_study_where_a_folder_has_its_name(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(copy.parent)
    (copy.parent / "demo").mkdir()
    with pytest.raises(SystemExit):
        main(["study", "demo", "--report", "--out", "nowhere"])
    assert "nowhere" in capsys.readouterr().err


def test_a_plugin_that_is_edited_is_another_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "mine.py"
    plugin.write_text("from fieldlens.schemes import Scheme\nclass Mine(Scheme):\n    name = 'mine'\n")
    kept = dict(base.REGISTERED)

    def known() -> tuple[dict[str, str], str]:
        return source_of("mine"), read_study(str(studying.write_study(tmp_path, ["mine"]))).jobs[0].name

    def imported() -> tuple[dict[str, str], str]:
        monkeypatch.setattr(base, "REGISTERED", dict(kept))
        discovery._load_file(str(plugin))
        return known()

    before = imported()
    plugin.write_text(plugin.read_text() + "    # edited\n")
    assert known() == before  # what runs is what was imported
    after = imported()
    assert before[0] != after[0]
    assert before[1] != after[1]
    assert source_of("alibi") == {}


def test_a_tokenizer_counts_by_what_it_is(tmp_path: Path) -> None:
    file = studying.write_study(tmp_path, ["alibi"])

    def name(place: str, content: str) -> str:
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "tokenizer.json").write_text(content)
        file.write_text(text.replace("bpe = 300", f"tokenizer = '{tmp_path / place}'"))
        return job().name

    def job() -> Job:
        return read_study(str(file)).jobs[0]

    text = file.read_text()
    assert name("one", "{}") == name("two", "{}") != name("two", "[]")


def test_a_study_file_may_begin_with_a_mark(tmp_path: Path) -> None:
    file = studying.write_study(tmp_path, ["alibi"])
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes())
    assert read_study(str(file)).title == "A small study"
