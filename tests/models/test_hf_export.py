"""Model folders in transformers: round trips, generation, and invalid input."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

import fieldlens
from fieldlens import schemes
from fieldlens.core.errors import BadInput
from fieldlens.models.hf_export import FieldlensForCausalLM, folder_files
from fieldlens.schemes import base

pytestmark = pytest.mark.filterwarnings("ignore:.*generation flags.*")


def decoder(spec: str, **changes: object) -> fieldlens.Decoder:
    shape = {"layers": 2, "width": 32, "heads": 4, "vocab_size": 60, "init_std": 0.2, "train_length": 16, **changes}
    return fieldlens.Decoder(fieldlens.Config(scheme=spec, **shape)).eval()  # type: ignore[arg-type]


def save(model: fieldlens.Decoder, folder: Path) -> Path:
    FieldlensForCausalLM.of(model).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("tied", [False, True])
def test_folder_round_trips_bit_for_bit(every_spec: str, tied: bool, tmp_path: Path) -> None:
    model = decoder(every_spec, window=7, tied=tied)
    folder = save(model, tmp_path / "first")
    loaded = AutoModelForCausalLM.from_pretrained(folder).eval()
    assert AutoConfig.from_pretrained(folder).shape() == model.config
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), loaded.decoder.parameters(), strict=True))
    assert (loaded.decoder.head.weight is loaded.decoder.embedding.weight) == tied
    ids = torch.randint(60, (2, 30))
    assert torch.equal(loaded(ids).logits, model(ids))
    loaded.save_pretrained(tmp_path / "second")
    for file in ("config.json", "model.safetensors"):
        assert (tmp_path / "second" / file).read_bytes() == (folder / file).read_bytes()
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}


class Keeper(schemes.Scheme):
    """bias(Δ) = -slope·Δ, from an attribute (plain), a non-persistent (fleeting) or a persistent (kept) buffer."""

    def __init__(self, heads: int, head_width: int, *, kind: str = "plain") -> None:
        super().__init__(heads, head_width)
        slopes_H = torch.arange(1.0, heads + 1)
        if kind == "plain":
            self.slopes_H = slopes_H
        else:
            self.register_buffer("slopes_H", slopes_H, persistent=kind == "kept")

    def bias(self, distances_N: Tensor) -> Tensor:
        return -schemes.widest_float(self.slopes_H)[:, None] * distances_N


@pytest.mark.parametrize("kind", ["plain", "fleeting", "kept"])
def test_a_scheme_may_keep_tables(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keeper, "name", "keeper", raising=False)
    monkeypatch.setitem(base.REGISTERED, "keeper", Keeper)
    model, ids = decoder(f"keeper:kind={kind}"), torch.randint(60, (2, 30))
    if kind == "kept":
        model.scheme.slopes_H *= 2
    tmp_path.joinpath("written").mkdir()
    for name, content in folder_files(model).items():
        tmp_path.joinpath("written", name).write_bytes(content)
    for folder in (save(model, tmp_path / "saved"), tmp_path / "written"):
        assert torch.equal(AutoModelForCausalLM.from_pretrained(folder)(ids).logits, model(ids))


def greedy(model: fieldlens.Decoder, ids: torch.Tensor, tokens: int) -> torch.Tensor:
    for _ in range(tokens):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    return ids


@pytest.mark.parametrize(
    "options", [{}, {"use_cache": False}, {"cache_implementation": "static", "disable_compile": True}]
)
@pytest.mark.parametrize("window", [None, 5])
def test_generate_is_the_greedy_loop(every_spec: str, window: int | None, options: dict[str, object]) -> None:
    model = decoder(every_spec, window=window)
    if not model.scheme.exact_with_cache and options.get("use_cache", True):
        pytest.skip("cached keys keep the angles of a shorter text")
    ids = torch.randint(1, 60, (2, 9))
    output = FieldlensForCausalLM.of(model).generate(ids, max_new_tokens=12, do_sample=False, pad_token_id=0, **options)
    assert torch.equal(output, greedy(model, ids, 12))


@pytest.mark.parametrize("window", [None, 5])
def test_padding_on_the_left_changes_nothing(every_spec: str, window: int | None) -> None:
    model = decoder(every_spec, window=window)
    prompts = [torch.randint(1, 60, (1, length)) for length in (9, 4)]
    padded = torch.zeros(2, 9, dtype=torch.long)
    padded[0], padded[1, 5:] = prompts[0], prompts[1]
    wrapped = FieldlensForCausalLM.of(model)
    mask, options = (padded > 0).long(), {"do_sample": False, "pad_token_id": 0}
    options["use_cache"] = model.scheme.exact_with_cache
    output = wrapped.generate(padded, attention_mask=mask, max_new_tokens=10, **options)
    for row, prompt in zip(output, prompts, strict=True):
        alone = greedy(model, prompt, 10)[0]
        assert row[-len(alone) :].tolist() == alone.tolist()


@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"num_beams": 2}])
def test_padding_on_the_right_says_where_to_pad(options: dict[str, Any]) -> None:
    padded = torch.randint(1, 60, (2, 9))
    padded[1, 6:] = 0
    model = FieldlensForCausalLM.of(decoder("sandwich"))
    with pytest.raises(BadInput, match="pad on the left"):
        model.generate(padded, attention_mask=(padded > 0).long(), max_new_tokens=3, pad_token_id=0, **options)


@pytest.mark.parametrize("hole", [slice(5, 9), slice(2, 4)])
def test_padding_elsewhere_is_ignored(every_spec: str, hole: slice) -> None:
    model, ids = decoder(every_spec), torch.randint(1, 60, (1, 9))
    mask = torch.ones(1, 9, dtype=torch.long)
    mask[:, hole] = 0
    kept = mask[0].bool()
    logits = FieldlensForCausalLM.of(model)(ids, attention_mask=mask).logits
    assert (logits[:, kept] - model(ids[:, kept])).abs().max() < 1e-5


def test_beams_reorder_the_cache() -> None:
    wrapped = FieldlensForCausalLM.of(decoder("sandwich"))
    ids = torch.randint(1, 60, (2, 9))
    options = {"max_new_tokens": 8, "num_beams": 3, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(wrapped.generate(ids, **options), wrapped.generate(ids, use_cache=False, **options))


def test_loss_and_kept_logits() -> None:
    model = decoder("alibi")
    wrapped, ids = FieldlensForCausalLM.of(model), torch.randint(60, (2, 9))
    expected = torch.nn.functional.cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    assert float(wrapped(ids, labels=ids).loss.detach()) == pytest.approx(float(expected.detach()), rel=1e-6)
    torch.testing.assert_close(
        wrapped(ids, logits_to_keep=1).logits, model(ids)[:, -1:]
    )  # matrix products of another shape round differently
    assert torch.equal(wrapped(inputs_embeds=model.embed(ids)).logits, model(ids))


@pytest.mark.parametrize("with_cache", [False, True])
@pytest.mark.parametrize("window", [None, 3])
def test_recomputing_changes_no_gradient(window: int | None, with_cache: bool) -> None:
    """`gradient_checkpointing_enable`: blocks run twice with the same gradients, but only once with a cache."""
    wrapped, ids = FieldlensForCausalLM.of(decoder("t5", window=window)), torch.randint(60, (2, 9))
    runs: list[int] = []
    wrapped.decoder.blocks[0].register_forward_pre_hook(lambda *_: runs.append(1))

    def gradients() -> list[torch.Tensor]:
        wrapped.zero_grad()
        cache = {"past_key_values": wrapped.sliding_cache()} if with_cache else {}
        wrapped(ids, labels=ids, **cache).loss.backward()
        return [parameter.grad.clone() for parameter in wrapped.parameters()]  # type: ignore[union-attr]

    plain = gradients()
    assert len(runs) == 1
    getattr(wrapped, "activation_checkpointing_enable", wrapped.gradient_checkpointing_enable)()  # the newer name
    assert all(map(torch.equal, gradients(), plain))
    assert len(runs) == (2 if with_cache else 3)
    getattr(wrapped, "activation_checkpointing_disable", wrapped.gradient_checkpointing_disable)()
    assert wrapped(ids).past_key_values is not None


def test_position_ids_are_honoured() -> None:
    model, ids = decoder("sinusoidal"), torch.randint(60, (1, 9))
    expected = model(ids, positions=torch.arange(5, 14))
    wrapped, position_ids = FieldlensForCausalLM.of(model), torch.arange(5, 14)[None]
    assert torch.equal(wrapped(ids, position_ids=position_ids).logits, expected)
    masked = wrapped(ids, position_ids=position_ids, attention_mask=torch.ones(1, 9))
    assert torch.equal(masked.logits, expected)
    cache = wrapped(ids, use_cache=True).past_key_values
    with pytest.raises(BadInput, match="position_ids must equal the positions counted from attention_mask"):
        wrapped(ids[:, :1], position_ids=torch.tensor([[3]]), past_key_values=cache)


@pytest.mark.parametrize("positions", [[0, 1, 2, 0, 1, 2], [0, 1, 1, 2, 3, 4]])
@pytest.mark.parametrize("with_cache", [False, True])
def test_several_texts_in_one_row_are_rejected(positions: list[int], with_cache: bool) -> None:
    ids = torch.randint(60, (1, 6))
    with pytest.raises(BadInput, match="position_ids must increase within a row"):
        FieldlensForCausalLM.of(decoder("alibi"))(ids, position_ids=torch.tensor([positions]), use_cache=with_cache)


def test_any_nonzero_mask_value_is_a_token() -> None:
    wrapped, ids = FieldlensForCausalLM.of(decoder("sinusoidal")), torch.randint(60, (1, 6))
    plain, numbered = torch.tensor([[0, 0, 1, 1, 1, 1]]), torch.tensor([[0, 0, 3, 3, 2, 2]])
    logits = [wrapped(ids, attention_mask=mask).logits[:, 2:] for mask in (plain, numbered)]
    assert torch.equal(*logits)


def test_tokenizer_files_join_a_model_folder(tmp_path: Path) -> None:
    """The files of a tokenizer and no others, and the end-of-text token."""
    for name in ("special_tokens_map.json", "merges.txt", "adapter_config.json", "config.json"):
        (tmp_path / name).write_text("{}")
    Tokenizer(models.WordLevel({"a": 0, "<|endoftext|>": 1}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    files = folder_files(decoder("none"), tmp_path)
    assert sorted(files) == [
        "config.json", "generation_config.json", "merges.txt", "model.safetensors", "special_tokens_map.json",
        "tokenizer.json",
    ]  # fmt: skip
    (tmp_path / "model").mkdir()
    for name, content in files.items():
        (tmp_path / "model" / name).write_bytes(content)
    settings = AutoModelForCausalLM.from_pretrained(tmp_path / "model").generation_config
    assert (settings.eos_token_id, settings.pad_token_id) == (1, 1)


def test_learned_schemes_are_projected_in_any_training_loop() -> None:
    """KERPLE's parameters must stay positive; two forward passes may precede one backward pass."""
    wrapped, ids = FieldlensForCausalLM.of(decoder("kerple")).train(), torch.randint(60, (2, 9))
    optimiser = torch.optim.SGD(wrapped.parameters(), 0.1)
    with torch.no_grad():
        wrapped.decoder.scheme.a_H.fill_(-1)
    for _ in range(2):
        (wrapped(ids, labels=ids).loss + wrapped(ids, labels=ids).loss).backward()
        assert (wrapped.decoder.scheme.a_H >= 0.01).all()
        optimiser.step()


