"""fieldlens evaluate and compare, as a user calls them, on runs trained here."""

import errno
import hashlib
import io
import json
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import build
from short_training import short_runs

import fieldlens
from fieldlens.cli import main
from fieldlens.data.corpus import open_corpus
from fieldlens.data.text import read_text
from fieldlens.evaluation.result import read_evaluation
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.storage.results import read_arrays, write_arrays
from fieldlens.storage.sealed import read_sealed, write_sealed
from fieldlens.training.loop import train
from fieldlens.training.recipe import recipe

SPECS = ("sandwich", "none:window=4")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs, a run that diverged, and their training corpus."""
    folder = short_runs(tmp_path_factory.mktemp("evaluate"), SPECS)
    shutil.copytree(folder / SPECS[0], folder / "diverged")
    shutil.rmtree(folder / "diverged" / "model")
    write_sealed(folder / "diverged" / "status.json", {"state": "diverged", "step": 2})
    config = read_sealed(folder / "diverged" / "config.json")
    config["recipe"]["seed"] = 7
    write_sealed(folder / "diverged" / "config.json", config)
    return folder


@pytest.fixture(autouse=True)
def _here(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(home / "cache"))
    monkeypatch.chdir(tmp_path)


def evaluate(*words: object) -> None:
    lengths = [] if "--lengths" in words else ["--lengths", "8,64"]
    main(["evaluate", *map(str, words), *lengths, "--segments", "30", "--threads", "1"])


def test_two_runs_from_command_to_comparison(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(home / SPECS[0], home / SPECS[1], "--json")
    first, second = json.loads(capsys.readouterr().out)
    assert first["lengths"] == [8, 32, 64]  # with the training length
    assert first["results"][0]["bits_per_byte"] > 0
    assert second["verdict"]["verdict"] == "holds"
    assert {row["difference"] for row in second["verdict"]["evidence"]} == {0.0}
    assert first["model"]["recipe"]["scheme"] == "sandwich"
    assert first["data"]["split"] == "test"
    assert first["tokenizer"] == second["tokenizer"]
    assert all((tmp_path / "evaluations" / f"perplexity.{ending}").stat().st_size for ending in ("png", "svg"))
    main(["compare", first["file"], second["file"], "--out", str(tmp_path / "c")])
    out = capsys.readouterr().out
    assert "sandwich" in out
    assert "none:window=4" in out
    assert {path.name for path in (tmp_path / "c").iterdir()} == {
        "comparison-tests.csv", *(f"comparison.{ending}" for ending in ("md", "tex", "csv", "json", "png", "svg"))
    }  # fmt: skip
    main(["compare", str(tmp_path / "c"), first["file"], "--format", "csv"])  # other JSON in a folder is passed over
    capsys.readouterr()
    for style in ("markdown", "latex", "csv"):
        main(["compare", str(tmp_path / "evaluations"), "--format", style])
        assert "sandwich" in capsys.readouterr().out


def test_a_name_that_cannot_be_encoded_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(home / SPECS[0], home / SPECS[1])
    (path,) = (tmp_path / "evaluations").glob("sandwich-*.json")
    evaluation = read_evaluation(path)
    named = {**evaluation.about["model"], "name": "odd\ud800"}
    replace(evaluation, about={**evaluation.about, "model": named}).save(path)
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "evaluations", "--out", "c"])
    assert capsys.readouterr().err.endswith("the record of its model is not valid Unicode\n")


def test_a_result_that_is_there_is_not_computed_again(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(home / SPECS[0])
    before = {path.name: path.read_bytes() for path in (tmp_path / "evaluations").glob("*.[jn]*")}
    (result,) = (tmp_path / "evaluations").glob("*-last-token-*.json")
    result.with_suffix(".part").touch()  # a command was killed between its result and the end of its journal
    monkeypatch.setattr("fieldlens.evaluation.evaluate_models.evaluate", lambda *_, **__: 1 / 0)
    evaluate(home / SPECS[0])
    assert not result.with_suffix(".part").exists()
    assert {path.name: path.read_bytes() for path in (tmp_path / "evaluations").glob("*.[jn]*")} == before
    assert "perplexity by context length" in capsys.readouterr().out


def test_an_evaluation_survives_a_full_disk_when_its_result_is_saved(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("fieldlens.evaluation.result.write_result", full)
        with pytest.raises(SystemExit):
            evaluate(home / SPECS[0])
    (journal,) = (tmp_path / "evaluations").glob("*.part")
    monkeypatch.setattr(ModelAdapter, "losses", lambda *_, **__: 1 / 0)  # nothing is computed again
    evaluate(home / SPECS[0])
    assert not journal.exists()
    assert len(list((tmp_path / "evaluations").glob("*-last-token-*.json"))) == 1


def test_a_damaged_journal_is_ignored(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("fieldlens.evaluation.result.write_result", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            evaluate(home / SPECS[0])
    (journal,) = (tmp_path / "evaluations").glob("*.part")
    arrays = read_arrays(journal)
    write_arrays(journal, {**arrays, "losses": arrays["losses"] - 1})
    evaluate(home / SPECS[0])
    (path,) = (tmp_path / "evaluations").glob("*-last-token-*.json")
    assert (read_evaluation(path).losses[8].numpy() != (arrays["losses"] - 1)[0]).all()


def test_another_configuration_is_another_model(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build("llama", vocab_size=512).save_pretrained(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / SPECS[0] / "model" / name, tmp_path / "m" / name)
    losses = []
    for theta in (10000.0, 3.0, 10000.0):
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        config["rope_parameters"]["rope_theta"] = theta
        (tmp_path / "m" / "config.json").write_text(json.dumps(config))
        evaluate(tmp_path / "m", "--corpus", home / "corpus", "--json")
        losses.append([row["nll"] for row in json.loads(capsys.readouterr().out)[0]["results"]])
    assert losses[0] == losses[2] != losses[1]
    assert len(list((tmp_path / "evaluations").glob("m-*.json"))) == 2
    shutil.copytree(tmp_path / "m", tmp_path / "b" / "m")
    evaluate(tmp_path / "m", tmp_path / "b" / "m", "--corpus", home / "corpus", "--json")
    first, second = (record["model"]["name"] for record in json.loads(capsys.readouterr().out))
    assert first != second == f"m ({Path('b', 'm')})"


def test_a_run_that_diverged_is_a_result(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(home / SPECS[0], home / "diverged")
    assert "diverged" in capsys.readouterr().out
    main(["compare", str(tmp_path / "evaluations"), "--json"])
    comparison = json.loads(capsys.readouterr().out)
    assert comparison["groups"]["sandwich"] == {"seeds": [7, 1235], "diverged": [7]}


def test_diverged_runs_are_shown_in_every_output(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(home / "diverged", "--json")
    assert json.loads(capsys.readouterr().out)[0]["state"] == "diverged"
    evaluate(home / "diverged", "--align", "bytes")
    assert "plot" not in capsys.readouterr().out
    evaluate(home / SPECS[0], home / "diverged", "--window", "8", "--out", tmp_path / "w")
    capsys.readouterr()
    main(["compare", str(tmp_path / "w"), "--json"])
    assert list(json.loads(capsys.readouterr().out)["groups"]) == ["sandwich"]


def test_train_length_also_applies_to_existing_results(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for length in (32, 8):
        evaluate(home / SPECS[0], "--train-length", length, "--lengths", "8,32,64", "--json")
        (result,) = json.loads(capsys.readouterr().out)
        assert result["verdict"]["train_length"] == length


def test_the_margin_applies_to_existing_results_and_context_use_is_printed(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate(home / SPECS[0], "--lengths", "32,64", "--json")
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["margin"], result["verdict"]["margin"]) == (0.02, 0.02)
    assert result["lengths"] == [8, 32, 64]  # with a quarter of the training length
    assert result["verdict"]["context_use"]["short"] == 8
    monkeypatch.setattr("fieldlens.evaluation.evaluate_models.evaluate", lambda *_, **__: 1 / 0)
    evaluate(home / SPECS[0], "--lengths", "32,64", "--margin", "0.9")
    out = capsys.readouterr().out
    assert "sandwich  holds" in out
    assert ": loss from 8 to 32 tokens falls by " in out
    with pytest.raises(SystemExit, match="2"):
        evaluate(home / SPECS[0], "--margin", "2")
    assert "margin must be between 0 and 1" in capsys.readouterr().err


def test_a_damaged_model_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(home / SPECS[0], tmp_path / "damaged")
    file = tmp_path / "damaged" / "model" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 64
    file.write_bytes(data)
    with pytest.raises(SystemExit, match="2"):
        evaluate(tmp_path / "damaged")
    assert "model is damaged" in capsys.readouterr().err


def test_bos_and_bytes_are_recorded(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from tokenizers import Tokenizer, processors

    build("llama", vocab_size=512).save_pretrained(tmp_path / "llama")
    shutil.copy(home / SPECS[0] / "model" / "tokenizer_config.json", tmp_path / "llama")
    tokenizer = Tokenizer.from_file(str(home / SPECS[0] / "model" / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(str(tmp_path / "llama" / "tokenizer.json"))
    evaluate(tmp_path / "llama", "--corpus", home / "corpus", "--json")
    (result,) = json.loads(capsys.readouterr().out)
    assert result["bos"] == 0
    evaluation = read_evaluation(Path(result["file"]))
    text = read_text(str(home / "corpus"), "test", tmp_path / "llama", progress=False)
    pieces = [tokenizer.decode([int(text.documents[d][o])]).encode() for d, o in evaluation.targets]
    assert evaluation.sizes is not None
    assert evaluation.sizes.tolist() == [len(piece) for piece in pieces]
    assert 0 not in {int(text.documents[d][o]) for d, o in evaluation.targets}  # the end-of-text token is not a target
    bits = float(evaluation.losses[64].double().sum()) / math.log(2) / sum(map(len, pieces))
    assert result["results"][-1]["bits_per_byte"] == pytest.approx(bits)


def test_other_text_and_other_weights_are_other_results(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(home / "corpus", other)
    for file in other.iterdir():
        file.write_text(file.read_text()[::-1])
    evaluate(home / SPECS[0])
    evaluate(home / SPECS[0], "--corpus", other)
    evaluate(home / SPECS[1])
    assert len(list((tmp_path / "evaluations").glob("*.json"))) == 3


def test_the_text_is_that_of_the_run_from_any_folder(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(home / "corpus", tmp_path / "corpus")
    monkeypatch.chdir(tmp_path)
    train(recipe("smoke", corpus="corpus", steps=2), tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    shutil.copytree(home / "corpus", "corpus", ignore=shutil.ignore_patterns("00*"))
    evaluate("../run", "--json")
    (result,) = json.loads(capsys.readouterr().out)
    assert result["data"]["text"] == open_corpus(str(tmp_path / "corpus")).fingerprint()
    (tmp_path / "corpus" / "000.txt").unlink()
    with pytest.raises(SystemExit):
        evaluate("../run")
    assert "has changed since the run was trained: pass --corpus" in capsys.readouterr().err
    evaluate("../run", "--corpus", tmp_path / "corpus")


def test_bytes_align_models_with_different_tokenizers(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    train(recipe("smoke", scheme="alibi", corpus=str(home / "corpus"), steps=2, bpe=300), other)
    evaluate(home / SPECS[0], other, "--align", "bytes", "--json")
    first, second = json.loads(capsys.readouterr().out)
    assert first["tokenizer"] != second["tokenizer"]
    main(["compare", first["file"], second["file"], "--json"])
    comparison = json.loads(capsys.readouterr().out)
    assert [cell["mean"] for cell in comparison["cells"] if cell["length"] == 64]
    evaluate(other, "--align", "bytes", "--json")  # more bytes can be drawn for the finer tokenizer alone
    (alone,) = json.loads(capsys.readouterr().out)
    assert alone["file"] != second["file"]
    with pytest.raises(SystemExit, match="2"):
        main(["compare", first["file"], alone["file"]])
    assert "they differ in the targets that were drawn" in capsys.readouterr().err
    evaluate(home / SPECS[0], other, "--json")
    apart = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit, match="2"):
        main(["compare", apart[0]["file"], apart[1]["file"]])
    assert "they differ in tokenizer" in capsys.readouterr().err


def test_a_transformers_folder_with_a_tokenizer(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build("llama", vocab_size=512, max_position_embeddings=32).save_pretrained(tmp_path / "llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / SPECS[0] / "model" / name, tmp_path / "llama" / name)
    evaluate(tmp_path / "llama", "--corpus", home / "corpus", "--window", "4", "--json")
    (result,) = json.loads(capsys.readouterr().out)
    assert result["model"]["train_length"] == 32
    assert result["verdict"]["verdict"] == "holds"
    assert result["window"] == 4


def test_a_text_file_is_read_in_full(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.jsonl"
    texts = [path.read_text() for path in sorted((home / "corpus").iterdir())[:20]]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    evaluate(home / SPECS[0], "--text", file, "--json")
    (result,) = json.loads(capsys.readouterr().out)
    text = hashlib.sha256(file.read_bytes()).hexdigest()
    assert result["data"] == {"corpus": "mine.jsonl", "split": None, "text": text}
    assert max(target.document for target in read_evaluation(Path(result["file"])).targets) > 10
    evaluate(home / SPECS[0], "--text", file)
    output = " ".join(capsys.readouterr().out.split())
    assert "mine.jsonl, last-token, 30 targets in " in output
    evaluate(home / SPECS[0], "--corpus", file)  # split by document, so that one is left for test
    assert "test split, last-token, 30 targets in 30 segments of 1 document;" in " ".join(
        capsys.readouterr().out.split()
    )


def test_a_pipe_is_a_text_for_every_tokenizer(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (home / "corpus" / "000.txt").read_bytes()
    shutil.copytree(home / SPECS[0] / "model", tmp_path / "other")  # another folder is another tokenizer
    source, sink = os.pipe()
    os.write(sink, data)
    os.close(sink)
    evaluate(home / SPECS[0], tmp_path / "other", "--text", f"/dev/fd/{source}", "--json")
    os.close(source)
    piped = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    evaluate(home / SPECS[0], "--text", "-", "--json")
    (typed,) = json.loads(capsys.readouterr().out)
    assert {record["data"]["text"] for record in (*piped, typed)} == {hashlib.sha256(data).hexdigest()}
    assert typed["data"]["corpus"] == "stdin"
    assert typed["results"] == piped[0]["results"]


def test_a_pipe_of_jsonl_is_not_read_with_its_braces(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'\n{"text": "one two"}\n{"text": "three"}\n')))
    with pytest.raises(SystemExit, match="2"):
        evaluate(home / SPECS[0], "--text", "-")
    assert "stdin contains JSONL but is read as plain text: save it to a file that ends in" in capsys.readouterr().err


def test_a_study_s_results_are_not_compared_file_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.json").write_text('{"kind": "fieldlens study"}')
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(tmp_path)])
    assert f"results of a study: compare them with fieldlens study {tmp_path} --report" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", "a.txt", "--corpus", "stdlib"], "give either --text or --corpus"),
        (["--text", "nothing.txt"], "nothing.txt is not a file: --text takes a text or JSONL file"),
        (["--text", "array.json"], "array.json may be JSONL or plain text: rename it to .jsonl (one object per"),
        (["--lengths", "8,x"], "--lengths must be integers separated by commas, got '8,x'"),
        (["--lengths", "100000"], "length 100000 is too long for this text: its longest document has"),
        (["--split", "tset"], "unknown split 'tset': did you mean 'test'"),
        (["--protocol", "sliding", "--stride", "99"], "stride must be between 1 and the shortest length, 8, got 99"),
        (
            ["--protocol", "by-position", "--align", "bytes"],
            "--align bytes needs --protocol last-token, got by-position",
        ),
        (["--window", "0"], "window"),
        (["--batch", "0"], "batch must be at least 1, got 0"),
        (["--train-length", "0"], "train length must be at least 1, got 0"),
        (["--corpus", "stdlb"], "unknown corpus 'stdlb': did you mean 'stdlib'"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "array.json").write_text('["one", "two"]')
    command = ["evaluate", str(home / SPECS[0]), "--lengths", "8,64", "--segments", "30"]
    if "--lengths" in words:
        del command[2:4]
    with pytest.raises(SystemExit, match="2"):
        main([*command, *words])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "evaluations").exists()


def test_a_tokenizer_larger_than_the_embedding_is_refused(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build("llama", vocab_size=100).save_pretrained(tmp_path / "small")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / SPECS[0] / "model" / name, tmp_path / "small" / name)
    with pytest.raises(SystemExit, match="2"):
        evaluate(tmp_path / "small", "--corpus", home / "corpus")
    assert "is outside the vocabulary of 100" in capsys.readouterr().err


def test_no_model_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate"])
    assert "no model" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["compare", "missing.json"])
    assert "missing.json does not exist" in capsys.readouterr().err


def test_evaluation_leaves_the_global_state_alone(home: Path) -> None:
    state = torch.get_rng_state()
    evaluate(home / SPECS[0])
    assert torch.equal(state, torch.get_rng_state())


def test_runs_in_folders_of_one_name_are_told_apart(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for parent in ("x", "y"):
        shutil.copytree(home / SPECS[0], tmp_path / parent / "run")
    evaluate("x/run", "y/run")
    out = capsys.readouterr().out
    assert f"sandwich ({Path('x', 'run')})" in out
    assert f"sandwich ({Path('y', 'run')})" in out


def test_python_gives_the_numbers_and_the_verdict_of_the_command(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evaluate(home / SPECS[0] / "model", "--corpus", home / "corpus", "--lengths", "16,64", "--json")
    (result,) = json.loads(capsys.readouterr().out)
    text = read_text(str(home / "corpus"), "test", home / SPECS[0] / "model", progress=False)
    documents = [torch.from_numpy(ids.astype("int64")) for ids in text.documents]
    model = fieldlens.load_model(home / SPECS[0] / "model")
    evaluation = fieldlens.perplexity(model, documents, [16, 64], 30, bos=text.bos)
    assert list(evaluation.losses) == result["lengths"] == [8, 16, 32, 64]
    assert evaluation.verdict == result["verdict"]
    assert evaluation.rows() == [{k: v for k, v in row.items() if k != "bits_per_byte"} for row in result["results"]]
