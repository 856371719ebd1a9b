"""Adapters: one interface for any causal language model."""

from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES, VOCABULARY, build
from torch import Tensor
from transformers import RobertaConfig, RobertaForCausalLM, T5Config, T5ForConditionalGeneration

from fieldlens import Config, Decoder
from fieldlens.core.errors import BadInput
from fieldlens.models import hf_compat
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import ModelAdapter, check_causal, weights_hash
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.hf import HFAdapter, bytes_held
from fieldlens.models.hf_compat import configured_train_length
from fieldlens.models.hf_export import FieldlensForCausalLM


def reference(model: object, ids_BT: Tensor) -> Tensor:
    """Losses by the plain full forward pass."""
    with torch.no_grad():
        logs_BTV = model(ids_BT[:, :-1]).logits.double().log_softmax(-1)  # type: ignore[operator]
    return -logs_BTV.gather(2, ids_BT[:, 1:, None])[..., 0]


@pytest.mark.parametrize("family", FAMILIES)
def test_losses_are_those_of_the_full_forward(family: str) -> None:
    model = build(family)
    adapter, ids_BT = adapt(model), torch.randint(VOCABULARY, (2, 40))
    expected = reference(model, ids_BT)
    for keep in (1, 5, 39):
        assert (adapter.losses(ids_BT, keep) - expected[:, -keep:]).abs().max() < 1e-5


@pytest.mark.parametrize("spec", ["sandwich", "sinusoidal:window=4", "rotary:window=4", "none:window=1"])
def test_losses_of_decoders_are_those_of_the_full_forward(spec: str) -> None:
    decoder = Decoder(Config(scheme=spec, layers=3, width=32, heads=4, vocab_size=VOCABULARY, init_std=0.2))
    adapter, ids_BT = adapt(decoder), torch.randint(VOCABULARY, (2, 40))
    expected = reference(FieldlensForCausalLM.of(decoder), ids_BT)
    for keep in (1, 5, 39):
        assert (adapter.losses(ids_BT, keep) - expected[:, -keep:]).abs().max() < 1e-5