def test_hidden_states_of_every_layer_can_be_returned() -> None:
    model, ids = decoder("sinusoidal"), torch.randint(60, (2, 9))
    wrapped, outputs = FieldlensForCausalLM.of(model), []
    for block in model.blocks:
        block.register_forward_hook(lambda block, inputs, output: outputs.append(output))
    states = wrapped(ids, output_hidden_states=True).hidden_states
    assert torch.equal(states[0], model.embed(ids) + model.scheme.embedding(torch.arange(9)).float())
    assert torch.equal(states[1], outputs[0])
    assert torch.equal(model.head(states[2]), model(ids))
    assert wrapped(ids).hidden_states is None
    with pytest.raises(BadInput, match="output_attentions is not supported"):
        wrapped(ids, output_attentions=True)


def test_outputs_may_be_a_plain_tuple() -> None:
    model, ids = decoder("none"), torch.randint(60, (2, 9))
    logits, _ = FieldlensForCausalLM.of(model)(ids, return_dict=False)
    assert torch.equal(logits, model(ids))


def test_a_folder_loads_with_attn_implementation(tmp_path: Path) -> None:
    model, ids = decoder("alibi"), torch.randint(60, (2, 9))
    folder = save(model, tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="sdpa")
    assert torch.equal(loaded(ids).logits, model(ids))


