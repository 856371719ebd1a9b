"""fieldlens extend, and --method of evaluate, measure and generate, on small runs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import newcomer
import pytest
import short_training
import torch
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from fieldlens import cli
from fieldlens.core.events import ignore
from fieldlens.evaluation.result import read_evaluation
from fieldlens.extension.load import method_of_flags
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.decoder import Config, Decoder
from fieldlens.models.loading import load
from fieldlens.models.origin import find_model
from fieldlens.models.texts import read_texts
from fieldlens.receptive.extend_evidence import Evidence
from fieldlens.receptive.extend_model import extend_model
from fieldlens.receptive.extend_request import ExtendRequest, usual_methods

LENGTHS = "48,96"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rotary and a biased run, trained on 32 tokens."""
    return short_training.short_runs(tmp_path_factory.mktemp("runs"), ["rotary", "alibi"])


@pytest.fixture(autouse=True)
def _cache(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(runs / "cache"))


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = 0
    try:
        cli.main([*words, "--threads", "1"])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_extend_compares_methods_with_the_crop(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["extend", str(runs / "rotary"), "--lengths", LENGTHS, "--method", "yarn:factor=2", "--method", "streaming"]
    words += ["--targets", "40", "--gradients", "1", "--trials", "3", "--out", str(tmp_path), "--json"]
    code, out, _ = run(capsys, *words)
    assert code == 0
    result = json.loads(out)
    assert list(dict.fromkeys(row["method"] for row in result["results"])) == ["stock", "yarn:factor=2", "streaming"]
    assert {row["length"] for row in result["results"]} == {48, 96}
    assert {row["outcome"] for row in result["results"]} <= {"uses", "crops", "breaks", "undecided"}
    methods = result["methods"]
    assert methods["crop"]["gradient_beyond"] == 0
    assert 0 < methods["streaming"]["gradient_beyond"] < methods["stock"]["gradient_beyond"] < 1
    assert methods["streaming"]["cache_bytes"] == methods["crop"]["cache_bytes"] < methods["stock"]["cache_bytes"]
    assert methods["streaming"]["retrieval"]["96"]["trials"] == 3
    assert {"extension.json", "extension.png", "report.html"} <= {path.name for path in tmp_path.iterdir()}
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*last-token*.json")}
    assert len(times) == 3
    assert run(capsys, *words[:-1])[0] == 0  # reads the evaluations again
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("*last-token*.json")}


def test_the_crop_is_the_model_at_its_training_length(runs: Path, tmp_path: Path) -> None:
    request = ExtendRequest((64,), ("window:window=1",), targets=40, gradients=0, trials=0)
    device, dtype = torch.device("cpu"), torch.float32
    result = extend_model(str(runs / "rotary"), request, out=tmp_path, device=device, dtype=dtype)
    assert result.about["crop"]["perplexity"] == result.about["methods"]["stock"]["trained"]
    assert result.about["methods"]["stock"]["gradient_beyond"] is None
    assert any("No method" in sentence or "uses the context" in sentence for sentence in result.advice())


def test_default_methods_reach_the_longest_length() -> None:
    assert usual_methods(128, 1024)[:3] == ("yarn:factor=8", "dynamic-ntk", "self-extend:group=15")


