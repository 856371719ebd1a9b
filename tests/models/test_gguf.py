"""GGUF files: a tiny Llama, written here with the gguf package, is loaded, evaluated and generates as its source."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from families import build
from short_training import short_runs

from fieldlens.cli import main
from fieldlens.core.errors import BadInput
from fieldlens.data.tokenizer import Bos, find_bos
from fieldlens.models.gguf_metadata import read_metadata, tokenizer_facts
from fieldlens.models.loading import load_model
from fieldlens.models.origin import find_model

gguf = pytest.importorskip("gguf")
pytest.importorskip("accelerate")

END = "<|endoftext|>"
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short_runs(tmp_path_factory.mktemp("gguf"), ("alibi",))


@pytest.fixture(autouse=True)
def _here(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(home / "cache"))
    monkeypatch.chdir(tmp_path)


def tensor_name(name: str) -> str:
    """The name of a weight of Llama in a GGUF file."""
    outside = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in outside:
        return f"{outside[stem]}.weight"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", stem)
    assert match
    return f"blk.{match[1]}.{NAMES[match[2]]}.weight"


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """The rows of a query or key projection in the order of llama.cpp: rotated pairs are neighbours."""
    halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return halves.swapaxes(1, 2).reshape(weight.shape)


def write_gguf(path: Path, model: Any, tokenizer: dict[str, Any], add_bos: bool | None) -> None:
    """Write a Llama of transformers and a byte-level BPE as a GGUF file."""
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)
    vocabulary = sorted(tokenizer["model"]["vocab"].items(), key=lambda pair: pair[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([token for token, _ in vocabulary])
    writer.add_token_types([3 if token == END else 1 for token, _ in vocabulary])
    writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(tokenizer["model"]["vocab"][END])
    writer.add_eos_token_id(tokenizer["model"]["vocab"][END])
    if add_bos is not None:
        writer.add_add_bos_token(add_bos)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.state_dict().items():
        rotated = next((count for part, count in heads.items() if part in name), None)
        value = weight if rotated is None else interleaved(weight, rotated)
        writer.add_tensor(tensor_name(name), value.float().contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def llama() -> Any:
    return build("llama", vocab_size=512, tie_word_embeddings=False)


@pytest.fixture(scope="module")
def files(home: Path, llama: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[bool | None, Path]:
    """The same model, with each answer to whether BOS is added."""
    tokenizer = json.loads((home / "alibi" / "model" / "tokenizer.json").read_text())
    folder = tmp_path_factory.mktemp("files")
    paths = {True: folder / "adds.gguf", False: folder / "not.gguf", None: folder / "silent.gguf"}
    for add_bos, path in paths.items():
        write_gguf(path, llama, tokenizer, add_bos)
    return paths


def test_a_gguf_file_gives_the_logits_of_its_source(files: dict[bool | None, Path], llama: Any) -> None:
    ids_BT = torch.randint(512, (2, 20), generator=torch.Generator().manual_seed(0))
    adapter = load_model(files[True])
    with torch.no_grad():
        logits_BTV = torch.cat(list(adapter.logits(ids_BT, 20, None, 0)), 1)
        assert torch.allclose(logits_BTV, llama.float()(ids_BT).logits, atol=1e-4)
    assert adapter.train_length == 64


def test_a_file_is_parsed_once(files: dict[bool | None, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    names, calls = gguf.get_tensor_name_map, list[str]()

    class CountedReader(gguf.GGUFReader):
        def __init__(self, *arguments: Any) -> None:
            calls.append("file")
            super().__init__(*arguments)

    def counted_names(architecture: Any, layers: int) -> Any:
        calls.append("names")
        return names(architecture, layers)

    monkeypatch.setattr(gguf, "GGUFReader", CountedReader)
    monkeypatch.setattr(gguf, "get_tensor_name_map", counted_names)
    load_model(files[True])
    assert sorted(calls) == ["file", "names"]
    assert (gguf.GGUFReader, gguf.get_tensor_name_map) == (CountedReader, counted_names)


@pytest.mark.parametrize(
    ("add_bos", "bos", "source"),
    [(True, 0, "add_bos_token of GGUF"), (False, None, "add_bos_token of GGUF"), (None, None, "tokenizer.json")],
)
def test_what_the_file_says_about_bos_wins(
    files: dict[bool | None, Path],
    home: Path,
    capsys: pytest.CaptureFixture[str],
    add_bos: bool | None,
    bos: int | None,
    source: str,
) -> None:
    words = [str(files[add_bos]), "--corpus", str(home / "corpus"), "--lengths", "8,32", "--segments", "9", "--json"]
    main(["evaluate", *words, "--threads", "1"])
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["bos"], result["bos_source"]) == (bos, source)
    assert find_bos(find_model(str(files[add_bos])).tokenizer) == Bos(bos, source)


def test_a_gguf_file_is_measured_and_generates(
    files: dict[bool | None, Path], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(files[True]), "--corpus", str(home / "corpus"), "--length", "32", "--segments", "2", "--threads", "1"]
    main(["measure", *words, "--plain", "--json"])
    (result,) = json.loads(capsys.readouterr().out)
    assert (result["asked"]["bos"], result["bos_source"]) == (0, "add_bos_token of GGUF")
    main(["generate", str(files[True]), "--prompt", "abc", "--tokens", "4", "--threads", "1"])
    assert capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "bos"),
    [
        ({}, Bos(None, "tokenizer.json")),
        ({"add_bos_token": True, "bos_token": END}, Bos(0, "add_bos_token of tokenizer_config.json")),
        ({"add_bos_token": True, "bos_token": {"content": END}}, Bos(0, "add_bos_token of tokenizer_config.json")),
        ({"add_bos_token": False, "bos_token": END}, Bos(None, "add_bos_token of tokenizer_config.json")),
        ({"add_bos_token": True}, Bos(None, "tokenizer.json")),  # it names no token
    ],
)
def test_tokenizer_config_says_whether_bos_is_added(
    home: Path, tmp_path: Path, config: dict[str, Any], bos: Bos
) -> None:
    (tmp_path / "tokenizer.json").write_text((home / "alibi" / "model" / "tokenizer.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert find_bos(tmp_path) == bos


def test_a_missing_package_is_named_before_any_text_is_read(
    files: dict[bool | None, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fieldlens.models.hub.find_spec", lambda name: None if name == "accelerate" else object())
    monkeypatch.setattr("fieldlens.models.texts.read_text", lambda *_, **__: 1 / 0)
    with pytest.raises(SystemExit, match="2"):
        main(["measure", str(files[True])])
    assert (
        "requires the gguf extra (accelerate not installed): pip install 'fieldlens[gguf]'" in capsys.readouterr().err
    )


def test_metadata_is_that_of_the_gguf_package(files: dict[bool | None, Path]) -> None:
    fields = gguf.GGUFReader(files[True]).fields
    metadata = read_metadata(files[True])
    assert set(metadata) == {key for key in fields if not key.startswith("GGUF.")}
    for key, value in metadata.items():
        expected = fields[key].contents()
        assert value == (pytest.approx(expected) if isinstance(value, float) else expected), key
    assert tokenizer_facts(files[None]) == {}


def test_a_file_that_is_cut_off_or_something_else_is_refused(files: dict[bool | None, Path], tmp_path: Path) -> None:
    content, path = files[True].read_bytes(), tmp_path / "cut.gguf"
    for size in (0, 3, 10, 40, 300, 2000):
        path.write_bytes(content[:size])
        with pytest.raises(BadInput, match=r"is damaged|is not a GGUF file"):
            read_metadata(path)
    path.write_bytes(content[:4] + (9).to_bytes(4, "little") + content[8:])
    with pytest.raises(BadInput, match="has GGUF version 9"):
        read_metadata(path)
