"""Sizes that cannot fit in memory are refused before anything is allocated."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
import torch
from newcomer import save_model, save_text

from fieldlens import cli
from fieldlens.core.errors import OutOfMemory
from fieldlens.models import size
from fieldlens.models.size import check_config, check_memory, check_weights


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[Any, str]:
    with pytest.raises(SystemExit) as stop:
        cli.main(list(words))
    return stop.value.code, capsys.readouterr().err


def test_what_does_not_fit_is_refused_with_both_sizes() -> None:
    check_memory("a model", 2.0**20, torch.device("cpu"), "take fewer layers")
    with pytest.raises(OutOfMemory, match=r"a model needs at least .*iB of memory, .*iB can be used: take fewer"):
        check_memory("a model", 2.0**60, torch.device("cpu"), "take fewer layers")


@pytest.mark.parametrize(
    "words",
    [
        "train --preset smoke --layers 100000000 --out run",
        "train --preset smoke --width 100000000 --heads 100 --out run",
        "train --preset smoke --batch 100000000 --out run",
        "train --preset smoke --length 10000000000 --out run",
        "schemes --plot plot.png --length 16777216",
        "schemes sandwich --plot plot.png --length 1000000 --heatmap",
    ],
)
def test_absurd_sizes_are_refused_from_an_estimate(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("fieldlens.core.memory.free_memory", lambda _: 2.0**33)
    code, err = run(capsys, *words.split())
    assert code == 4
    assert err.startswith("fieldlens: ")
    assert err.count("\n") == 1
    assert "iB" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size"])
def test_a_configuration_of_absurd_size_is_refused(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    model, text = save_model(tmp_path / "model"), save_text(tmp_path / "text")
    capsys.readouterr()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {key: 10**12}))
    code, err = run(capsys, "evaluate", str(model), "--text", str(text), "--lengths", "8", "--out", str(tmp_path / "o"))
    assert code == 4
    assert "1,000,000,000,000" in err
    assert err.count("\n") == 1


def test_the_text_part_of_a_configuration_counts_and_other_values_do_not() -> None:
    check_config("m", {"num_hidden_layers": 12, "hidden_size": 768, "vocab_size": 50257}, torch.float32)
    check_config("m", {"num_hidden_layers": "many", "hidden_size": None, "vocab_size": [1]}, torch.float32)
    with pytest.raises(OutOfMemory, match=r"check its config\.json"):
        check_config("m", {"text_config": {"n_layer": 10**9}}, torch.float32)


def test_weights_that_do_not_fit_are_refused_by_their_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save(shape: Any) -> None:
        header = json.dumps(
            {"__metadata__": {}, "w": {"dtype": "F32", "shape": shape, "data_offsets": [0, 4]}}
        ).encode()
        (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)

    monkeypatch.setattr(size, "total_memory", lambda _: 1e6)
    save([500, 499])
    check_weights("m", tmp_path, torch.float32)
    with pytest.raises(OutOfMemory, match="249,500 weights"):
        check_weights("m", tmp_path, torch.float64)
    for odd in ("x", [None], {}, [[]]):  # loading reports what is wrong with it
        save(odd)
        check_weights("m", tmp_path, torch.float32)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 20)
    check_weights("m", tmp_path, torch.float32)