@pytest.mark.parametrize("window", [1, 3, 6])
@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mamba"])
def test_a_window_is_the_same_in_blocks_of_queries(family: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits and gradients of 18 tokens in blocks of 4 queries and in one; a block does not read hidden keys."""
    model = build(family).double()
    adapter, ids_BT, widest = adapt(model), torch.randint(VOCABULARY, (2, 18)), 0
    sdpa = torch.nn.functional.scaled_dot_product_attention

    def noted(query: Tensor, key: Tensor, *args: object, **kwargs: object) -> Tensor:
        nonlocal widest
        widest = max(widest, key.shape[2])
        return sdpa(query, key, *args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    results, widths = [], []
    for block in (18, 4):
        monkeypatch.setattr(hf_compat, "BLOCK", block)
        model.zero_grad()
        widest = 0
        logits_BTV = next(adapter.logits(ids_BT, 18, window, 0))
        logits_BTV.square().mean().backward()
        results.append((logits_BTV, model.get_input_embeddings().weight.grad.clone()))
        widths.append(widest)
    for whole, parts in zip(*results, strict=True):
        assert (whole - parts).abs().max() < 1e-12
    own = family == "falcon" or not widths[0]  # it does not attend through the registry of transformers, or not by SDPA
    assert own or widths == [18, 4 + window - 1]


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mamba"])
def test_a_window_reaches_exactly_as_far_as_it_should(family: str) -> None:
    """A change just outside R(w - 1) + 1 tokens has no effect, one just inside has."""
    model = build(family).double()
    adapter = adapt(model)
    adapter.check_window(2)
    reach = adapter.reach(2)
    assert reach == adapter.layers + 1  # type: ignore[operator]
    text = torch.randint(VOCABULARY, (1, 20))
    inside, beyond = text.clone(), text.clone()
    beyond[0, -reach - 1] = (beyond[0, -reach - 1] + 1) % VOCABULARY
    inside[0, -reach] = (inside[0, -reach] + 1) % VOCABULARY
    with torch.no_grad():
        same, far, near = (next(adapter.logits(ids, 1, 2, 0)) for ids in (text, beyond, inside))
    assert torch.equal(same, far)
    assert not torch.equal(same, near)


def test_the_smaller_of_two_windows_applies() -> None:
    model = build("gemma3_text").double()  # five layers with window 6, one without
    adapter, ids_BT = adapt(model), torch.randint(VOCABULARY, (1, 30))
    assert adapter.windows == (6, 6, 6, 6, 6, None)
    assert adapter.reach() is None
    assert adapter.reach(8) == 5 * 5 + 7 + 1
    logits = {window: next(adapter.logits(ids_BT, 1, window, 0)) for window in (None, 5, 6, 29, 30)}
    torch.testing.assert_close(logits[None], logits[30])  # a mask may choose another kernel
    assert not torch.equal(logits[6], logits[29])
    assert not torch.equal(logits[6], logits[5])


def test_a_model_without_masks_supports_no_window() -> None:
    with pytest.raises(BadInput, match="mamba does not support a window"):
        adapt(build("mamba")).check_window(4)


def test_windows_change_nothing_afterwards() -> None:
    model, ids_BT = build("llama"), torch.randint(VOCABULARY, (1, 12))
    before = reference(model, ids_BT)
    adapt(model).losses(ids_BT, 1, window=2)
    assert torch.equal(before, reference(model, ids_BT))


class Counted(DecoderAdapter):
    """Counts the tokens that reach the decoder."""

    tokens = 0

    def logits(self, ids_BT: Tensor, keep: int, window: int | None, first: int):  # type: ignore[no-untyped-def]
        self.tokens += ids_BT.numel()
        return super().logits(ids_BT, keep, window, first)


@pytest.mark.parametrize("spec", ["none:window=5", "rotary:window=5", "alibi:window=5", "t5:window=5"])
def test_a_windowed_model_costs_no_more_at_sixteen_times_its_reach(spec: str) -> None:
    decoder = Decoder(Config(scheme=spec, layers=3, width=32, heads=4, vocab_size=VOCABULARY, init_std=0.2))
    adapter = Counted(decoder)
    reach = adapter.reach()
    assert reach == 3 * 4 + 1
    long = torch.randint(VOCABULARY, (2, 16 * reach + 1))
    far = adapter.losses(long)
    spent, adapter.tokens = adapter.tokens, 0
    near = adapter.losses(long[:, -reach - 1 :])
    assert spent == adapter.tokens == 2 * reach
    assert torch.equal(far, near)


def test_a_mistral_is_cropped_too() -> None:
    model = build("mistral")
    adapter, long = adapt(model), torch.randint(VOCABULARY, (1, 200))
    assert adapter.reach() == 3 * 5 + 1
    assert adapter.needed(199, 1, None) == 16
    assert (adapter.losses(long) - reference(model, long)[:, -1:]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_positions_that_change_with_the_length_are_not_cropped(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    model = build("mistral", max_position_embeddings=32, rope_parameters=rope)
    ids_BT = torch.randint(VOCABULARY, (1, 129))
    assert (adapt(model).losses(ids_BT) - reference(model, ids_BT)[:, -1:]).abs().max() < 1e-5


def test_a_model_with_very_few_positions_can_be_evaluated() -> None:
    adapter = adapt(build("gpt2", n_positions=4))
    check_causal(adapter)
    adapter.check_window(2)
    assert adapter.losses(torch.randint(VOCABULARY, (1, 5))).isfinite().all()


def test_learned_positions_are_not_cropped() -> None:
    adapter = adapt(build("gpt2"))
    assert adapter.limit == 64
    assert adapter.needed(60, 1, 2) == 60


@pytest.mark.parametrize(
    ("family", "length"), [("gpt2", 64), ("mpt", 64), ("bloom", None), ("llama", 2048), ("mamba", None)]
)
def test_training_lengths_come_from_the_configuration(family: str, length: int | None) -> None:
    assert adapt(build(family)).train_length == length


def test_the_train_length_of_a_scaled_model_is_the_original() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 10000.0}
    assert adapt(build("llama", max_position_embeddings=2048, rope_parameters=rope)).train_length == 512


def test_rope_scaling_may_differ_by_layer() -> None:
    scaled = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "rope_theta": 10000.0}
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    config = SimpleNamespace(
        max_position_embeddings=2048, rope_parameters={"full_attention": scaled, "sliding_attention": plain}
    )
    assert configured_train_length(config) == 256


def test_a_model_that_sees_the_future_is_rejected() -> None:
    def future(ids_BT: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(ids_BT.roll(-1, 1), VOCABULARY).double()

    with pytest.raises(BadInput, match="future is not causal"):
        check_causal(adapt(future))


def test_models_without_causal_logits_are_rejected() -> None:
    shape = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    with pytest.raises(BadInput, match="T5ForConditionalGeneration is an encoder-decoder"):
        adapt(T5ForConditionalGeneration(T5Config(**shape)))
    with pytest.raises(BadInput, match="LlamaModel returns no logits: load it with AutoModelForCausalLM"):
        next(adapt(build("llama").model).logits(torch.zeros(1, 2, dtype=torch.long), 1, None, 0))


def test_positions_after_the_padding_index_are_fewer() -> None:
    shape = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 1}
    config = RobertaConfig(**shape, intermediate_size=16, max_position_embeddings=34, is_decoder=True)
    adapter = adapt(RobertaForCausalLM(config))
    assert adapter.limit == 32
    assert next(adapter.logits(torch.full((1, 32), 7), 1, None, 0)).shape == (1, 1, 60)


def test_other_objects_are_rejected() -> None:
    for value in (3, "gpt2"):
        with pytest.raises(BadInput, match="is not a model"):
            adapt(value)
    with pytest.raises(BadInput, match="function from ids"):
        adapt(lambda ids: ids)


def test_every_form_of_a_decoder_gets_its_adapter() -> None:
    decoder = Decoder(Config(layers=1, width=32, heads=4, vocab_size=VOCABULARY))
    for model in (decoder, FieldlensForCausalLM.of(decoder), DecoderAdapter(decoder)):
        assert isinstance(adapt(model), DecoderAdapter)
    assert isinstance(adapt(build("gpt2")), HFAdapter)
    assert isinstance(adapt(adapt(decoder)), ModelAdapter)


def test_the_weights_hash_identifies_a_model() -> None:
    model = build("llama")
    before = weights_hash(model)
    assert before == weights_hash(build("llama"))
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1e-3
    assert weights_hash(model) != before


KEY = 2 * 2 * 8 * 4
"""Bytes of a token in a layer: keys and values, heads, width, bytes."""


@pytest.mark.parametrize(
    ("family", "changes", "whole", "narrow"),
    [
        ("llama", {}, 3 * 40 * KEY, 3 * 5 * KEY),
        ("falcon", {"alibi": False, "multi_query": True}, 3 * 40 * KEY // 2, 3 * 5 * KEY // 2),
        ("gpt2", {}, 3 * 40 * 2 * KEY, 3 * 5 * 2 * KEY),
        ("gemma3_text", {}, (5 * 6 + 40) * KEY, 6 * 5 * KEY),
        (
            "gemma4_text",
            {},
            (2 * 6 + 2 * 40 * 2) * KEY,
            (2 + 2 * 2) * 5 * KEY,
        ),  # the last two share keys; full-attention layers are wider
        ("llama4_text", {}, (3 * 8 + 40) * KEY, 4 * 5 * KEY),  # three in chunks of 8
        (
            "jamba",
            {},
            2 * (64 * (4 + 8) * 4 + 40 * KEY),
            2 * (64 * (4 + 8) * 4 + 5 * KEY),
        ),  # two layers keep a fixed-size state
        ("mamba", {}, None, None),
    ],
)
def test_cache_size_is_summed_over_layers(
    family: str, changes: dict[str, object], whole: int | None, narrow: int | None
) -> None:
    adapter = adapt(build(family, **changes))
    assert (adapter.cache_size(40), adapter.cache_size(40, 5)) == (whole, narrow)


@pytest.mark.parametrize("family", ["llama", "jamba", "gemma4_text", "llama4_text"])
def test_cache_size_is_that_of_the_transformers_cache(family: str) -> None:
    """Except for one token in sliding layers: transformers keeps only the w - 1 tokens before the next one."""
    model = build(family)
    with torch.no_grad():
        cache = model(torch.randint(VOCABULARY, (1, 40)), use_cache=True).past_key_values
    sliding = sum(getattr(layer, "sliding_window", None) is not None for layer in cache.layers)
    assert adapt(model).cache_size(40) == (bytes_held(cache) or 0) + sliding * KEY


def test_cache_size_of_a_decoder_depends_on_its_window() -> None:
    adapter = adapt(Decoder(Config("none:window=7", layers=3, width=32, heads=4, vocab_size=VOCABULARY)))
    assert [adapter.cache_size(40, window) for window in (None, 9, 5)] == [
        3 * 2 * 32 * 4 * tokens for tokens in (7, 7, 5)
    ]


@pytest.mark.parametrize(("family", "limit"), [("gptj", 64), ("ctrl", 64), ("xglm", None), ("llama", None)])
def test_a_fixed_table_of_positions_is_a_limit_unless_it_grows(family: str, limit: int | None) -> None:
    adapter = adapt(build(family))
    assert adapter.limit == limit
    tokens = torch.zeros(1, 66, dtype=torch.long)
    if limit is None:
        assert adapter.losses(tokens).isfinite().all()
    else:
        assert adapter.losses(tokens[:, : limit + 1]).isfinite().all()
        with pytest.raises((IndexError, RuntimeError)):
            adapter.losses(tokens)
