"""The command `fieldlens generate`, on short runs trained by the fixture."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest
import torch
from families import build
from short_training import short_runs

from fieldlens import cli
from fieldlens.data.tokenizer import Coder, eos_token_ids
from fieldlens.generation.generate import generate
from fieldlens.generation.sampling import Sampling
from fieldlens.models.loading import load
from fieldlens.models.origin import find_model
from fieldlens.storage.run_dir import Run

pytestmark = pytest.mark.filterwarnings("ignore:.*generation flags.*")

SPECS = ("alibi", "sinusoidal")
PROMPT = "abc def"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short runs, and a Hugging Face folder with their tokenizer."""
    folder = short_runs(tmp_path_factory.mktemp("generate"), SPECS, documents=40, steps=3)
    build("llama", vocab_size=512, max_position_embeddings=16).save_pretrained(folder / "llama")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / "alibi" / "model" / name, folder / "llama" / name)
    return folder


@pytest.fixture(autouse=True)
def _environment(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(home / "cache"))
    monkeypatch.chdir(tmp_path)


def run_generate(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Run the command; return exit code, standard output, standard error."""
    code = 0
    try:
        cli.main(["generate", *map(str, words), "--threads", "1"])
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize("model", ["alibi", "llama"])
def test_text_equals_that_of_the_library(model: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run_generate(capsys, home / model, "--prompt", PROMPT, "--tokens", 40, "--window", 6, "--past-end")
    note = f"{home / model} has no manifest.json of fieldlens: its files cannot be verified\n"
    assert (code, err) == (0, note if model == "llama" else "")
    origin = find_model(str(home / model))
    loaded, coder = load(origin, torch.device("cpu"), torch.float32), Coder(origin.tokenizer)
    prompt = coder.tokenizer.encode(PROMPT).ids
    sampling = Sampling(vocab_size=coder.vocab_size)
    (new,) = generate(loaded.adapter, prompt, 40, mode="sliding", window=6, sampling=sampling).ids
    whole = coder.tokenizer.decode([*prompt, *new], skip_special_tokens=False)
    assert PROMPT + out == whole + "\n"


def test_default_choices_are_printed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model, words in (
        ("alibi", ["window 32: the training length"]),
        ("llama", ["window 16: the training length"]),
        ("sinusoidal", ["mode re-encode: sinusoidal positions would exceed the training length", "window 32"]),
    ):
        code, _, err = run_generate(capsys, home / model, "--prompt", PROMPT, "--tokens", 3)
        assert code == 0
        assert all(word in err for word in words)


def test_json_contains_everything(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (home / "alibi", "--prompt", PROMPT, "--tokens", 50, "--top-k", 20, "--seed", 3, "--past-end", "--json")
    code, out, err = run_generate(capsys, *arguments)
    report = json.loads(out)
    assert (code, err) == (0, "")
    assert (report["mode"], report["window"], report["prompt"], report["ended"]) == ("sliding", 32, PROMPT, False)
    assert len(report["ids"]) == report["stats"]["tokens"] == 50
    assert report["stats"]["cache_bytes"] > 0
    assert report["stats"]["tokens_per_second"] > 0
    assert report["stats"]["seconds_to_first_token"] > 0
    assert report["notes"] == ["window 32: the training length"]
    assert json.loads(run_generate(capsys, *arguments)[1])["ids"] == report["ids"]


def test_stats(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run_generate(capsys, home / "alibi", "--prompt", PROMPT, "--tokens", 30, "--past-end", "--stats")
    assert "tokens/s, first token after" in err
    assert "30 new" in err
    assert "bytes" in err


def test_it_stops_at_the_end_of_text_unless_past_end(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A model whose every prediction is the end-of-text token."""
    model = build("llama", vocab_size=512)
    model.model.norm.weight.data.zero_()  # all logits are then equal, and the first token is the end of text
    model.save_pretrained(tmp_path / "ended")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "alibi" / "model" / name, tmp_path / "ended" / name)
    arguments = (tmp_path / "ended", "--prompt", PROMPT, "--tokens", 4, "--mode", "full")
    capsys.readouterr()
    assert run_generate(capsys, *arguments)[1] == "\n"
    assert json.loads(run_generate(capsys, *arguments, "--json")[1])["ended"]
    assert run_generate(capsys, *arguments, "--past-end")[1] == 4 * "<|endoftext|>" + "\n"
    shutil.copytree(tmp_path / "ended", tmp_path / "other")
    described = json.loads((tmp_path / "ended" / "tokenizer.json").read_text())
    described["added_tokens"] = []
    del described["model"]["vocab"]["<|endoftext|>"]
    described["model"]["vocab"]["<|im_end|>"] = 0
    (tmp_path / "other" / "tokenizer.json").write_text(json.dumps(described))
    (tmp_path / "other" / "tokenizer_config.json").write_text("{}")
    arguments = (tmp_path / "other", *arguments[1:], "--json")
    assert not json.loads(run_generate(capsys, *arguments)[1])["ended"]  # this token is not declared as an end of text
    (tmp_path / "other" / "generation_config.json").write_text('{"eos_token_id": [7, 0]}')
    assert json.loads(run_generate(capsys, *arguments)[1])["ended"]