def test_a_biased_model_gets_the_methods_that_suit_it(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["extend", str(runs / "alibi"), "--lengths", "64", "--targets", "20", "--gradients", "0", "--trials", "0"]
    code, out, _ = run(capsys, *words, "--out", str(tmp_path), "--json")
    assert code == 0
    result = json.loads(out)
    assert {row["method"] for row in result["results"]} == {"stock", "streaming", "window"}
    assert any("yarn needs rotary positions" in reason for reason in result["refused"])
    code, _, error = run(capsys, *words, "--method", "yarn", "--out", str(tmp_path))
    assert code == 2
    assert "yarn needs rotary positions" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "16,32"], "no length in --lengths is past the training length 32"),
        (["--lengths", "64", "--method", "yern"], "did you mean 'yarn'"),
        (["--lengths", "64", "--method", "yarn:factor=x"], "must be a number"),
        (["--lengths", "sixty"], "must be integers separated by commas"),
        (["--lengths", "64", "--margin", "2"], "margin must be between 0 and 1"),
        (["--lengths", "64", "--targets", "0"], "targets must be at least 1"),
        (["--lengths", "64", "--k", "0"], "k must be at least 1"),
        (["--lengths", "64", "--k", "9", "--targets", "8"], "k must be at most the number of targets, 8"),
        (["--lengths", "64", "--trials", "-1"], "trials must be at least 0"),
    ],
)
def test_bad_input_is_one_line(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    code, _, error = run(capsys, "extend", str(runs / "rotary"), "--out", str(tmp_path), *words)
    assert code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1


@pytest.mark.parametrize("spec", ["yarn:factor=0.5", "window:window=0"])
def test_a_method_that_cannot_be_used_is_refused_before_anything_is_computed(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str
) -> None:
    words = ["extend", str(runs / "rotary"), "--lengths", LENGTHS, "--method", "streaming", "--method", spec]
    code, _, error = run(capsys, *words, "--targets", "4", "--out", str(tmp_path))
    assert code == 2
    assert "must be at least 1" in error
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A transformers model with a table of 64 positions, whose tokenizer starts texts with BOS."""
    folder = newcomer.save_model(tmp_path_factory.mktemp("learned"), "gpt2", n_positions=64)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.post_processor = TemplateProcessing(single="<end> $A", special_tokens=[("<end>", 0)])
    tokenizer.save(str(folder / "tokenizer.json"))
    newcomer.save_text(folder / "text.txt")
    return folder


def test_a_model_with_a_table_of_positions_gets_a_crop(
    learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["extend", str(learned), "--text", str(learned / "text.txt"), "--train-length", "32", "--lengths", "48,96"]
    words += ["--targets", "8", "--gradients", "1", "--trials", "2", "--out", str(tmp_path)]
    code, out, error = run(capsys, *words, "--json")
    assert code == 0, error
    result = json.loads(out)
    assert [(row["method"], row["length"]) for row in result["results"]] == [("stock", 48)]  # 96 is past the table
    assert "window does not raise the limit of" in result["refused"][-1]
    assert result["methods"]["crop"]["retrieval"]["96"]["trials"] == 2
    assert result["methods"]["stock"]["seconds"] is None  # the table has the times of 96 tokens
    assert run(capsys, *words)[0] == 0
    code, _, error = run(capsys, *words, "--method", "window")
    assert code == 2
    assert "window does not raise the limit of" in error
    code, _, error = run(capsys, *words[:6], "--lengths", "96", "--out", str(tmp_path))
    assert code == 2
    assert "has 64 positions: only a crop can read 96 tokens" in error


def test_bos_needs_one_of_the_positions(learned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["extend", str(learned), "--text", str(learned / "text.txt"), "--lengths", "96", "--out", str(tmp_path)]
    code, _, error = run(capsys, *words)
    assert code == 2
    assert "has 64 positions, and BOS takes one: give --train-length 63 or less" in error


def test_evaluate_and_measure_take_a_method(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate = [
        "evaluate",
        str(runs / "rotary"),
        "--lengths",
        "32,96",
        "--segments",
        "20",
        "--out",
        str(tmp_path),
        "--json",
    ]
    stock, streaming = (
        json.loads(run(capsys, *evaluate, *more)[1])[0] for more in ((), ("--window", "16", "--sinks", "2"))
    )
    assert streaming["model"]["name"] == "rotary + streaming:sinks=2,window=16"
    assert streaming["model"]["method"]["window"] == 16
    assert streaming["address"] != stock["address"]
    assert [row["nll"] for row in streaming["results"]] != [row["nll"] for row in stock["results"]]
    measure = [
        "measure",
        str(runs / "rotary"),
        "--length",
        "96",
        "--segments",
        "2",
        "--plain",
        "--out",
        str(tmp_path / "m"),
    ]
    code, out, _ = run(capsys, *measure, "--method", "streaming:sinks=0,window=8", "--json")
    assert code == 0
    shares = json.loads(out)[0]["receptive_field"]["share"]
    reach = 2 * 7 + 1  # two layers of a window of 8
    assert max(shares[:-reach]) == 0
    assert min(shares[-reach:]) > 0
    code, _, error = run(capsys, *measure, "--method", "crop")
    assert (code, "use --length 32 instead" in error) == (2, True)


@pytest.mark.parametrize(
    ("method", "mode"),
    [
        ("self-extend", "full"), ("streaming:sinks=2,window=8", "sliding"), ("dynamic-ntk", "re-encode"),
        ("crop", "re-encode"), ("window:window=8", "sliding"), ("yarn", "full"),
    ],
)  # fmt: skip
def test_generate_chooses_the_cache_that_is_exact(
    runs: Path, capsys: pytest.CaptureFixture[str], method: str, mode: str
) -> None:
    words = ["generate", str(runs / "rotary"), "--prompt", "ab " * 30, "--tokens", "12", "--past-end"]
    code, out, _ = run(capsys, *words, "--method", method, "--json")
    assert code == 0
    result = json.loads(out)
    assert (result["mode"], len(result["ids"])) == (mode, 12)
    if method == "dynamic-ntk":
        code, _, error = run(capsys, *words, "--method", method, "--mode", "full")
        assert (code, "not exact with a cache" in error) == (2, True)


def test_flags_are_short_for_streaming() -> None:
    assert method_of_flags(None, 1024, 4) == ("streaming:window=1024", None)
    assert method_of_flags(None, 64, None) == (None, 64)
    assert method_of_flags("yarn:factor=4", None, None) == ("yarn", None)
    for flags, message in (((None, None, 4), "--sinks needs --window"), (("yarn", 8, None), "cannot be combined")):
        with pytest.raises(ValueError, match=message):
            method_of_flags(*flags)


def test_targets_of_a_segment_share_a_pass_but_not_the_crop(runs: Path, tmp_path: Path) -> None:
    """With k targets per segment, each is compared with the last L_tr tokens before it."""
    device, dtype = torch.device("cpu"), torch.float32
    results = []
    for lengths, k in (((64,), 4), ((48, 64), 4), ((64,), 1)):
        request = ExtendRequest(lengths, ("window",), targets=40, k=k, gradients=0, trials=0)
        results.append(extend_model(str(runs / "rotary"), request, out=tmp_path, device=device, dtype=dtype).about)
    many, shorter, single = results
    assert (many["targets"], single["targets"]) == (40, 40)
    assert many["crop"] == shorter["crop"] != single["crop"]  # the crop does not depend on the length
    evaluation = read_evaluation(next(tmp_path.glob("rotary-last-k-*.json")))
    text = read_texts([find_model(str(runs / "rotary"))], None, None, "test")
    documents = next(iter(text.values())).documents
    adapter = load(find_model(str(runs / "rotary")), device, dtype).adapter
    rows = [documents[d][n - 32 : n + 1].astype("int64") for d, n in evaluation.targets]
    losses = [float(adapter.losses(torch.from_numpy(ids_T)[None])) for ids_T in rows]
    assert many["crop"]["nll"] == pytest.approx(sum(losses) / 40, abs=1e-5)
    request = ExtendRequest((48,), ("window",), targets=40, k=18)
    with pytest.raises(ValueError, match=r"k must be at most 17, got 18: .* of 48 tokens"):
        extend_model(str(runs / "rotary"), request, out=tmp_path, device=device, dtype=dtype)


def test_gradients_and_retrieval_resume(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that was stopped goes on where it was, and one with more trials computes the new ones only."""
    computed: list[str] = []
    value = Evidence.value

    def counted(self: Evidence, name: str, compute: Callable[[], object]) -> object:
        def call() -> object:
            if len(computed) == stop_after:
                raise KeyboardInterrupt
            computed.append(f"{self.adapter.name}: {name}")
            return compute()

        return value(self, name, call)

    def extend(trials: int, out: Path) -> dict[str, Any]:
        request = ExtendRequest((48, 96), ("yarn",), targets=20, gradients=2, trials=trials)
        return extend_model(
            str(runs / "rotary"), request, out=out, device=torch.device("cpu"), dtype=torch.float32
        ).about["methods"]

    monkeypatch.setattr(Evidence, "value", counted)
    stop_after = 11
    with pytest.raises(KeyboardInterrupt):
        extend(3, tmp_path / "stopped")
    stop_after = 1000
    resumed, number = extend(3, tmp_path / "stopped"), len(computed)
    assert len(set(computed)) == number == 3 * (1 + 3) + 2 * 2  # time and trials of three rows, gradients of two
    whole = extend(3, tmp_path / "whole")
    for method, record in whole.items():
        for key in ("gradient_beyond", "retrieval", "cache_bytes"):
            assert resumed[method][key] == record[key]
    extend(5, tmp_path / "whole")
    assert len(computed) == 2 * number + 3 * 2  # two more trials of each


def test_evidence_of_another_model_is_not_used(tmp_path: Path) -> None:
    path = tmp_path / "evidence.journal"
    adapter = adapt(Decoder(Config(scheme="none", layers=1, width=8, heads=1, vocab_size=11)))
    first = Evidence(adapter, path, "first", 1, ignore)
    assert first.value("time", lambda: 1.0) == 1.0
    assert Evidence(adapter, path, "first", 1, ignore).value("time", lambda: 2.0) == 1.0
    assert Evidence(adapter, path, "second", 1, ignore).value("time", lambda: 3.0) == 3.0
    path.write_bytes(path.read_bytes()[:-1])  # killed while writing
    assert Evidence(adapter, path, "second", 1, ignore).value("time", lambda: 4.0) == 4.0