def test_weights_offloaded_to_disk_are_rejected(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    folder = save(decoder("alibi"), tmp_path)
    with pytest.raises(BadInput, match="weights offloaded to disk are not supported"):
        AutoModelForCausalLM.from_pretrained(folder, device_map={"": "disk"}, offload_folder=tmp_path / "offload")


def test_a_cache_filled_in_inference_mode_can_be_extended() -> None:
    wrapped, ids = FieldlensForCausalLM.of(decoder("alibi", window=5)), torch.randint(60, (1, 9))
    with torch.inference_mode():
        cache = wrapped(ids[:, :6]).past_key_values
    with torch.no_grad():
        rest = [wrapped(ids[:, at : at + 1], past_key_values=cache).logits for at in range(6, 9)]
        assert (torch.cat(rest, 1) - wrapped(ids).logits[:, 6:]).abs().max() < 1e-5


def test_rows_of_a_cache_can_be_repeated_and_selected() -> None:
    wrapped, ids = FieldlensForCausalLM.of(decoder("alibi")), torch.randint(60, (2, 9))
    with torch.no_grad():
        cache = wrapped(ids[:, :8]).past_key_values
        cache.batch_repeat_interleave(2)
        cache.batch_select_indices(torch.tensor([3, 0]))
        last = wrapped(ids[[1, 0], 8:], past_key_values=cache).logits
        assert (last - wrapped(ids[[1, 0]]).logits[:, 8:]).abs().max() < 1e-5


def test_a_mask_of_wrong_shape_is_rejected() -> None:
    with pytest.raises(BadInput, match=r"attention_mask must have shape \(batch, 9\), got \(1, 5\)"):
        FieldlensForCausalLM.of(decoder("none"))(torch.zeros(1, 9, dtype=torch.long), attention_mask=torch.ones(1, 5))


def damage(folder: Path, change: object) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)  # type: ignore[operator]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda weights: weights.pop("decoder.norm.weight"), "missing keys: .*decoder.norm.weight"),
        (lambda weights: weights.update({"decoder.extra": torch.zeros(2)}), "unexpected keys: .*decoder.extra"),
        (
            lambda weights: weights.update({"decoder.norm.weight": torch.zeros(2)}),
            r"mismatched keys: .*norm.weight.*\[2\].*\[32\]",
        ),
        (lambda weights: weights["decoder.norm.weight"].fill_(torch.nan), "not finite: decoder.norm.weight"),
    ],
)
def test_damaged_weights_are_rejected(change: object, message: str, tmp_path: Path) -> None:
    folder = save(decoder("kerple"), tmp_path)
    damage(folder, change)
    with pytest.raises(BadInput, match=message):
        AutoModelForCausalLM.from_pretrained(folder)