def test_every_end_token_of_a_tokenizer_is_used(home: Path, tmp_path: Path) -> None:
    """The eos_token of a chat model may differ from the end-of-text token."""
    shutil.copy(home / "alibi" / "model" / "tokenizer.json", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "é"}')
    coder = Coder(tmp_path)
    assert eos_token_ids(coder.tokenizer, tmp_path) == [coder.end, coder.tokenizer.token_to_id("é")]


@pytest.mark.parametrize("words", [["--prompt", "- item"], ["--prompt=- item"]])
def test_a_prompt_may_begin_with_a_hyphen(words: list[str], home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run_generate(capsys, home / "alibi", *words, "--tokens", 2, "--json")
    assert (code, json.loads(out)["prompt"]) == (0, "- item")


def test_special_tokens_in_a_prompt_are_parsed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    marked = json.loads(
        run_generate(capsys, home / "alibi", "--prompt", "<|endoftext|>abc", "--tokens", 2, "--json")[1]
    )
    plain = json.loads(run_generate(capsys, home / "alibi", "--prompt", "abc", "--tokens", 2, "--json")[1])
    assert marked["stats"]["prompt_tokens"] == plain["stats"]["prompt_tokens"] + 1


def test_a_prompt_can_come_through_a_pipe(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(target=(tmp_path / "pipe").write_text, args=(PROMPT,))
    writer.start()
    code, out, _ = run_generate(capsys, home / "alibi", "--prompt-file", tmp_path / "pipe", "--tokens", 2, "--json")
    writer.join()
    assert (code, json.loads(out)["prompt"]) == (0, PROMPT)


def test_a_prompt_from_a_file_equals_the_prompt_option(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"\xef\xbb\xbf" + PROMPT.encode())
    words = ("--tokens", 9, "--window", 6)
    expected = run_generate(capsys, home / "alibi", "--prompt", PROMPT, *words)
    assert run_generate(capsys, home / "alibi", "--prompt-file", tmp_path / "prompt.txt", *words) == expected


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "give either --prompt TEXT or --prompt-file FILE"),
        (["--prompt", "a", "--prompt-file", "b"], "give either --prompt TEXT or --prompt-file FILE"),
        (["--prompt", ""], "the prompt is empty"),
        (["--prompt", "a\udcff"], "the prompt is not valid UTF-8 at character 1"),
        (["--prompt-file", "missing.txt"], "missing.txt is not a file"),
        (["--prompt-file", "empty.txt"], "the prompt is empty"),
        (["--prompt-file", "broken.txt"], "invalid UTF-8 at byte 2"),
        (["--prompt", "a", "--tokens", "0"], "tokens must be at least 1, got 0"),
        (["--prompt", "a", "--tokens", "many"], "many"),
        (["--prompt", "a", "--window", "0"], "window must be at least 1, got 0"),
        (["--prompt", "a", "--window", "4", "--mode", "full"], "mode full takes no window, got 4"),
        (["--prompt", "a", "--mode", "slide"], "slide"),
        (["--prompt", "a", "--temperature", "-1"], "temperature must be finite and at least 0 (greedy), got -1"),
        (["--prompt", "a", "--top-k", "0"], "top-k must be at least 1, got 0"),
        (["--prompt", "a", "--top-p", "2"], "top-p must be greater than 0 and at most 1, got 2"),
        (["--prompt", "a", "--seed", "-1"], "seed must be between 0 and 2^63 - 1, got -1"),
        (["--prompt", "a", "--train-length", "0"], "train length must be at least 1, got 0"),
        (["--prompt", "a", "--threads", "0"], "threads must be at least 1, got 0"),
    ],
)
def test_mistakes_are_one_line(
    words: list[str], message: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "broken.txt").write_bytes(b"ab\xff")
    code, out, err = 0, "", ""
    try:
        cli.main(["generate", str(home / "alibi"), *words])
    except SystemExit as stop:
        code = int(stop.code or 0)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_invalid_models_are_one_line(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(home / "alibi", tmp_path / "diverged")
    Run(tmp_path / "diverged").write_status("diverged", step=2)
    build("llama", vocab_size=40).save_pretrained(tmp_path / "small")
    build("llama", vocab_size=512).save_pretrained(tmp_path / "untokenized")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(home / "alibi" / "model" / name, tmp_path / "small" / name)
    capsys.readouterr()
    for model, message in (
        ("missing", "model 'missing' does not exist"),
        ("diverged", "diverged: there is no model to generate with"),
        ("small", "is outside the vocabulary of 40"),
        ("untokenized", "has no tokenizer"),
    ):
        code, out, err = run_generate(capsys, model, "--prompt", PROMPT)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1


@pytest.mark.parametrize("eos", ['"x"', "[1.5]", "-3", "[[1]]", "true", '{"a": 1}'])
def test_a_wrong_eos_token_id_is_one_line(
    eos: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(home / "llama", tmp_path / "model")
    (tmp_path / "model" / "generation_config.json").write_text(f'{{"eos_token_id": {eos}}}')
    code, _, err = run_generate(capsys, tmp_path / "model", "--prompt", "ab", "--tokens", "2")
    assert code == 2
    assert err.count("\n") == 1
    assert "eos_token_id" in err
