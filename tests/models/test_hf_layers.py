"""Layer patterns in transformers: config.json says which layers have windows, and its own caches follow."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

import fieldlens
from fieldlens.models.hf_export import FieldlensForCausalLM
from fieldlens.models.hf_layers import LAYER_KEYS, layer_facts

VOCABULARY = 40
SPECS = [
    "2*rotary:window=6/none/fox:window=4",
    "rotary:sink=learned,window=5/none:logits=ssmax",
    "fox:sink=learned",
    "inkling:extent=7,window=6/cope",
]


def folder(spec: str, path: Path, layers: int = 5) -> fieldlens.Decoder:
    """A small model, saved as a folder, in the default dtype."""
    shape = {"layers": layers, "width": 16, "heads": 2, "vocab_size": VOCABULARY, "init_std": 0.3, "train_length": 16}
    model = fieldlens.Decoder(fieldlens.Config(scheme=spec, **shape)).eval()  # type: ignore[arg-type]
    FieldlensForCausalLM.of(model).save_pretrained(path)
    return model


def test_the_configuration_names_the_layers(tmp_path: Path) -> None:
    folder("2*rotary:window=6/none/alibi:window=4", tmp_path)
    types = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    written, read = json.loads((tmp_path / "config.json").read_text()), AutoConfig.from_pretrained(tmp_path)
    assert written["layer_types"] == read.layer_types == types
    assert written["sliding_window"] == read.sliding_window == 6  # the largest: transformers has one for all layers
    assert written["no_rope_layers"] == [1, 1, 0, 0, 1]
    assert read.to_dict() == AutoConfig.from_pretrained(tmp_path).to_dict()


def test_models_without_windows_say_nothing(tmp_path: Path) -> None:
    folder("rotary", tmp_path)
    assert not set(LAYER_KEYS) & json.loads((tmp_path / "config.json").read_text()).keys()
    assert AutoConfig.from_pretrained(tmp_path).layer_types is None
    assert layer_facts("rotary/none", 2) == {"no_rope_layers": [1, 0]}


def test_keys_that_other_programs_edited_change_nothing(tmp_path: Path) -> None:
    """The scheme decides; the keys are for readers only."""
    model, file = folder("none:window=3/none", tmp_path), tmp_path / "config.json"
    config = json.loads(file.read_text()) | {"layer_types": ["full_attention"] * 5, "sliding_window": 99}
    file.write_text(json.dumps(config))
    ids_BT = torch.randint(VOCABULARY, (1, 12))
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(ids_BT).logits, model(ids_BT))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.usefixtures("float64")
def test_caches_of_transformers_are_exact_and_no_larger_than_windows(spec: str, tmp_path: Path) -> None:
    model, ids_BT = folder(spec, tmp_path), torch.randint(VOCABULARY, (2, 25))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).double().eval()
    theirs = DynamicCache(config=loaded.config)
    for cache in (theirs, loaded.sliding_cache()):
        logits = [loaded(ids_BT[:, :9], past_key_values=cache).logits]
        logits += [loaded(ids_BT[:, at : at + 1], past_key_values=cache).logits for at in range(9, 25)]
        assert (torch.cat(logits, 1) - model(ids_BT)).abs().max() < 1e-12
    kept = [layer.keys.shape[2] for layer in theirs.layers]
    assert kept == [loaded.config.sliding_window - 1 if window else 25 for window in model.windows]


@pytest.mark.parametrize("spec", SPECS)
def test_generate_is_the_argmax_of_the_forward(spec: str, tmp_path: Path) -> None:
    """Greedy and speculative: the second removes tokens from the cache of transformers."""
    model = folder(spec, tmp_path)
    loaded, ids_T = AutoModelForCausalLM.from_pretrained(tmp_path).eval(), torch.randint(1, VOCABULARY, (7,))
    expected = ids_T
    for _ in range(15):
        expected = torch.cat([expected, model(expected[None])[0, -1:].argmax(-1)])
    for options in ({}, {"prompt_lookup_num_tokens": 3}):
        output = loaded.generate(ids_T[None], max_new_tokens=15, do_sample=False, pad_token_id=0, **options)
        assert output[0].tolist() == expected.tolist()
