"""Subjects: any causal language model, asked through one door."""

from types import SimpleNamespace

import pytest
import torch
from families import FAMILIES, VOCABULARY, build
from torch import Tensor
from transformers import RobertaConfig, RobertaForCausalLM, T5Config, T5ForConditionalGeneration

from fieldlens import Config, Decoder
from fieldlens.core.errors import BadInput
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
    one, ids_BT = adapt(model), torch.randint(VOCABULARY, (2, 40))
    expected = reference(model, ids_BT)
    for keep in (1, 5, 39):
        assert (one.losses(ids_BT, keep) - expected[:, -keep:]).abs().max() < 1e-5


@pytest.mark.parametrize("spec", ["sandwich", "sinusoidal:window=4", "rotary:window=4", "none:window=1"])
def test_ours_are_those_of_the_full_forward(spec: str) -> None:
    decoder = Decoder(Config(scheme=spec, layers=3, width=32, heads=4, vocab_size=VOCABULARY, init_std=0.2))
    one, ids_BT = adapt(decoder), torch.randint(VOCABULARY, (2, 40))
    expected = reference(FieldlensForCausalLM.of(decoder), ids_BT)
    for keep in (1, 5, 39):
        assert (one.losses(ids_BT, keep) - expected[:, -keep:]).abs().max() < 1e-5


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "mamba"])
def test_a_window_reaches_exactly_as_far_as_it_should(family: str) -> None:
    """A change just beyond R(w - 1) tokens back has no effect, one just inside has."""
    model = build(family).double()
    one = adapt(model)
    one.check_window(2)
    reach = one.reach(2)
    assert reach == one.layers + 1  # type: ignore[operator]
    text = torch.randint(VOCABULARY, (1, 20))
    inside, beyond = text.clone(), text.clone()
    beyond[0, -reach - 1] = (beyond[0, -reach - 1] + 1) % VOCABULARY
    inside[0, -reach] = (inside[0, -reach] + 1) % VOCABULARY
    with torch.no_grad():
        same, far, near = (next(one.logits(ids, 1, 2, 0)) for ids in (text, beyond, inside))
    assert torch.equal(same, far)
    assert not torch.equal(same, near)


def test_of_two_windows_the_smaller_counts() -> None:
    model = build("gemma3_text").double()  # five layers of 6, one without
    one, ids_BT = adapt(model), torch.randint(VOCABULARY, (1, 30))
    assert one.windows == (6, 6, 6, 6, 6, None)
    assert one.reach() is None
    assert one.reach(8) == 5 * 5 + 7 + 1
    logits = {window: next(one.logits(ids_BT, 1, window, 0)) for window in (None, 5, 6, 29, 30)}
    torch.testing.assert_close(logits[None], logits[30])  # a mask may choose another kernel
    assert not torch.equal(logits[6], logits[29])
    assert not torch.equal(logits[6], logits[5])


def test_a_model_without_masks_is_refused_a_window() -> None:
    with pytest.raises(BadInput, match="mamba cannot be given a window"):
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
    one = Counted(decoder)
    reach = one.reach()
    assert reach == 3 * 4 + 1
    long = torch.randint(VOCABULARY, (2, 16 * reach + 1))
    far = one.losses(long)
    spent, one.tokens = one.tokens, 0
    near = one.losses(long[:, -reach - 1 :])
    assert spent == one.tokens == 2 * reach
    assert torch.equal(far, near)


def test_a_mistral_is_cropped_too() -> None:
    model = build("mistral")
    one, long = adapt(model), torch.randint(VOCABULARY, (1, 200))
    assert one.reach() == 3 * 5 + 1
    assert one.needed(199, 1, None) == 16
    assert (one.losses(long) - reference(model, long)[:, -1:]).abs().max() < 1e-5


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_rotary_positions_that_change_with_the_length_are_not_cropped(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    model = build("mistral", max_position_embeddings=32, rope_parameters=rope)
    ids_BT = torch.randint(VOCABULARY, (1, 129))
    assert (adapt(model).losses(ids_BT) - reference(model, ids_BT)[:, -1:]).abs().max() < 1e-5


def test_a_model_with_very_few_positions_can_be_asked() -> None:
    one = adapt(build("gpt2", n_positions=4))
    check_causal(one)
    one.check_window(2)
    assert one.losses(torch.randint(VOCABULARY, (1, 5))).isfinite().all()


def test_learned_positions_are_not_cropped() -> None:
    one = adapt(build("gpt2"))
    assert one.limit == 64
    assert one.needed(60, 1, 2) == 60


@pytest.mark.parametrize(
    ("family", "length"), [("gpt2", 64), ("mpt", 64), ("bloom", None), ("llama", 2048), ("mamba", None)]
)
def test_training_lengths_come_from_the_configuration(family: str, length: int | None) -> None:
    assert adapt(build(family)).train_length == length


def test_a_stretched_model_was_trained_at_its_original_length() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512, "rope_theta": 10000.0}
    assert adapt(build("llama", max_position_embeddings=2048, rope_parameters=rope)).train_length == 512