def test_weights_are_projected_at_load(tmp_path: Path) -> None:
    folder = save(decoder("kerple"), tmp_path)
    damage(folder, lambda weights: weights["decoder.scheme.a_H"].fill_(-1.0))
    assert AutoModelForCausalLM.from_pretrained(folder).decoder.scheme.a_H.tolist() == pytest.approx([0.01] * 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 30}, "width 30 is not a multiple of heads 4"),
        ({"scheme": "sandwhich"}, "did you mean 'sandwich'"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"layers": "many"}, "layers"),
    ],
)
def test_a_bad_configuration_is_rejected(change: dict[str, object], message: str, tmp_path: Path) -> None:
    folder = save(decoder("sandwich"), tmp_path)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **change}))
    with pytest.raises(BadInput, match=message) as caught:
        AutoModelForCausalLM.from_pretrained(folder)
    assert "\n" not in str(caught.value)


def test_lack_of_memory_is_no_fault_of_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_memory(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    folder = save(decoder("none"), tmp_path)
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", without_memory)
    with pytest.raises(MemoryError, match="can't start new thread"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_file_cut_short_is_rejected(tmp_path: Path) -> None:
    folder = save(decoder("none"), tmp_path)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(BadInput, match="cannot be loaded"):
        AutoModelForCausalLM.from_pretrained(folder)


def test_a_resized_vocabulary_is_used() -> None:
    wrapped = FieldlensForCausalLM.of(decoder("none"))
    wrapped.resize_token_embeddings(70, mean_resizing=False)
    assert wrapped(torch.tensor([[65]])).logits.shape == (1, 1, 70)


def test_nothing_in_a_folder_is_executed(tmp_path: Path) -> None:
    folder = save(decoder("sandwich"), tmp_path)
    values = json.loads((folder / "config.json").read_text())
    names = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps({**values, "auto_map": names}))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    AutoModelForCausalLM.from_pretrained(folder)
    assert not (tmp_path / "executed").exists()
