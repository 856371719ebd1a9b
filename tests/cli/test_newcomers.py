"""Common mistakes of new users: each gives a one-line message with advice, and an exit code."""

import errno
import re
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from newcomer import save_model, save_text
from short_training import write_corpus

from fieldlens.cli import main
from fieldlens.storage import atomic


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, texts and a corpus of a new user."""
    folder = tmp_path_factory.mktemp("newcomer")
    save_model(folder / "mistral")
    save_model(folder / "gpt2", "gpt2")
    save_text(folder / "text.txt")
    write_corpus(folder / "corpus", documents=9)
    (folder / "short.txt").write_text("hello there\n")
    (folder / "notes").write_text("no model\n")
    (folder / "empty").mkdir()
    return folder


@pytest.fixture(autouse=True)
def _here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(home / "cache"))
    monkeypatch.chdir(home)


def refused(capsys: pytest.CaptureFixture[str], line: str) -> tuple[int, str]:
    """Exit code and error message."""
    with pytest.raises(SystemExit) as stop:
        main(line.split())
    captured = capsys.readouterr()
    assert captured.out == ""
    message = [words for words in captured.err.splitlines() if words.startswith("fieldlens: ")]
    assert captured.err.splitlines()[-1:] == message
    assert captured.err.count(" runs done, ") <= 1
    return int(stop.value.code or 0), message[0]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # a wrong path
        ("measure nowhere", "does not exist: give a run folder, a Hugging Face folder or id (owner/name), or a .gguf"),
        ("measure corpus/../mistrl", "does not exist: did you mean 'corpus/../mistral'? give a run folder"),
        ("measure notes", "notes is a file but not a .gguf: give a run folder, a Hugging Face folder"),
        ("measure empty", "empty is not a model: it contains neither a config.json nor a run"),
        ("measure mistral --text nowhere.txt", "nowhere.txt is not a file: --text takes a text or JSONL file"),
        ("measure mistral --text text.txt --out notes", "--out must be a folder, but notes is a file"),
        ("evaluate mistral --corpus nowhere.txt", "corpus 'nowhere.txt' does not exist"),
        ("train --corpus nowhere --out runs/x", "allowed: fieldlens, stdlib, or the path of a file or folder"),
        ("train --preset smoke --out notes", "--out must be a folder, but notes is a file"),
        ("runs nowhere", "create runs with fieldlens train --out FOLDER/NAME"),
        ("compare nowhere.json", "nowhere.json does not exist"),
        ("generate mistral --prompt-file nowhere.txt", "--prompt-file takes a text file"),
        ("study nowhere.toml", "built-in studies: demo"),
        ("study paper --corpora nowhere", "--corpora must be a folder, got nowhere"),
        ("study paper", "give --corpora with a folder that contains a file or folder 'code'"),
        ("paper rotary_512 --run --corpora empty", "give --corpora with a folder that contains a file or folder"),
        ("paper rotary_512", "results/paper does not exist: run this in a clone of the repository, or give --re"),
        # a wrong name
        ("train --scheme sandwhich --out runs/x", "did you mean 'sandwich'? allowed: alibi"),
        ("train --scheme sandwich:dim=3 --out runs/x", "did you mean 'dims'? allowed: dims"),
        ("train --preset glanse --out runs/x", "did you mean 'glance'? allowed: glance"),
        ("study dmeo", "did you mean 'demo'? allowed: demo"),
        ("measur mistral", 'Did you mean "measure"?'),
        ("train --preset smok", "unknown preset 'smok': did you mean 'smoke'?"),
        ("train --preset smoke", "--out is missing: give the folder of the run, such as --out runs/smoke"),
        ("measure mistral --device cuda:9", "use --device cpu or auto instead of cuda:9"),
        # too long a length
        ("measure gpt2 --text text.txt --length 500", "exceeds the 64 positions of gpt2: use at most 64"),
        ("measure mistral --text short.txt --length 500", "has 11 tokens; use --length 10 or less, or a longer text"),
        ("evaluate mistral --corpus corpus --lengths 99999", "length 99999 is too long for this text"),
        ("train --preset smoke --corpus corpus --length 9999 --out runs/x", "are needed for length 9999"),
        # a corpus too small
        ("measure mistral --text short.txt", "segments must be at most 9, the number of eligible tokens in this text"),
        ("train --preset smoke --corpus short.txt --out runs/x", "has 1 document, but splitting needs at least 3:"),
        ("train --preset smoke --corpus empty --out runs/x", "is empty: the folder contains no files"),
    ],
)  # fmt: skip
def test_errors_are_one_line_with_advice(
    line: str, expected: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, message = refused(capsys, line)
    assert expected in message
    assert code == 2
    assert not (home / "runs").exists()
    assert not (home / "lens").exists()


def test_outside_the_repository_the_paper_says_where_its_results_are(capsys: pytest.CaptureFixture[str]) -> None:
    main(["paper"])
    message = " ".join(capsys.readouterr().out.split())
    assert message.endswith(
        "results/paper does not exist: run this in a clone of the repository, or give --results FOLDER"
    )


def test_training_prints_an_estimate_first(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main(f"train --preset smoke --corpus corpus --steps 3 --out {tmp_path / 'run'}".split())
    lines = capsys.readouterr().err.splitlines()
    estimates = [line for line in lines if re.fullmatch(r"about \d+ s, [\d.]+ [MG]iB of memory", line)]
    assert len(estimates) == 1
    assert lines.index(estimates[0]) < next(place for place, line in enumerate(lines) if line.startswith("step 3"))


def test_a_folder_without_runs_explains_how_to_create_one(capsys: pytest.CaptureFixture[str]) -> None:
    main(["runs", "empty"])
    assert capsys.readouterr().out == "no runs below empty: create one with fieldlens train --out empty/NAME\n"


def test_an_unreachable_hub_is_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    hosts = []

    def nobody(host: str, *_: Any, **__: Any) -> None:
        hosts.append(host)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", nobody)
    monkeypatch.setattr("fieldlens.models.hub.getproxies", dict)
    code, message = refused(capsys, "measure some-body/no-model")
    assert "there is no folder 'some-body/no-model'; from the Hugging Face hub some-body/no-model cannot" in message
    assert code == 2
    assert len(hosts) <= 2  # no repeated retries
    (tmp_path / "runs" / "first").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert "there is no folder 'runz/first'; did you mean 'runs/first'? " in refused(capsys, "measure runz/first")[1]


@pytest.mark.parametrize(
    "line",
    [
        "train --preset smoke --corpus corpus --steps 2 --out full",
        "measure mistral --text text.txt --length 32 --segments 2 --plain --out full",
        "evaluate mistral --corpus corpus --lengths 8 --segments 2 --out full",
    ],
)
def test_a_full_disk(line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def full(path: Path, *_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(atomic, "write_file", full)
    code, message = refused(capsys, line)
    assert "the disk is full at " in message
    assert "free some space or write elsewhere, then re-run the command (train: with --resume)" in message
    assert code == 4


@pytest.mark.parametrize(
    ("line", "module", "extra"),
    [
        ("train --preset smoke --corpus corpus --track --out runs/x", "torch.utils.tensorboard", "track"),
        ("train --preset smoke --corpus some-body/texts --out runs/x", "datasets", "data"),
        ("study demo --executor ray --out r --runs s", "ray", "ray"),
        ("measure model.gguf --corpus corpus", "gguf", "gguf"),
    ],
)
def test_a_missing_extra_is_named(
    line: str, module: str, extra: str, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (home / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setitem(sys.modules, module, None)
    code, message = refused(capsys, line)
    assert f"pip install 'fieldlens[{extra}]'" in message
    assert code == 2
