"""From prompts to new tokens: modes, batches, end tokens, and transformers models."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from families import FAMILIES, build
from torch import Tensor

import fieldlens
from fieldlens import Config, Decoder
from fieldlens.core.errors import BadInput, NonFiniteResult, OutOfMemory
from fieldlens.generation import hf
from fieldlens.generation.generate import Generation, generate, plan
from fieldlens.generation.hf import supports_sliding_cache
from fieldlens.generation.sampling import Sampling
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.hf_cache import SlidingLayer
from fieldlens.models.hf_export import FieldlensForCausalLM
from fieldlens.models.kv_cache import capacity
from fieldlens.schemes.discovery import registry

pytestmark = pytest.mark.filterwarnings("ignore:.*generation flags.*")

VOCABULARY = 97
EVERY = pytest.mark.parametrize("spec", registry())
SLIDING = [name for name in FAMILIES if name not in ("falcon", "mamba")]


def decoder(spec: str, **changes: object) -> Decoder:
    shape = {"layers": 2, "width": 32, "heads": 4, "vocab_size": VOCABULARY, "init_std": 0.2, **changes}
    return Decoder(Config(scheme=spec, **shape)).eval().requires_grad_(False)  # type: ignore[arg-type]


def text(tokens: int) -> list[int]:
    return torch.randint(VOCABULARY, (tokens,)).tolist()


def by_hand(model: object, prompt: list[int], tokens: int, window: int | None, reencode: bool = False) -> list[int]:
    """Greedy decoding by whole banded forward passes, or by forward passes over the last tokens."""
    adapter, ids = adapt(model), list(prompt)
    for _ in range(tokens):
        inputs = ids[-window:] if reencode and window else ids
        with torch.no_grad():
            logits = torch.cat(list(adapter.logits(torch.tensor([inputs]), 1, None if reencode else window, 0)), 1)
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


@EVERY
@pytest.mark.usefixtures("float64")
def test_a_thousand_tokens_equal_the_banded_forward_pass(spec: str) -> None:
    """Each of a thousand tokens is the most likely one in a single banded pass over all of them."""
    model, window, prompt = decoder(spec, width=16, heads=2), 8, text(20)
    (new,) = generate(model, prompt, 1000, mode="sliding", window=window).ids
    banded = model(torch.tensor([prompt + new]), window=window)[0, 19:-1]
    assert banded.argmax(-1).tolist() == new


@EVERY
@pytest.mark.parametrize("mode", ["sliding", "full", "re-encode"])
@pytest.mark.usefixtures("float64")
def test_modes_equal_their_definition(spec: str, mode: str) -> None:
    model, prompt = decoder(spec), text(9)
    window = None if mode == "full" else 5
    (new,) = generate(model, prompt, 20, mode=mode, window=window).ids
    assert new == by_hand(model, prompt, 20, window, reencode=mode == "re-encode")


@EVERY
@pytest.mark.parametrize("mode", ["sliding", "full", "re-encode"])
@pytest.mark.usefixtures("float64")
def test_rows_in_a_batch_equal_rows_alone(spec: str, mode: str) -> None:
    model, prompts = decoder(spec), [text(23), text(4), text(1)]
    options = {"mode": mode, "window": None if mode == "full" else 6, "chunk": 7}
    together = generate(model, prompts, 15, **options)  # type: ignore[arg-type]
    assert together.ids == [generate(model, row, 15, **options).ids[0] for row in prompts]  # type: ignore[arg-type]
    assert together.prompt_tokens == 28


def test_cache_bytes_and_times_are_reported() -> None:
    model = decoder("alibi", layers=3)
    short, long = (generate(model, [text(5), text(3)], count, mode="sliding", window=10) for count in (80, 300))
    tokens = capacity(10)
    assert short.cache_bytes == long.cache_bytes == 3 * 2 * 2 * 32 * 4 * tokens + 2 * 8 * tokens
    assert long.first_seconds > 0
    assert long.rate == pytest.approx(598 / long.seconds)
    assert generate(model, text(5), 1, mode="full").rate is None
    assert generate(model, text(5), 3, mode="re-encode", window=4).cache_bytes == 0


def test_the_end_token_ends_each_row() -> None:
    model, prompts = decoder("rotary"), [text(6), text(3)]
    free = generate(model, prompts, 40, mode="full").ids
    end = free[0][7]
    stopped = generate(model, prompts, 40, mode="full", end=end).ids
    for row, whole in zip(stopped, free, strict=True):
        assert row == (whole[: whole.index(end) + 1] if end in whole else whole)


def test_draws_depend_on_the_seed_and_not_on_the_global_state() -> None:
    for model in (decoder("sandwich"), build("llama")):
        state = torch.get_rng_state()
        drawn = [
            generate(model, [1, 2, 3], 12, mode="full", sampling=Sampling(1.0, seed=seed)).ids for seed in (3, 3, 4)
        ]
        assert drawn[0] == drawn[1]
        assert drawn[0] != drawn[2]
        assert torch.equal(state, torch.get_rng_state())


def test_watch_receives_every_token() -> None:
    received: list[Tensor] = []
    generation = fieldlens.generate(decoder("none"), [[1, 2], [3]], 6, mode="full", watch=received.append)
    assert torch.stack(received, 1).tolist() == generation.ids


def test_the_model_is_left_as_it_was() -> None:
    model = decoder("none").train()
    generate(model, text(4), 3, mode="full")
    assert model.training


@pytest.mark.parametrize(
    ("spec", "changes", "mode", "window", "words"),
    [
        ("alibi", {"train_length": 40}, "sliding", 40, "window 40: the training length"),
        ("none:window=6", {"train_length": 40}, "sliding", 6, "window 6: the model's own window is smaller"),
        ("sinusoidal", {"train_length": 40}, "re-encode", 40, "sinusoidal positions would exceed the training length"),
    ],
)
def test_default_choices_are_noted(spec: str, changes: dict[str, int], mode: str, window: int, words: str) -> None:
    chosen_plan = plan(adapt(decoder(spec, **changes)), None, None, [5], 5)
    assert (chosen_plan.mode, chosen_plan.window) == (mode, window)
    assert words in " ".join(chosen_plan.notes)


def test_explicit_options_are_not_noted() -> None:
    assert plan(adapt(decoder("sinusoidal")), "sliding", 9, [5], 5).notes == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": []}, "a prompt is empty"),
        ({"prompts": [[1], []]}, "a prompt is empty"),
        ({"prompts": [5, 97]}, "token id 97 is outside the vocabulary of 97"),
        ({"prompts": [-1]}, "token id -1 is outside"),
        ({"prompts": [0.5]}, "a prompt must be a sequence of integer token ids"),
        ({"tokens": 0}, "tokens must be an integer of at least 1, got 0"),
        ({"chunk": 0}, "chunk must be an integer of at least 1, got 0"),
        ({"window": 0}, "window must be an integer of at least 1, got 0"),
        ({"window": 5, "mode": "full"}, "mode full takes no window, got 5: use mode sliding"),
        ({"mode": "slidng"}, "unknown mode 'slidng': did you mean 'sliding'"),
        ({"end": 97, "mode": "full"}, "end token id 97 is outside the vocabulary of 97"),
        ({"mode": "sliding"}, "training length of .* is unknown: pass a window"),
        ({"model": lambda ids: torch.zeros(*ids.shape, 97)}, "cannot generate"),
    ],
)
def test_mistakes_are_refused(options: dict[str, object], message: str) -> None:
    arguments = {"model": decoder("none"), "prompts": [1, 2], "tokens": 3, **options}
    with pytest.raises(BadInput, match=message):
        generate(**arguments)  # type: ignore[arg-type]


def test_a_cache_that_cannot_fit_is_refused_before_allocation() -> None:
    with pytest.raises(OutOfMemory, match=r"window 10{12} for 1 prompts needs a cache of"):
        generate(decoder("none"), [1], 10**12, mode="sliding", window=10**12)


# Transformers models


@pytest.mark.parametrize("family", SLIDING)
@pytest.mark.parametrize("window", [2, 5, 8])
def test_transformers_models_slide_as_evaluate_measures(family: str, window: int) -> None:
    model, prompts = build(family).double(), [text(11), text(4)]
    if family in ("bloom", "mpt"):  # probed: these do not support padding with a sliding cache
        with pytest.raises(BadInput, match=f"{family} does not support a sliding cache"):
            generate(model, prompts, 12, mode="sliding", window=window)
        prompts = prompts[:1]
    generation = generate(model, prompts, 12, mode="sliding", window=window)
    assert generation.ids == [by_hand(model, prompt, 12, window) for prompt in prompts]


@pytest.mark.parametrize("mode", ["full", "re-encode"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "falcon"])
def test_transformers_models_in_the_other_modes(family: str, mode: str) -> None:
    model, prompt = build(family).double(), text(9)
    window = None if mode == "full" else 5
    generation = generate(model, prompt, 12, mode=mode, window=window)
    assert generation.ids[0] == by_hand(model, prompt, 12, window, reencode=mode == "re-encode")


def test_the_cache_of_transformers_keeps_its_size() -> None:
    short, long = (generate(build("llama"), text(9), count, mode="sliding", window=5) for count in (10, 40))
    assert short.cache_bytes == long.cache_bytes == 3 * 2 * 4 * 2 * 8 * 4  # layers, k and v, w - 1, heads, width, bytes


def test_models_without_sliding_support_are_detected() -> None:
    assert {name: supports_sliding_cache(adapt(build(name))) for name in ("llama", "mpt", "falcon", "mamba")} == {  # type: ignore[arg-type]
        "llama": True, "mpt": True, "falcon": False, "mamba": False
    }  # fmt: skip
    chosen_plan = plan(adapt(build("falcon")), None, None, [5], 5)
    assert chosen_plan.mode == "full"
    assert "falcon does not support a sliding cache" in chosen_plan.notes[0]


def test_the_generation_config_is_ignored() -> None:
    model, prompt = build("llama"), text(9)
    plain = generate(model, prompt, 8, mode="full").ids
    model.generation_config.update(do_sample=True, repetition_penalty=9.0, max_new_tokens=2)
    kept = model.generation_config
    assert generate(model, prompt, 8, mode="full").ids == plain
    assert model.generation_config is kept


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("gpt2", {"mode": "full"}, "gpt2 has only 64 positions, too few for 9 prompt tokens and 60 new tokens"),
        ("gpt2", {"mode": "re-encode", "window": 65}, "gpt2 has only 64 positions, too few for a window of 65"),
        ("falcon", {"mode": "sliding", "window": 5}, "falcon does not support a sliding cache"),
        ("mamba", {"mode": "sliding", "window": 5}, "mamba does not support a window"),
        (
            "llama",
            {"mode": "sliding", "window": 1},
            "window must be at least 2 for the sliding cache of transformers, got 1",
        ),
        ("mpt", {"mode": "full"}, "mpt failed to generate"),
    ],
)
def test_unsupported_options_of_transformers_models_are_refused(
    family: str, options: dict[str, object], message: str
) -> None:
    with pytest.raises(BadInput, match=message):
        generate(build(family), text(9), 60, **options)  # type: ignore[arg-type]


def test_a_cache_that_would_be_discarded_is_refused() -> None:
    """Phi-3 encodes everything again where its short positions end, into a cache that grows."""
    model, prompt = build("phi3").double(), text(9)
    assert generate(model, prompt, 24, mode="sliding", window=5).ids == [by_hand(model, prompt, 24, 5)]
    with pytest.raises(BadInput, match=r"phi3 replaces .* cache at 33 tokens: .* at most 33 tokens including"):
        generate(model, prompt, 25, mode="sliding", window=5)
    chosen_plan = plan(adapt(model), None, None, [9], 25)
    assert chosen_plan.mode == "full"
    assert "phi3 replaces the sliding cache with its own, unbounded cache at 33 tokens" in chosen_plan.notes[0]
    assert plan(adapt(model), None, None, [9], 24).mode == "sliding"


def test_a_discarded_cache_is_detected() -> None:
    model = build("llama")
    prepare = model.prepare_inputs_for_generation

    def forgetful(ids_BT: Tensor, past_key_values: Any = None, **kwargs: Any) -> Any:
        if past_key_values.get_seq_length() == 12:
            past_key_values, kwargs["next_sequence_length"] = None, None
        return prepare(ids_BT, past_key_values=past_key_values, **kwargs)

    model.prepare_inputs_for_generation = forgetful
    assert len(generate(model, text(9), 4, mode="sliding", window=5).ids[0]) == 4
    with pytest.raises(BadInput, match="replaced the sliding cache with its own, unbounded cache: use mode full"):
        generate(model, text(9), 5, mode="sliding", window=5)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_change_under_a_cache_are_noted(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    adapter = adapt(build("llama", max_position_embeddings=32, rope_parameters=rope))
    for mode, tokens, expected in (("sliding", 24, 0), ("sliding", 25, 1), ("full", 25, 1), ("re-encode", 25, 0)):
        notes = plan(adapter, mode, None if mode == "full" else 8, [9], tokens).notes
        assert sum("beyond 32 tokens llama changes all positions" in note for note in notes) == expected


@pytest.mark.parametrize("mode", ["full", "re-encode"])
def test_prompts_that_differ_in_a_batch_are_refused(mode: str) -> None:
    """RecurrentGemma reads its padding; RWKV is wrong for any two rows that share its state."""
    window = None if mode == "full" else 8
    for family in ("recurrent_gemma", "rwkv"):
        with pytest.raises(BadInput, match=f"{family} continues a prompt differently in a batch than alone: pass one"):
            generate(build(family), [text(14), text(5)], 3, mode=mode, window=window)
    model, prompts = build("recurrent_gemma"), [text(9), text(9)]
    together = generate(model, prompts, 6, mode=mode, window=window).ids
    assert together == [generate(model, row, 6, mode=mode, window=window).ids[0] for row in prompts]


def test_rows_of_equal_length_are_probed_too() -> None:
    with pytest.raises(BadInput, match="pass one prompt at a time"):
        generate(build("rwkv"), [text(9), text(9)], 3, mode="full")


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba", "jamba"])
@pytest.mark.parametrize("mode", ["full", "re-encode"])
def test_rows_of_transformers_models_in_a_batch_equal_rows_alone(family: str, mode: str) -> None:
    model, prompts, window = build(family), [text(14), text(5)], None if mode == "full" else 8
    together = generate(model, prompts, 6, mode=mode, window=window).ids
    assert together == [generate(model, row, 6, mode=mode, window=window).ids[0] for row in prompts]


def test_recurrent_states_are_counted_in_the_cache_bytes() -> None:
    model = build("jamba")
    assert generate(model, text(9), 6, mode="full").cache_bytes == adapt(model).cache_size(14)


def test_fixed_positions_default_to_reencoding() -> None:
    chosen_plan = plan(adapt(build("gptj")), None, None, [9], 100)
    assert (chosen_plan.mode, chosen_plan.window) == ("re-encode", 64)
    assert "gptj has only 64 positions" in chosen_plan.notes[0]


# Our models inside transformers


def inside(model: Decoder, prompt: list[int], tokens: int, **options: object) -> list[int]:
    ids_BT = torch.tensor([prompt])
    arguments = {"attention_mask": torch.ones_like(ids_BT), "pad_token_id": 0, "eos_token_id": None, **options}
    output_BT = FieldlensForCausalLM.of(model).generate(ids_BT, max_new_tokens=tokens, **arguments)
    return output_BT[0, len(prompt) :].tolist()


@EVERY
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.usefixtures("float64")
def test_generate_of_transformers_equals_ours(spec: str, window: int | None) -> None:
    model, prompt = decoder(spec, window=window), text(9)
    assert inside(model, prompt, 20, do_sample=False) == generate(model, prompt, 20, mode="full").ids[0]


@pytest.mark.parametrize("sample", [False, True])
def test_generate_of_transformers_uses_our_cache(sample: bool) -> None:
    wrapped = FieldlensForCausalLM.of(decoder("alibi", window=5))
    arguments = {"max_new_tokens": 90, "pad_token_id": 0, "do_sample": sample, "return_dict_in_generate": True}
    cache = wrapped.generate(torch.tensor([text(30)]), **arguments).past_key_values
    assert all(isinstance(layer, SlidingLayer) for layer in cache.layers)
    (sizes,) = {tail.buffer.shape[2] for layer in cache.layers for tail in layer.tails}
    assert sizes == capacity(5)


@pytest.mark.usefixtures("float64")
def test_sampling_inside_transformers_depends_on_the_seed_not_the_cache() -> None:
    model, prompt = decoder("rotary", window=5), text(9)
    drawn = []
    for options in ({}, {}, {"use_cache": False}):
        torch.manual_seed(1)
        drawn.append(inside(model, prompt, 25, do_sample=True, top_k=0, **options))
    assert drawn[0] == drawn[1] == drawn[2]


@pytest.mark.usefixtures("float64")
def test_a_narrower_cache_may_be_passed_in() -> None:
    model, prompt = decoder("sandwich"), text(19)
    wrapped = FieldlensForCausalLM.of(model)
    new = inside(model, prompt, 20, do_sample=False, past_key_values=wrapped.sliding_cache(4))
    assert new == by_hand(model, prompt, 20, 4)


@pytest.mark.usefixtures("float64")
def test_padding_after_a_prompt_removes_nothing_from_a_window() -> None:
    model, prompts = decoder("alibi", window=5), [text(12), text(7)]
    ids_BT, mask_BT = torch.zeros(2, 12, dtype=torch.long), torch.zeros(2, 12, dtype=torch.long)
    for row, prompt in enumerate(prompts):
        ids_BT[row, : len(prompt)], mask_BT[row, : len(prompt)] = torch.tensor(prompt), 1
    wrapped = FieldlensForCausalLM.of(model)
    filled = wrapped(ids_BT, attention_mask=mask_BT)
    follows = torch.tensor([[3], [4]])
    mask_BT = torch.cat([mask_BT, torch.ones_like(follows)], 1)
    logits = wrapped(follows, attention_mask=mask_BT, past_key_values=filled.past_key_values).logits[1, -1]
    assert (logits - model(torch.tensor([[*prompts[1], 4]]))[0, -1]).abs().max() < 1e-12
    with pytest.raises(BadInput, match="padding after a token is not supported with a sliding cache"):
        wrapped(ids_BT, attention_mask=mask_BT[:, :-1], past_key_values=wrapped.sliding_cache(4))


@pytest.mark.usefixtures("float64")
def test_gradients_pass_through_the_cache() -> None:
    """Two chunks with a cache give the gradients of one pass."""
    wrapped = FieldlensForCausalLM.of(Decoder(Config("rotary", 5, 2, 32, 4, VOCABULARY, init_std=0.2)))
    ids_BT = torch.tensor([text(12)])

    def gradient(cuts: list[int]) -> Tensor:
        x_BTD = wrapped.decoder.embed(ids_BT).detach().requires_grad_()
        cache, out = wrapped.sliding_cache(), []
        for part in x_BTD.split(cuts, 1):
            out.append(wrapped(inputs_embeds=part, past_key_values=cache).logits)
        (gradient_BTD,) = torch.autograd.grad(torch.cat(out, 1)[0, -1].sum(), x_BTD)
        return gradient_BTD

    assert (gradient([12]) - gradient([7, 4, 1])).abs().max() < 1e-12


def test_a_bug_of_ours_is_not_a_model_that_cannot_slide(monkeypatch: pytest.MonkeyPatch) -> None:
    adapter: Any = adapt(build("llama"))
    ours, theirs = (eval("lambda *_, **__: [][0]", {"__name__": name}) for name in ("fieldlens.x", "transformers.x"))
    with monkeypatch.context() as patch:
        patch.setattr(hf, "sliding_cache", ours)
        with pytest.raises(IndexError):
            supports_sliding_cache(adapter)
    with monkeypatch.context() as patch:
        patch.setattr(adapter.model, "prepare_inputs_for_generation", ours)
        with pytest.raises(IndexError):
            hf.cache_reset_length(adapter, 3)
        patch.setattr(adapter.model, "prepare_inputs_for_generation", theirs)
        assert hf.cache_reset_length(adapter, 3) is None
        patch.setattr(adapter.model, "forward", theirs)
        assert not supports_sliding_cache(adapter)
        patch.setattr(adapter.model, "forward", lambda **_: torch.empty(1 << 50))
        with pytest.raises(RuntimeError, match="allocate memory"):
            supports_sliding_cache(adapter)


def test_a_sliding_cache_cannot_be_cropped() -> None:
    with pytest.raises(BadInput, match=r"does not support crop\(\), .*: pass a DynamicCache"):
        FieldlensForCausalLM.of(decoder("none")).sliding_cache().crop(-1)


def test_a_rate_needs_two_tokens() -> None:
    generation = Generation([[1]], plan(adapt(decoder("none")), "full", None, [1], 1), 1, 0.1, 0.0, 0)
    assert generation.rate is None
    assert not math.isnan(generation.first_seconds)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_of_transformers_models_that_are_not_finite_are_refused(temperature: float) -> None:
    model = build("llama")
    model.lm_head.weight.data.fill_(torch.inf)
    with pytest.raises(NonFiniteResult, match="produced NaN or inf logits"):
        generate(model, text(9), 5, mode="full", sampling=Sampling(temperature))


@pytest.mark.parametrize("mode", ["full", "re-encode"])
@pytest.mark.parametrize("temperature", [0.0, 100.0])
def test_ids_beyond_the_tokenizer_are_never_generated(mode: str, temperature: float) -> None:
    for model in (decoder("none"), build("llama")):
        generation = generate(
            model,
            [1, 2, 3],
            40,
            mode=mode,
            window=None if mode == "full" else 9,
            sampling=Sampling(temperature, vocab_size=5),
        )
        assert set(generation.ids[0]) <= set(range(5))


@pytest.mark.usefixtures("float64")
def test_long_prompts_of_transformers_models_are_read_in_chunks() -> None:
    model, prompt = build("llama", max_position_embeddings=2048).double(), text(1100)
    assert generate(model, prompt, 6, mode="sliding", window=5).ids == [by_hand(model, prompt, 6, 5)]


@pytest.mark.parametrize(
    ("sampling", "flags"),
    [
        (Sampling(0.7, seed=3), {"temperature": 0.7, "top_k": 0, "top_p": 1.0}),
        (Sampling(1.0, top_k=3, seed=3), {"temperature": 1.0, "top_k": 3, "top_p": 1.0}),
        (Sampling(1.0, top_p=0.4, seed=3), {"temperature": 1.0, "top_k": 0, "top_p": 0.4}),
    ],
)
def test_transformers_models_draw_as_transformers_does(sampling: Sampling, flags: dict[str, float]) -> None:
    model, prompt = build("llama"), text(7)
    torch.manual_seed(sampling.seed)
    ids = model.generate(
        torch.tensor([prompt]), do_sample=True, max_new_tokens=20, pad_token_id=0, eos_token_id=None, **flags
    )
    assert generate(model, prompt, 20, mode="full", sampling=sampling).ids == ids[:, 7:].tolist()


@pytest.mark.parametrize("temperature", [1e-3, 1e-40, 1e-300])
def test_very_low_temperatures_are_greedy(temperature: float) -> None:
    model, prompt = decoder("alibi"), text(5)
    greedy = generate(model, prompt, 8, mode="full").ids
    assert generate(model, prompt, 8, mode="full", sampling=Sampling(temperature)).ids == greedy


def test_a_wide_window_allocates_only_what_is_needed() -> None:
    model, prompt = decoder("alibi"), text(5)
    wide = generate(model, prompt, 4, mode="sliding", window=2**39)
    assert wide.ids == generate(model, prompt, 4, mode="full").ids
    assert wide.cache_bytes is not None
    assert wide.cache_bytes < 2**16
    with pytest.raises(BadInput, match="window must be less than 1099511627776"):
        generate(model, prompt, 4, window=2**40)


def test_our_models_can_be_assistants() -> None:
    main, small = (FieldlensForCausalLM.of(decoder("alibi", layers=layers)) for layers in (2, 1))
    ids_BT = torch.tensor([text(6)])
    alone = main.generate(ids_BT, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    helped = main.generate(
        ids_BT, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None, assistant_model=small
    )
    assert helped.tolist() == alone.tolist()


def test_prompts_may_be_integers_of_any_type() -> None:
    model = decoder("none")
    same = [[5, 6]]
    for prompts in (same, [5, 6], [[np.int64(5), np.int64(6)]], np.array([[5, 6]]), torch.tensor([5, 6])):
        assert generate(model, prompts, 3, mode="full").ids == generate(model, same, 3, mode="full").ids
    for invalid in ([[1, 2], 3], 5, [[1.5]], torch.tensor(3)):
        with pytest.raises(BadInput, match="a prompt must be a sequence of integer token ids"):
            generate(model, invalid, 3, mode="full")  # type: ignore[arg-type]