def test_layers_may_be_stretched_each_in_its_own_way() -> None:
    stretched = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 256, "rope_theta": 10000.0}
    plain = {"rope_type": "default", "rope_theta": 10000.0}
    config = SimpleNamespace(
        max_position_embeddings=2048, rope_parameters={"full_attention": stretched, "sliding_attention": plain}
    )
    assert configured_train_length(config) == 256


def test_a_model_that_sees_the_future_is_refused() -> None:
    def future(ids_BT: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(ids_BT.roll(-1, 1), VOCABULARY).double()

    with pytest.raises(BadInput, match="future is not causal"):
        check_causal(adapt(future))


def test_what_predicts_no_tokens_is_refused() -> None:
    shape = {"vocab_size": 60, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    with pytest.raises(BadInput, match="T5ForConditionalGeneration is an encoder and a decoder"):
        adapt(T5ForConditionalGeneration(T5Config(**shape)))
    with pytest.raises(BadInput, match="LlamaModel predicts no tokens: load it with AutoModelForCausalLM"):
        next(adapt(build("llama").model).logits(torch.zeros(1, 2, dtype=torch.long), 1, None, 0))


def test_positions_that_begin_behind_the_padding_are_fewer() -> None:
    shape = {"vocab_size": 60, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "pad_token_id": 1}
    config = RobertaConfig(**shape, intermediate_size=16, max_position_embeddings=34, is_decoder=True)
    one = adapt(RobertaForCausalLM(config))
    assert one.limit == 32
    assert next(one.logits(torch.full((1, 32), 7), 1, None, 0)).shape == (1, 1, 60)


def test_what_is_no_model_is_refused() -> None:
    for thing in (3, "gpt2"):
        with pytest.raises(BadInput, match="no model"):
            adapt(thing)
    with pytest.raises(BadInput, match="function from ids"):
        adapt(lambda ids: ids)


def test_every_form_of_ours_is_ours() -> None:
    decoder = Decoder(Config(layers=1, width=32, heads=4, vocab_size=VOCABULARY))
    for model in (decoder, FieldlensForCausalLM.of(decoder), DecoderAdapter(decoder)):
        assert isinstance(adapt(model), DecoderAdapter)
    assert isinstance(adapt(build("gpt2")), HFAdapter)
    assert isinstance(adapt(adapt(decoder)), ModelAdapter)


def test_weights_name_a_model() -> None:
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
        ),  # the last two share; full ones are wider
        ("llama4_text", {}, (3 * 8 + 40) * KEY, 4 * 5 * KEY),  # three in chunks of 8
        ("jamba", {}, 2 * (64 * (4 + 8) * 4 + 40 * KEY), 2 * (64 * (4 + 8) * 4 + 5 * KEY)),  # two keep a state
        ("mamba", {}, None, None),
    ],
)
def test_a_cache_is_weighed_layer_by_layer(
    family: str, changes: dict[str, object], whole: int | None, narrow: int | None
) -> None:
    one = adapt(build(family, **changes))
    assert (one.cache_size(40), one.cache_size(40, 5)) == (whole, narrow)


@pytest.mark.parametrize("family", ["llama", "jamba", "gemma4_text", "llama4_text"])
def test_the_weight_of_a_cache_is_what_transformers_holds(family: str) -> None:
    """But for the last token in layers that slide: theirs keep the w - 1 that the next one sees beside itself."""
    model = build(family)
    with torch.no_grad():
        cache = model(torch.randint(VOCABULARY, (1, 40)), use_cache=True).past_key_values
    sliding = sum(getattr(layer, "sliding_window", None) is not None for layer in cache.layers)
    assert adapt(model).cache_size(40) == (bytes_held(cache) or 0) + sliding * KEY


def test_our_cache_is_weighed_by_its_window() -> None:
    one = adapt(Decoder(Config("none:window=7", layers=3, width=32, heads=4, vocab_size=VOCABULARY)))
    assert [one.cache_size(40, window) for window in (None, 9, 5)] == [3 * 2 * 32 * 4 * tokens for tokens in (7, 7, 5)]


@pytest.mark.parametrize(("family", "limit"), [("gptj", 64), ("ctrl", 64), ("xglm", None), ("llama", None)])
def test_a_fixed_table_of_positions_is_a_limit_unless_it_grows(family: str, limit: int | None) -> None:
    one = adapt(build(family))
    assert one.limit == limit
    tokens = torch.zeros(1, 66, dtype=torch.long)
    if limit is None:
        assert one.losses(tokens).isfinite().all()
    else:
        assert one.losses(tokens[:, : limit + 1]).isfinite().all()
        with pytest.raises((IndexError, RuntimeError)):
            one.losses(tokens)
