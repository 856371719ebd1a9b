"""fieldlens evaluate and compare, as a user calls them, on runs trained here."""

import hashlib
import io
import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch
from families import build
from short_training import short_runs

from fieldlens.cli import main
from fieldlens.data.corpus import open_corpus
from fieldlens.data.text import read_text
from fieldlens.evaluation.result import read_evaluation
from fieldlens.training.loop import train
from fieldlens.training.recipe import recipe

SPECS = ("sandwich", "none:window=4")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two trained runs, a run that diverged, and the corpus they know."""
    folder = short_runs(tmp_path_factory.mktemp("evaluate"), SPECS)
    shutil.copytree(folder / SPECS[0], folder / "diverged")
    shutil.rmtree(folder / "diverged" / "model")
    (folder / "diverged" / "status.json").write_text('{"state": "diverged", "step": 2}')
    config = json.loads((folder / "diverged" / "config.json").read_text())
    config["recipe"]["seed"] = 7
    (folder / "diverged" / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(autouse=True)
def _here(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(home / "cache"))
    monkeypatch.chdir(tmp_path)


def ask(*words: object) -> None:
    lengths = [] if "--lengths" in words else ["--lengths", "8,64"]
    main(["evaluate", *map(str, words), *lengths, "--segments", "30", "--threads", "1"])


def test_two_runs_from_command_to_comparison(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(home / SPECS[0], home / SPECS[1], "--json")
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


def test_a_result_that_is_there_is_not_computed_again(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(home / SPECS[0])
    before = {path.name: path.read_bytes() for path in (tmp_path / "evaluations").glob("*.[jn]*")}
    monkeypatch.setattr("fieldlens.evaluation.command.evaluate", lambda *_, **__: 1 / 0)
    ask(home / SPECS[0])
    assert {path.name: path.read_bytes() for path in (tmp_path / "evaluations").glob("*.[jn]*")} == before
    assert "perplexity by context length" in capsys.readouterr().out


def test_another_configuration_is_another_model(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build("llama", vocab_size=512).save_pretrained(tmp_path / "m")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / SPECS[0] / "model" / name, tmp_path / "m" / name)
    found = []
    for theta in (10000.0, 3.0, 10000.0):
        config = json.loads((tmp_path / "m" / "config.json").read_text())
        config["rope_parameters"]["rope_theta"] = theta
        (tmp_path / "m" / "config.json").write_text(json.dumps(config))
        ask(tmp_path / "m", "--corpus", home / "corpus", "--json")
        found.append([row["nll"] for row in json.loads(capsys.readouterr().out)[0]["results"]])
    assert found[0] == found[2] != found[1]
    assert len(list((tmp_path / "evaluations").glob("m-*.json"))) == 2
    shutil.copytree(tmp_path / "m", tmp_path / "b" / "m")
    ask(tmp_path / "m", tmp_path / "b" / "m", "--corpus", home / "corpus", "--json")
    first, second = (one["model"]["name"] for one in json.loads(capsys.readouterr().out))
    assert first != second == f"m ({Path('b', 'm')})"


def test_a_run_that_diverged_is_a_result(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(home / SPECS[0], home / "diverged")
    assert "diverged" in capsys.readouterr().out
    main(["compare", str(tmp_path / "evaluations"), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["groups"]["sandwich"] == {"seeds": [7, 1235], "diverged": [7]}


def test_what_diverged_is_shown_in_every_way(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ask(home / "diverged", "--json")
    assert json.loads(capsys.readouterr().out)[0]["state"] == "diverged"
    ask(home / "diverged", "--align", "bytes")
    assert "plot" not in capsys.readouterr().out
    ask(home / SPECS[0], home / "diverged", "--window", "8", "--out", tmp_path / "w")
    capsys.readouterr()
    main(["compare", str(tmp_path / "w"), "--json"])
    assert list(json.loads(capsys.readouterr().out)["groups"]) == ["sandwich"]


def test_a_training_length_that_is_given_counts_for_what_is_there_too(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for length in (32, 8):
        ask(home / SPECS[0], "--train-length", length, "--lengths", "8,32,64", "--json")
        (found,) = json.loads(capsys.readouterr().out)
        assert found["verdict"]["train_length"] == length


def test_a_damaged_model_is_refused(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(home / SPECS[0], tmp_path / "damaged")
    file = tmp_path / "damaged" / "model" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 64
    file.write_bytes(data)
    with pytest.raises(SystemExit, match="2"):
        ask(tmp_path / "damaged")
    assert "the model folder is damaged" in capsys.readouterr().err


def test_a_tokenizer_s_beginning_and_the_text_s_bytes_reach_the_result(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tokenizers import Tokenizer, processors

    build("llama", vocab_size=512).save_pretrained(tmp_path / "llama")
    shutil.copy(home / SPECS[0] / "model" / "tokenizer_config.json", tmp_path / "llama")
    tokenizer = Tokenizer.from_file(str(home / SPECS[0] / "model" / "tokenizer.json"))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 0)]
    )
    tokenizer.save(str(tmp_path / "llama" / "tokenizer.json"))
    ask(tmp_path / "llama", "--corpus", home / "corpus", "--json")
    (found,) = json.loads(capsys.readouterr().out)
    assert found["bos"] == 0
    one = read_evaluation(Path(found["file"]))
    text = read_text(str(home / "corpus"), "test", tmp_path / "llama", progress=False)
    pieces = [tokenizer.decode([int(text.documents[d][o])]).encode() for d, o in one.targets]
    assert one.sizes is not None
    assert one.sizes.tolist() == [len(piece) for piece in pieces]
    assert 0 not in {int(text.documents[d][o]) for d, o in one.targets}  # the end of text is no target
    bits = float(one.losses[64].double().sum()) / math.log(2) / sum(map(len, pieces))
    assert found["results"][-1]["bits_per_byte"] == pytest.approx(bits)


def test_other_text_and_other_weights_are_other_results(home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(home / "corpus", other)
    for file in other.iterdir():
        file.write_text(file.read_text()[::-1])
    ask(home / SPECS[0])
    ask(home / SPECS[0], "--corpus", other)
    ask(home / SPECS[1])
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
    ask("../run", "--json")
    (found,) = json.loads(capsys.readouterr().out)
    assert found["data"]["text"] == open_corpus(str(tmp_path / "corpus")).fingerprint()
    (tmp_path / "corpus" / "000.txt").unlink()
    with pytest.raises(SystemExit):
        ask("../run")
    assert "has changed since the run was trained: --corpus" in capsys.readouterr().err
    ask("../run", "--corpus", tmp_path / "corpus")


def test_bytes_align_models_with_different_tokenizers(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    train(recipe("smoke", scheme="alibi", corpus=str(home / "corpus"), steps=2, bpe=300), other)
    ask(home / SPECS[0], other, "--align", "bytes", "--json")
    first, second = json.loads(capsys.readouterr().out)
    assert first["tokenizer"] != second["tokenizer"]
    main(["compare", first["file"], second["file"], "--json"])
    found = json.loads(capsys.readouterr().out)
    assert [cell["mean"] for cell in found["cells"] if cell["length"] == 64]
    ask(other, "--align", "bytes", "--json")  # more bytes can be drawn for the finer tokenizer alone
    (alone,) = json.loads(capsys.readouterr().out)
    assert alone["file"] != second["file"]
    with pytest.raises(SystemExit, match="2"):
        main(["compare", first["file"], alone["file"]])
    assert "they differ in the targets that were drawn" in capsys.readouterr().err
    ask(home / SPECS[0], other, "--json")
    apart = json.loads(capsys.readouterr().out)
    with pytest.raises(SystemExit, match="2"):
        main(["compare", apart[0]["file"], apart[1]["file"]])
    assert "they differ in tokenizer" in capsys.readouterr().err


def test_a_transformers_folder_with_a_tokenizer(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build("llama", vocab_size=512, max_position_embeddings=32).save_pretrained(tmp_path / "llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / SPECS[0] / "model" / name, tmp_path / "llama" / name)
    ask(tmp_path / "llama", "--corpus", home / "corpus", "--window", "4", "--json")
    (found,) = json.loads(capsys.readouterr().out)
    assert found["model"]["train_length"] == 32
    assert found["verdict"]["verdict"] == "holds"
    assert found["window"] == 4


def test_a_file_of_one_s_own_is_read_whole(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.jsonl"
    texts = [path.read_text() for path in sorted((home / "corpus").iterdir())[:20]]
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    ask(home / SPECS[0], "--text", file, "--json")
    (found,) = json.loads(capsys.readouterr().out)
    text = hashlib.sha256(file.read_bytes()).hexdigest()
    assert found["data"] == {"corpus": "mine.jsonl", "split": None, "text": text}
    assert max(target.document for target in read_evaluation(Path(found["file"])).targets) > 10
    ask(home / SPECS[0], "--text", file)
    told = " ".join(capsys.readouterr().out.split())
    assert "mine.jsonl, last-token, 30 targets in " in told
    ask(home / SPECS[0], "--corpus", file)  # split by document, so that one is left for test
    assert "test split, last-token, 30 targets in 1 document;" in " ".join(capsys.readouterr().out.split())


def test_a_pipe_is_a_text_for_every_tokenizer(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = (home / "corpus" / "000.txt").read_bytes()
    shutil.copytree(home / SPECS[0] / "model", tmp_path / "other")  # another folder is another tokenizer
    source, sink = os.pipe()
    os.write(sink, data)
    os.close(sink)
    ask(home / SPECS[0], tmp_path / "other", "--text", f"/dev/fd/{source}", "--json")
    os.close(source)
    piped = json.loads(capsys.readouterr().out)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    ask(home / SPECS[0], "--text", "-", "--json")
    (typed,) = json.loads(capsys.readouterr().out)
    assert {one["data"]["text"] for one in (*piped, typed)} == {hashlib.sha256(data).hexdigest()}
    assert typed["data"]["corpus"] == "stdin"
    assert typed["results"] == piped[0]["results"]


def test_a_pipe_of_jsonl_is_not_read_with_its_braces(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'\n{"text": "one two"}\n{"text": "three"}\n')))
    with pytest.raises(SystemExit, match="2"):
        ask(home / SPECS[0], "--text", "-")
    assert "stdin gives JSONL, and is read as plain text: put it into a file that ends in" in capsys.readouterr().err


def test_a_study_s_results_are_not_compared_file_by_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.json").write_text('{"kind": "fieldlens study"}')
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(tmp_path)])
    assert f"results of a study: fieldlens study {tmp_path} --report compares them" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--text", "a.txt", "--corpus", "stdlib"], "give either --text or --corpus"),
        (["--text", "nothing.txt"], "nothing.txt is no file: --text takes a text or JSONL file"),
        (["--text", "array.json"], "array.json may be lines of JSON or a plain text: name it .jsonl, one object per"),
        (["--lengths", "8,x"], "--lengths is '8,x': whole numbers separated by commas"),
        (["--lengths", "100000"], "length 100000 is too long for this text: its longest document has"),
        (["--split", "tset"], "unknown split 'tset': did you mean 'test'"),
        (["--protocol", "sliding", "--stride", "99"], "stride is 99: from 1 to the shortest length, 8"),
        (["--protocol", "by-position", "--align", "bytes"], "--align bytes goes with the protocol last-token"),
        (["--window", "0"], "window"),
        (["--batch", "0"], "batch is 0"),
        (["--train-length", "0"], "train length is 0"),
        (["--corpus", "stdlb"], "unknown corpus 'stdlb': did you mean 'stdlib'"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "array.json").write_text('["one", "two"]')
    asked = ["evaluate", str(home / SPECS[0]), "--lengths", "8,64", "--segments", "30"]
    if "--lengths" in words:
        del asked[2:4]
    with pytest.raises(SystemExit, match="2"):
        main([*asked, *words])
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
        ask(tmp_path / "small", "--corpus", home / "corpus")
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
    ask(home / SPECS[0])
    assert torch.equal(state, torch.get_rng_state())
