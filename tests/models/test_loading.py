"""Models by name: what can be loaded, and what is refused before it does harm."""

import json
import shutil
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest
import safetensors.torch
import torch
from families import build
from transformers import BartConfig, BartForCausalLM, BartForConditionalGeneration

from fieldlens.core.errors import BadInput
from fieldlens.data.tokenizer import bos_token_id
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.models.loading import load
from fieldlens.models.origin import Origin, find_model, name_of, unique_names
from fieldlens.storage.sealed import write_sealed

CPU, SINGLE = torch.device("cpu"), torch.float32
GOLDEN = Path(__file__).parents[1] / "golden" / "model"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    build("llama").save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


def test_our_folders_and_theirs(llama: Path) -> None:
    ours, theirs = (load(find_model(str(path)), CPU, SINGLE) for path in (GOLDEN, llama))
    assert isinstance(ours.adapter, DecoderAdapter)
    assert isinstance(theirs.adapter, HFAdapter)
    assert ours.about["scheme"] == "sandwich"
    assert ours.about["train_length"] == 16
    assert theirs.about["scheme"] is None
    assert theirs.about["name"] == "llama"
    assert load(find_model(str(llama)), CPU, SINGLE, train_length=77).adapter.train_length == 77
    assert load(find_model(str(GOLDEN)), CPU, torch.float64).adapter.dtype == torch.float64


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("llama", "llama"),
        ("first/model", "first"),
        ("first/Checkpoint", "first"),
        ("first/checkpoints/best", "first"),
        ("first/checkpoint-500", "checkpoint-500"),
        ("first/models", "models"),
    ],
)
def test_a_folder_whose_name_says_nothing_goes_by_its_parents(place: str, name: str, tmp_path: Path) -> None:
    assert name_of(tmp_path / place) == name


def test_a_model_in_the_current_folder_has_a_name(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(llama)
    assert find_model(".").name == "llama"
    assert name_of(Path("/model")) == "model"


@pytest.mark.parametrize(
    ("places", "names"),
    [
        (["a/llama", "b/gpt2"], ["llama", "gpt2"]),
        (["a/llama", "b"], ["llama (llama)", "llama (b)"]),
        (["a/x/model", "b/x/model", "gpt2"], ["x (a/x/model)", "x (b/x/model)", "gpt2"]),
        (["x/model", "a/x/model"], ["x (x/model)", "x (a/x/model)"]),
        (["a/x", "a/x"], ["x (a/x)", "x (a/x)"]),
    ],
)
def test_models_that_share_a_name_are_told_apart_by_the_end_of_their_paths(places: list[str], names: list[str]) -> None:
    shared = [name.partition(" ")[0] for name in names]
    origins = [Origin(place, name, Path(place)) for place, name in zip(places, shared, strict=True)]
    assert unique_names(origins) == names


def test_a_link_goes_by_its_own_name(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(llama)
    assert find_model(str(tmp_path / "linked")).name == "linked"


def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    for text in ("nothing-here", str(tmp_path / "a" / "b"), "model.gguf"):
        with pytest.raises(BadInput, match="does not exist: give a run folder, a Hugging Face folder or id"):
            find_model(text)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"empty is not a model: it contains neither a config\.json nor a run"):
        find_model(str(tmp_path / "empty"))


def test_a_hub_id_that_cannot_be_had_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        BadInput,
        match=r"^there is no folder 'some-body/no-model'; from the .* cannot be loaded: .*",
    ):
        load(find_model("some-body/no-model"), CPU, SINGLE)


def test_a_run_that_is_not_finished_has_no_model(tmp_path: Path) -> None:
    write_sealed(tmp_path / "status.json", {"state": "stopped"})
    recipe = {"scheme": "alibi", "corpus": "stdlib", "seed": 1}
    write_sealed(tmp_path / "config.json", {"recipe": recipe, "experiment": {}, "address": "x"})
    with pytest.raises(BadInput, match=r"has no model yet \(state: stopped\): finish the run with fieldlens train"):
        find_model(str(tmp_path))


def test_a_run_folder_that_is_none_of_ours_is_one_line(tmp_path: Path) -> None:
    for status, config in (("{}", "{}"), ("[]", "{}"), ('{"state": "finished"}', '{"recipe": 3}')):
        (tmp_path / "status.json").write_text(status)
        (tmp_path / "config.json").write_text(config)
        with pytest.raises(BadInput, match=r"is not|has no seal"):
            find_model(str(tmp_path))


