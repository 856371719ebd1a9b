"""fieldlens schemes --text: what schemes add to the scores of a text."""

import json
from pathlib import Path

import pytest
import short_training as training
import torch
from matplotlib.image import imread

from fieldlens.cli import main
from fieldlens.training.loop import train
from fieldlens.training.recipe import recipe


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text("the cat and the dog and the cat")
    return path


def test_a_scheme_of_content_is_drawn_for_a_text(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plot = tmp_path / "fox.png"
    main(["schemes", "fox", "--text", str(text), "--plot", str(plot), "--heads", "2", "--head-width", "8", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert "".join(report["tokens"]) == "the·cat·and·the·dog·and·the·cat"
    assert [panel["title"] for panel in report["panels"]] == [f"fox, before training, head {n} of 2" for n in (1, 2)]
    assert all(panel["lowest"] < 0 == panel["highest"] for panel in report["panels"])  # gates only lower scores
    assert imread(plot).std() > 0.1


def test_a_trained_model_is_drawn_with_its_own_tokens(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    words = training.write_corpus(tmp_path / "words")
    train(recipe("smoke", scheme="rotary/fox", corpus=str(words), bpe=300, steps=2), tmp_path / "run")
    torch.set_flush_denormal(False)
    command = ["schemes", "--model", str(tmp_path / "run"), "--text", str(text), "--plot", str(tmp_path / "a.png")]
    capsys.readouterr()
    main([*command, "--layer", "2", "--head", "1", "--length", "9"])
    out = capsys.readouterr().out
    assert "fox, layer 2, head 1 of" in out
    assert out.count(" to 0\n") == 1
    for options, message in (
        (["--layer", "9"], "--layer must be between 1 and"),
        (["--head", "99"], "--head must be between 1 and"),
        (["fox"], "pass schemes or --model, not both: got fox and"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main([*command, *options])
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["fox", "--text", "TEXT"], "--text needs an output file: add --plot FILE.png"),
        (["fox", "--model", "runs/fox", "--plot", "a.png"], "--model needs a text: add --text FILE"),
        (["--text", "TEXT", "--plot", "a.png"], "--text needs a scheme or --model"),
        (["fox", "--text", "TEXT", "--plot", "a.png", "--layer", "2"], "--layer 2 needs --model"),
        (["fox", "--text", "TEXT", "--plot", "a.png", "--length", "1"], "--length must be between 2 and 2,048 with"),
        (["fox", "--text", "gone.txt", "--plot", "a.png"], "gone.txt is not a file"),
    ],
)
def test_errors_say_what_is_missing(
    options: list[str],
    message: str,
    text: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["schemes", *(str(text) if option == "TEXT" else option for option in options)])
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
