"""Model folders are verified however they are opened."""

import random
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from fieldlens import Config, Decoder, load_model
from fieldlens.core.errors import BadInput
from fieldlens.models.hf_export import FieldlensForCausalLM, folder_files
from fieldlens.models.loading import load
from fieldlens.models.model_folder import verify_model_folder
from fieldlens.models.origin import find_model
from fieldlens.storage.folders import MANIFEST, write_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder as training writes it."""
    decoder = Decoder(Config(scheme="alibi", layers=2, width=32, heads=4, vocab_size=60, train_length=16))
    write_folder(tmp_path / "model", folder_files(decoder), {"address": "x"})
    return tmp_path / "model"


def flip(path: Path, generator: random.Random) -> None:
    data = bytearray(path.read_bytes())
    data[generator.randrange(len(data))] ^= 1 << generator.randrange(8)
    path.write_bytes(data)


def test_an_intact_folder_loads(folder: Path) -> None:
    assert verify_model_folder(folder)
    assert load_model(folder).train_length == 16
    assert AutoModelForCausalLM.from_pretrained(folder).config.vocab_size == 60


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_every_flipped_bit_is_noticed(folder: Path, name: str) -> None:
    generator, original = random.Random(1), (folder / name).read_bytes()
    for _ in range(20):
        flip(folder / name, generator)
        with pytest.raises(BadInput, match=f"is damaged .*{name}"):
            verify_model_folder(folder)
        (folder / name).write_bytes(original)


def test_an_altered_weight_is_refused_however_it_is_opened(folder: Path) -> None:
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-5] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    with pytest.raises(BadInput, match="is damaged"):
        load_model(folder)
    with pytest.raises(BadInput, match="is damaged"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_folder_without_a_manifest_is_not_verified(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    assert not verify_model_folder(folder)
    assert load_model(folder).vocab_size == 60
    with pytest.raises(BadInput, match="is damaged"):
        verify_model_folder(folder, required=True)


@pytest.mark.parametrize("has_manifest", [True, False])
def test_a_folder_that_cannot_be_verified_is_named_once(folder: Path, has_manifest: bool) -> None:
    if not has_manifest:
        (folder / MANIFEST).unlink()
    notes: list[str] = []
    load(find_model(str(folder)), torch.device("cpu"), torch.float32, on_note=notes.append)
    expected = f"{folder} has no manifest.json of fieldlens: its files cannot be verified"
    assert notes == ([] if has_manifest else [expected])


def test_a_manifest_of_somebody_else_is_left_alone(folder: Path) -> None:
    (folder / MANIFEST).write_text('{"files": []}')
    assert not verify_model_folder(folder)


def test_saving_again_removes_the_manifest(folder: Path) -> None:
    model = FieldlensForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.decoder.embedding.weight.add_(1)
    model.save_pretrained(folder)
    assert not (folder / MANIFEST).exists()
    assert FieldlensForCausalLM.from_pretrained(folder).decoder.embedding.weight.mean() > 0.5


def test_a_folder_of_version_0_1_loads(folder: Path) -> None:
    (folder / MANIFEST).unlink()
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(config.replace('"vocab_size"', '"vocabulary"'))
    assert load_model(folder).vocab_size == 60


def test_every_flipped_bit_of_the_manifest_is_noticed(folder: Path) -> None:
    manifest = folder / "manifest.json"
    whole = manifest.read_bytes()
    for bit in range(8 * len(whole)):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        manifest.write_bytes(altered)
        with pytest.raises(BadInput, match="is damaged"):
            verify_model_folder(folder)