def _change(folder: Path, name: str, value: torch.Tensor | None) -> None:
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    if value is None:
        del weights[name]
    else:
        weights[name] = value
    safetensors.torch.save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def test_missing_and_broken_weights_are_refused(llama: Path) -> None:
    name = "model.layers.1.mlp.up_proj.weight"
    _change(llama, name, torch.full((64, 32), torch.nan))
    with pytest.raises(BadInput, match=rf"weights are not finite: {name}"):
        load(find_model(str(llama)), CPU, SINGLE)
    _change(llama, name, None)
    with pytest.raises(BadInput, match=rf"the weights do not fit the configuration, missing keys: \['{name}'\]"):
        load(find_model(str(llama)), CPU, SINGLE)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    build("llama").save_pretrained(tmp_path / "m", max_shard_size="30KB")
    shards = sorted((tmp_path / "m").glob("*.safetensors"))
    assert len(shards) > 1
    shards[0].unlink()
    with pytest.raises(BadInput, match="cannot be loaded"):
        load(find_model(str(tmp_path / "m")), CPU, SINGLE)


def test_nothing_in_a_folder_is_executed(llama: Path) -> None:
    config = json.loads((llama / "config.json").read_text())
    config |= {"model_type": "evil", "auto_map": dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "evil.Evil")}
    (llama / "config.json").write_text(json.dumps(config))
    mark = llama / "executed"
    (llama / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Evil: pass\n")
    with pytest.raises(BadInput, match="cannot be loaded"):
        load(find_model(str(llama)), CPU, SINGLE)
    assert not mark.exists()


def test_pickled_weights_are_not_opened(llama: Path) -> None:
    (llama / "model.safetensors").unlink()
    torch.save({"x": torch.zeros(1)}, llama / "pytorch_model.bin")
    with pytest.raises(BadInput, match=r"has only pickled weights, which are not loaded: save it with save_pre"):
        find_model(str(llama))


def test_pickled_weights_beside_others_are_left_alone(llama: Path) -> None:
    (llama / "pytorch_model.bin").write_bytes(b"no pickle")
    assert load(find_model(str(llama)), CPU, SINGLE).about["name"] == "llama"


def test_an_adapter_is_not_passed_by(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (llama / "adapter_config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(
        BadInput, match=r"is a LoRA adapter: install peft, or merge it into its base model \(merge_and_unload"
    ):
        find_model(str(llama))
    peft = ModuleType("peft")
    peft.__spec__ = ModuleSpec("peft", None)
    monkeypatch.setitem(sys.modules, "peft", peft)
    assert find_model(str(llama)).name == "llama"  # transformers applies it
    (llama / "config.json").unlink()
    with pytest.raises(BadInput, match=r"is a LoRA adapter: merge it into its base model \(merge_and_unload\)"):
        find_model(str(llama))


def test_hostile_configurations_are_one_line(llama: Path) -> None:
    for config in ("{", "[]", '{"model_type": 7}', '{"model_type": "llama", "hidden_size": -3}'):
        (llama / "config.json").write_text(config)
        with pytest.raises(BadInput, match="cannot be loaded"):
            load(find_model(str(llama)), CPU, SINGLE)


def test_a_model_that_is_not_causal_is_refused(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "bert", vocab_size=97, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        initializer_range=0.3,
    )  # fmt: skip
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(BadInput, match="bert is not causal"):
        load(find_model(str(tmp_path / "bert")), CPU, SINGLE)


def test_a_decoder_is_not_run_without_its_encoder(tmp_path: Path) -> None:
    shape = {"vocab_size": 60, "d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2}
    config = BartConfig(**shape, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16)
    BartForConditionalGeneration(config).save_pretrained(tmp_path / "both")
    BartForCausalLM(config).save_pretrained(tmp_path / "alone")
    with pytest.raises(BadInput, match="is an encoder-decoder: a causal language model is needed"):
        load(find_model(str(tmp_path / "both")), CPU, SINGLE)
    assert load(find_model(str(tmp_path / "alone")), CPU, SINGLE).about["kind"] == "bart"


def test_a_folder_without_a_tokenizer_says_so(llama: Path) -> None:
    with pytest.raises(BadInput, match=r"has no tokenizer: put its tokenizer\.json beside the weights"):
        _ = find_model(str(llama)).tokenizer


def test_a_slow_tokenizer_is_converted_once(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import GPT2Tokenizer

    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    (llama / "vocab.json").write_text(json.dumps({"a": 0, "b": 1, "ab": 2, "<|endoftext|>": 3}))
    (llama / "merges.txt").write_text("#version: 0.2\na b\n")
    (llama / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    assert GPT2Tokenizer
    folder = find_model(str(llama)).tokenizer
    assert (folder / "tokenizer.json").is_file()
    assert find_model(str(llama)).tokenizer == folder


def test_a_beginning_that_the_tokenizer_adds_is_found(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, processors

    tokenizer = Tokenizer(models.BPE({"a": 0, "<s>": 1, "</s>": 2}, []))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert bos_token_id(tmp_path) is None
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert bos_token_id(tmp_path) == 1


def test_a_copy_is_the_same_model(llama: Path, tmp_path: Path) -> None:
    shutil.copytree(llama, tmp_path / "copy")
    one, other = (load(find_model(str(path)), CPU, SINGLE).about for path in (llama, tmp_path / "copy"))
    assert one["weights"] == other["weights"]
