"""Text, paths, outputs of tokenizers, lists and arrays are accepted wherever token ids are, with the same numbers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from newcomer import save_model
from transformers import BatchEncoding

import fieldlens
from fieldlens.core.errors import BadInput
from fieldlens.data.tokenizer import Coder, find_bos
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.storage.results import read_result

TEXT = "how far back does a language model really look, and how far past its training length can you trust it"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose tokenizer must add a BOS."""
    folder = save_model(tmp_path_factory.mktemp("token-ids") / "mistral")
    config = folder / "tokenizer_config.json"
    settings = json.loads(config.read_text()) if config.exists() else {}
    token = next(iter(json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]))
    config.write_text(json.dumps({**settings, "add_bos_token": True, "bos_token": token}))
    return folder


@pytest.fixture(scope="module")
def model(folder: Path) -> ModelAdapter:
    return fieldlens.load_model(folder)


@pytest.fixture(scope="module")
def ids(folder: Path) -> list[int]:
    return Coder(folder).whole(TEXT)[0].tolist()


def test_a_model_is_described_in_one_line(model: ModelAdapter) -> None:
    assert repr(model).startswith("HFAdapter(mistral, ")
    assert "torch.float32, cpu)" in repr(model)
    assert "\n" not in repr(model)


def test_every_form_of_ids_gives_the_same_receptive_field(model: ModelAdapter, folder: Path, ids: list[int]) -> None:
    bos = find_bos(folder).id
    assert bos is not None
    expected = fieldlens.receptive_field(model, torch.tensor([[bos, *ids]]))
    forms: list[Any] = [
        ids,
        np.array(ids),
        torch.tensor([ids]),
        BatchEncoding({"input_ids": [ids]}),
        {"input_ids": ids},
    ]
    for form in forms:
        assert np.array_equal(fieldlens.receptive_field(model, form, bos=bos).norms_NT, expected.norms_NT)
        assert fieldlens.receptive_field(model, form).length == len(ids) - 1
    field = fieldlens.receptive_field(model, TEXT)  # the tokenizer's own BOS
    assert np.array_equal(field.norms_NT, expected.norms_NT)
    assert field.bos
    assert (field.length, expected.length) == (len(ids) - 1, len(ids))


def test_text_and_paths_give_the_perplexity_of_their_ids(
    model: ModelAdapter, folder: Path, ids: list[int], tmp_path: Path
) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    bos = find_bos(folder).id
    expected = fieldlens.perplexity(model, torch.tensor(ids), [8, 16], 3, bos=bos).table
    for form in (TEXT, path, [TEXT], [path]):
        assert fieldlens.perplexity(model, form, [8, 16], 3).table == expected
    encoded = BatchEncoding({"input_ids": [ids, ids]})
    for documents in (ids, [ids], np.array(ids)):
        assert fieldlens.perplexity(model, documents, [8, 16], 3, bos=bos).table == expected
    pair = fieldlens.perplexity(model, [torch.tensor(ids)] * 2, [8], 5).table
    assert fieldlens.perplexity(model, encoded, [8], 5).table == pair


def test_a_prompt_may_be_text(model: ModelAdapter, folder: Path, ids: list[int]) -> None:
    bos = find_bos(folder).id
    greedy = fieldlens.Sampling(temperature=0)
    expected = fieldlens.generate(model, [[bos, *ids]], 3, sampling=greedy).ids
    assert fieldlens.generate(model, TEXT, 3, sampling=greedy).ids == expected
    assert fieldlens.generate(model, [TEXT], 3, sampling=greedy).ids == expected
    plain = fieldlens.generate(model, [ids], 3, sampling=greedy).ids
    assert fieldlens.generate(model, BatchEncoding({"input_ids": [ids]}), 3, sampling=greedy).ids == plain


def test_what_cannot_be_encoded_is_refused() -> None:
    decoder = fieldlens.Decoder(fieldlens.Config(vocab_size=16, layers=1, width=8, heads=2, train_length=8))
    with pytest.raises(BadInput, match=r"has no tokenizer for text: use fieldlens.load_model"):
        fieldlens.receptive_field(decoder, TEXT)
    with pytest.raises(BadInput, match="has input_ids, got the keys ids"):
        fieldlens.receptive_field(decoder, {"ids": [1, 2]})
    with pytest.raises(BadInput, match="padded token ids are not supported"):
        fieldlens.receptive_field(decoder, {"input_ids": [[1, 2]], "attention_mask": [[0, 1]]})
    with pytest.raises(BadInput, match="token id 99 is outside the vocabulary"):
        fieldlens.receptive_field(decoder, [1, 2, 3], bos=99)


def test_a_receptive_field_advises_and_is_saved(model: ModelAdapter, tmp_path: Path) -> None:
    field = fieldlens.receptive_field(model, TEXT)
    assert any(sentence.startswith("Share of the gradient: 50% in the last ") for sentence in field.advice)
    field.save(tmp_path / "field.json")
    about, arrays = read_result(tmp_path / "field.json")
    assert about["advice"] == field.advice
    assert arrays["norms"].shape == field.norms_NT.shape
    assert fieldlens.ReceptiveField(np.full((1, 4), np.nan)).advice == [
        "No receptive field: the gradient is not finite, zero or below rounding error."
    ]
