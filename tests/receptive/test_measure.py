"""fieldlens measure from the command line, and its advice."""

import dataclasses
import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from families import build
from safetensors.torch import load_file, save_file
from short_training import short_runs

import fieldlens
from fieldlens.cli import main
from fieldlens.core.events import Estimate, Event, Progress, Stage
from fieldlens.data.corpus import open_corpus
from fieldlens.data.text import read_text
from fieldlens.data.tokenizer import Coder
from fieldlens.models.adapters.adapt import adapt
from fieldlens.receptive.input_gradients import EmbeddingHook
from fieldlens.receptive.measure_models import measure_all, theoretical
from fieldlens.receptive.report import page, summary
from fieldlens.receptive.request import MeasureRequest
from fieldlens.receptive.runner import GradientRunner
from fieldlens.storage import atomic

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1> & [bold]x[/bold] \x07"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs, and the corpus they know."""
    return short_runs(tmp_path_factory.mktemp("measure"), ("alibi", "none:window=4"))


@pytest.fixture(autouse=True)
def _here(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(home / "cache"))
    monkeypatch.chdir(tmp_path)


def measure(*words: object) -> None:
    main(["measure", *map(str, words), "--length", "96", "--segments", "3", "--threads", "1"])


def test_two_runs_from_command_to_report(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measure(home / "alibi", home / "none:window=4", "--probe", "--check", "--targets", "30")
    out = capsys.readouterr().out
    assert "none:window=4" in out
    assert "report: lens/report.html" in out
    result = json.loads((tmp_path / "lens" / "receptive-field.json").read_text())
    alibi, window = result["models"]
    assert window["theoretical"] == {"exact": 7, "paper": 8, "windows": [4, 4]}
    assert window["receptive_field"]["erf"]["0.99"]["tokens"] <= 7
    assert window["coverage"] == {"share": pytest.approx(1.0), "predicts": "extrapolates", "reason": ""}
    assert window["check"]["verdict"]["verdict"] == "holds"
    assert [row["window"] for row in window["check"]["windows"]] == [2]  # what it has is not offered
    assert window["check"]["smallest_context"]["cache_bytes"] <= 4 * 2 * 2 * 32 * 4
    assert window["check"]["verdict"]["context_use"]["short"] == 16
    assert "Prediction" not in (tmp_path / "lens" / "report.html").read_text()
    assert [row["layer"] for row in alibi["layers"]] == [1, 2]
    assert alibi["probe"]["cuts"] == [1, 2, 4, 8, 16, 32, 64, 96]
    assert alibi["probe"]["divergence"][-1] == pytest.approx(0, abs=1e-9)
    assert alibi["asked"]["bos"] is None
    assert {"torch", "fieldlens"} <= set(alibi["versions"])
    assert {path.name for path in (tmp_path / "lens").iterdir()} == {
        "report.html", *(f"receptive-field.{ending}" for ending in ("json", "npz", "png", "svg"))
    }  # fmt: skip


def test_a_result_names_its_targets_so_that_anybody_can_check_it(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure(home / "alibi", "--plain", "--check", "--targets", "12", "--json")
    (result,) = json.loads(capsys.readouterr().out)
    text = read_text(str(home / "corpus"), "test", home / "alibi" / "model", progress=False)
    model = fieldlens.load_model(home / "alibi" / "model")
    contexts = [
        text.documents[document][offset - 96 : offset + 1] for document, offset in result["targets"]["segments"]
    ]
    field = fieldlens.receptive_field(model, torch.from_numpy(np.stack(contexts).astype(np.int64)))
    saved = np.load(tmp_path / "lens" / "receptive-field.npz")["norms_0"]
    assert field.norms_NT == pytest.approx(saved, rel=1e-4)
    assert len(result["targets"]["check"]) == 12


def test_half_precision_is_refused_in_words(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldlens.core.device.bfloat16_runs", lambda: True)
    measure(home / "alibi", "--plain", "--dtype", "bfloat16")
    captured = capsys.readouterr()
    warning = " ".join(captured.err.split())
    assert "warning: --dtype bfloat16 is not used: gradients in half precision are mostly round-off" in warning


def test_a_transformers_folder_and_a_text_file(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build("mistral", vocab_size=512).save_pretrained(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "alibi" / "model" / name, tmp_path / "m" / name)
    (tmp_path / "text.txt").write_text((HOSTILE + " abc def gh") * 60)
    measure(tmp_path / "m", "--text", tmp_path / "text.txt", "--json")
    (result,) = json.loads(capsys.readouterr().out)
    assert result["theoretical"]["exact"] == 3 * 5 + 1
    assert result["data"]["corpus"] == "text.txt"
    html = (tmp_path / "lens" / "report.html").read_text()
    assert "<script>window.hacked" not in html
    assert "<img" not in html


def test_a_short_text_is_checked_at_a_length_it_has_room_for(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = "abc def gh " * 60
    (tmp_path / "text.txt").write_text(text)
    ((ids, _),) = Coder(home / "alibi" / "model").encode([text])
    words = ["measure", str(home / "alibi"), "--text", str(tmp_path / "text.txt"), "--check", "--targets", "60"]
    main([*words, "--out", str(tmp_path / "out"), "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    assert result["check"] is not None
    assert result["asked"]["length"] <= len(ids) - 60
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--out", str(tmp_path / "out"), "--length", str(len(ids) - 20)])
    assert "use fewer --targets" in capsys.readouterr().err


def test_no_theoretical_field_if_gradients_reach_farther() -> None:
    adapter, norms_NT = adapt(build("mistral")), np.zeros((2, 40))
    norms_NT[:, -16:] = 1.0
    reach = theoretical(adapter, None, norms_NT)
    assert reach is not None
    assert reach["exact"] == 16
    norms_NT[1, -17] = 1e-9
    assert theoretical(adapter, None, norms_NT) is None
    short_NT = np.ones((2, 12))  # too short for a gradient to tell
    assert theoretical(adapter, None, short_NT) is not None
    adapter.__dict__["_takes_bands"] = False  # as of a recurrent model
    assert theoretical(adapter, None, short_NT) is None


def test_models_side_by_side_are_measured_on_one_text(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build("llama", vocab_size=512).save_pretrained(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "alibi" / "model" / name, tmp_path / "m" / name)
    measure(home / "alibi", tmp_path / "m", "--plain", "--json")
    assert {result["data"]["text"] for result in json.loads(capsys.readouterr().out)} == {
        open_corpus(str(home / "corpus")).fingerprint()
    }


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--length", "1"], "length must be at least 2, got 1"),
        (["--length", "99999"], "length 99999 is too long for this text: its longest document has"),
        (["--segments", "0"], "segments must be at least 1, got 0"),
        (["--check", "--windows", "8,x"], "--windows must be integers separated by commas, got '8,x'"),
        (["--segments", "9999999"], "the number of eligible tokens in this text, got 9999999"),
        (["--window", "0"], "window"),
        (["--text", "nothing.txt"], "nothing.txt is not a file"),
        (["--text", "a.txt", "--corpus", "stdlib"], "give either --text or --corpus"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["measure", str(home / "alibi"), *words])
    error = capsys.readouterr().err
    assert message in error
    assert [line for line in error.splitlines() if not line.endswith("…")] == [error.splitlines()[-1]]
    assert not (tmp_path / "lens").exists()


def test_no_model_and_an_empty_text_are_mistakes(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["measure"])
    assert "no model" in capsys.readouterr().err
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(SystemExit, match="2"):
        measure(home / "alibi", "--text", tmp_path / "empty.txt")
    assert "empty.txt is empty" in capsys.readouterr().err
    (tmp_path / "one.txt").write_text("a")
    with pytest.raises(SystemExit, match="2"):
        main(["measure", str(home / "alibi"), "--text", str(tmp_path / "one.txt")])
    assert "the longest document of this text has 1 tokens: at least 3 are needed" in capsys.readouterr().err


@pytest.mark.parametrize("family", ["gpt2", "ctrl"])
def test_a_table_of_positions_bounds_the_length(
    family: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build(family, vocab_size=512).save_pretrained(tmp_path / "g")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "alibi" / "model" / name, tmp_path / "g" / name)
    with pytest.raises(SystemExit, match="2"):
        measure(tmp_path / "g", "--corpus", home / "corpus")
    assert "length 96 exceeds the 64 positions" in capsys.readouterr().err
    main(["measure", str(tmp_path / "g"), "--corpus", str(home / "corpus"), "--segments", "2", "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    assert result["asked"]["length"] == 64
    assert result["coverage"]["reason"].startswith("measured at 64 tokens, not beyond")


def test_a_short_text_is_measured_at_a_shorter_length(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("abc def gha bcd efg h " * 30)
    main(["measure", str(home / "alibi"), "--text", "short.txt", "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    assert 20 < result["asked"]["length"] < 600


def test_the_check_keeps_the_window_and_models_keep_their_names(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home / "alibi", tmp_path / "twin")
    measure(home / "alibi", tmp_path / "twin", "--window", "8", "--check", "--targets", "20", "--plain", "--json")
    first, second = json.loads(capsys.readouterr().out)
    assert [first["model"]["name"], second["model"]["name"]] == ["alibi (alibi)", "alibi (twin)"]
    assert first["theoretical"]["exact"] == 2 * 7 + 1
    assert [row["window"] for row in first["check"]["windows"]] == [2, 4]
    assert first["check"]["verdict"]["evidence"][0]["difference"] == 0
    assert first["layers"] == []


def test_a_bad_second_model_and_a_file_for_a_folder_are_found_first(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ([home / "alibi", "nothing"], [home / "alibi", "--out", tmp_path / "file"]):
        (tmp_path / "file").write_text("")
        with pytest.raises(SystemExit, match="2"):
            measure(*words)
        assert not (tmp_path / "lens").exists()


@pytest.mark.parametrize(("weight", "message"), [(0.0, "does not depend"), (3e38, "not finite")])
def test_a_dead_model_is_a_status_and_exit_3(
    weight: float, message: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = build("llama", vocab_size=512)
    with torch.no_grad():
        model.lm_head.weight.fill_(weight)
    model.save_pretrained(tmp_path / "dead")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "alibi" / "model" / name, tmp_path / "dead" / name)
    with pytest.raises(SystemExit, match="3"):
        measure(tmp_path / "dead", "--corpus", home / "corpus", "--probe")
    assert "undefined" in capsys.readouterr().out
    result = json.loads((tmp_path / "lens" / "receptive-field.json").read_text())["models"][0]
    assert message in result["receptive_field"]["status"]


def test_an_estimate_comes_before_the_first_gradient(home: Path) -> None:
    events: list[Event] = []
    request = MeasureRequest(corpus=str(home / "corpus"), length=64, segments=2, plain=True)
    measure_all([str(home / "alibi")], request, device=torch.device("cpu"), dtype=torch.float32, watch=events.append)
    *stages, estimate = events[:4]
    assert stages == [Stage("", "reading the text"), Stage("alibi", "loading"), Stage("alibi")]
    assert isinstance(estimate, Estimate)
    assert 0 < estimate.seconds < 60
    assert estimate.memory > 0


def test_the_check_is_in_the_first_estimate_and_makes_none_of_its_own(home: Path) -> None:
    events: list[Event] = []
    request = MeasureRequest(corpus=str(home / "corpus"), length=64, segments=2, plain=True, check=True, targets=3)
    measure_all([str(home / "alibi")], request, device=torch.device("cpu"), dtype=torch.float32, watch=events.append)
    assert sum(isinstance(event, Estimate) for event in events) == 1
    assert any(isinstance(event, Progress) and event.part.startswith("2/2 check, context") for event in events)


def test_a_page_escapes_what_it_shows(home: Path) -> None:
    measurements = measure_all(
        [str(home / "alibi")],
        MeasureRequest(corpus=str(home / "corpus"), length=64, segments=2),
        device=torch.device("cpu"),
        dtype=torch.float32,
    )
    measurements[0].about["model"]["name"] = HOSTILE
    html = page(measurements, HOSTILE)
    assert "<script>window.hacked" not in html
    assert "<img" not in html
    assert HOSTILE in summary(measurements).rows[0][0]
    about = measurements[0].about
    twins = [
        dataclasses.replace(measurements[0], about={**about, "model": {**about["model"], "name": name}})
        for name in ("a", "b")
    ]
    assert "<title>How far back a looks</title>" in page(twins[:1], "")
    assert "<title>How far back a and b look</title>" in page(twins, "")


def test_a_model_that_cannot_take_the_length_is_one_line(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build("mpt", vocab_size=512).save_pretrained(tmp_path / "mpt")  # its bias ends at 64 positions
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "alibi" / "model" / name, tmp_path / "mpt" / name)
    with pytest.raises(SystemExit, match="2"):
        measure(tmp_path / "mpt", "--corpus", home / "corpus")
    error = capsys.readouterr().err
    assert "mpt cannot take 96 tokens" in error
    assert error.endswith(": give a smaller --length\n")


def test_cache_bytes_are_in_the_dtype_of_the_configuration(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build("gemma3_text", vocab_size=512).bfloat16().save_pretrained(tmp_path / "half")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "alibi" / "model" / name, tmp_path / "half" / name)
    measure(tmp_path / "half", "--corpus", home / "corpus", "--check", "--targets", "10", "--plain", "--json")
    (result,) = json.loads(capsys.readouterr().out)
    checked, key = result["check"], 2 * 2 * 8 * 2  # keys and values, heads, width, bytes
    assert (result["model"]["dtype"], checked["cache_dtype"]) == ("float32", "bfloat16")
    for candidate in (candidate for candidate in checked["candidates"] if candidate["kind"] == "window"):
        kept = 5 * min(6, candidate["tokens"]) + candidate["tokens"]
        assert candidate["cache_bytes"] == kept * key


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The segments that are computed, one at a time and without a trial run."""
    counts: list[int] = []
    norms = EmbeddingHook.norms

    def counted(self: EmbeddingHook, ids_BT: torch.Tensor, *options: Any) -> torch.Tensor:
        counts.append(len(ids_BT))
        return norms(self, ids_BT, *options)

    monkeypatch.setattr(EmbeddingHook, "norms", counted)
    monkeypatch.setattr(GradientRunner, "_estimate", lambda self: None)
    monkeypatch.setattr("fieldlens.receptive.runner.SEGMENTS_AT_ONCE", 1)
    return counts


def test_a_measurement_that_fails_at_any_change_to_the_disk_goes_on_where_it_was(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    request = MeasureRequest(corpus=str(home / "corpus"), length=64, segments=3, plain=True, check=True, targets=5)
    measured = partial(measure_all, [str(home / "alibi")], request, device=torch.device("cpu"), dtype=torch.float32)
    (whole,) = measured()
    monkeypatch.setattr(atomic, "_changes", 0)
    measured(journals=tmp_path / "counted")
    changes = atomic._changes
    assert changes > 3 * 3
    for number in (*range(1, 10), *range(10, changes, 9)):
        computed.clear()
        monkeypatch.setattr(atomic, "_changes", 0)
        monkeypatch.setenv(atomic.FAILPOINT, f"{number}:ENOSPC")
        with pytest.raises(OSError, match="No space left"):
            measured(journals=tmp_path / str(number))
        monkeypatch.delenv(atomic.FAILPOINT)
        (resumed,) = measured(journals=tmp_path / str(number))
        assert sum(computed) <= 4, f"at change {number}: {sum(computed)} segments were computed instead of 3"
        assert resumed.to_json() == whole.to_json()
        assert np.array_equal(resumed.field.norms_NT, whole.field.norms_NT)


def test_a_measurement_whose_report_cannot_be_written_is_not_computed_again(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, computed: list[int]
) -> None:
    monkeypatch.setattr(atomic, "_changes", 0)
    monkeypatch.setenv(atomic.FAILPOINT, "12:ENOSPC")
    with pytest.raises(SystemExit) as stop:
        measure(home / "alibi", "--plain")
    assert stop.value.code == 4
    assert len(list((tmp_path / "lens").glob("*.part"))) == 1
    monkeypatch.delenv(atomic.FAILPOINT)
    measure(home / "alibi", "--plain")
    assert computed == [1, 1, 1]
    assert not list((tmp_path / "lens").glob("*.part"))


def test_a_resumed_measurement_keeps_why_segments_are_undefined(home: Path, tmp_path: Path) -> None:
    request = MeasureRequest(corpus=str(home / "corpus"), length=64, segments=3, plain=True)
    shutil.copytree(home / "alibi" / "model", tmp_path / "dead")
    weights = load_file(tmp_path / "dead" / "model.safetensors")
    save_file(
        {name: torch.zeros_like(value) for name, value in weights.items()}, tmp_path / "dead" / "model.safetensors"
    )
    (tmp_path / "dead" / "manifest.json").unlink()
    measured = partial(measure_all, [str(tmp_path / "dead")], request, device=torch.device("cpu"), dtype=torch.float32)
    first, again = (measured(journals=tmp_path / "out")[0].field for _ in range(2))
    assert "does not depend on the text" in first.status
    assert again.status == first.status


def test_segments_of_another_length_or_model_are_not_reused(home: Path, tmp_path: Path) -> None:
    for length, model in ((64, "alibi"), (65, "alibi"), (64, "none:window=4")):
        request = MeasureRequest(corpus=str(home / "corpus"), length=length, segments=2, plain=True)
        measure_all(
            [str(home / model)], request, device=torch.device("cpu"), dtype=torch.float32, journals=tmp_path / "out"
        )
    assert len(list((tmp_path / "out").glob("measure-*.part"))) == 3
