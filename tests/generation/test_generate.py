"""From prompts to new tokens: modes, batches, the end, and models of transformers."""

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


def by_hand(model: object, prompt: list[int], tokens: int, window: int | None, anew: bool = False) -> list[int]:
    """The likeliest token again and again, by whole banded forward passes, or by those of the last tokens."""
    one, ids = adapt(model), list(prompt)
    for _ in range(tokens):
        inputs = ids[-window:] if anew and window else ids
        with torch.no_grad():
            logits = torch.cat(list(one.logits(torch.tensor([inputs]), 1, None if anew else window, 0)), 1)
        ids.append(int(logits[0, -1].argmax()))
    return ids[len(prompt) :]


@EVERY
@pytest.mark.usefixtures("float64")
def test_a_thousand_tokens_are_those_of_the_banded_forward(spec: str) -> None:
    """Each token of a thousand is the likeliest by one banded pass over all of them."""
    model, window, prompt = decoder(spec, width=16, heads=2), 8, text(20)
    (made,) = generate(model, prompt, 1000, mode="sliding", window=window).ids
    banded = model(torch.tensor([prompt + made]), window=window)[0, 19:-1]
    assert banded.argmax(-1).tolist() == made


@EVERY
@pytest.mark.parametrize("mode", ["sliding", "full", "re-encode"])
@pytest.mark.usefixtures("float64")
def test_modes_are_what_they_say(spec: str, mode: str) -> None:
    model, prompt = decoder(spec), text(9)
    window = None if mode == "full" else 5
    (made,) = generate(model, prompt, 20, mode=mode, window=window).ids
    assert made == by_hand(model, prompt, 20, window, anew=mode == "re-encode")


@EVERY
@pytest.mark.parametrize("mode", ["sliding", "full", "re-encode"])
@pytest.mark.usefixtures("float64")
def test_rows_are_what_they_are_alone(spec: str, mode: str) -> None:
    model, prompts = decoder(spec), [text(23), text(4), text(1)]
    options = {"mode": mode, "window": None if mode == "full" else 6, "chunk": 7}
    together = generate(model, prompts, 15, **options)  # type: ignore[arg-type]
    assert together.ids == [generate(model, row, 15, **options).ids[0] for row in prompts]  # type: ignore[arg-type]
    assert together.prompt_tokens == 28


def test_bytes_and_times_are_told() -> None:
    model = decoder("alibi", layers=3)
    few, many = (generate(model, [text(5), text(3)], count, mode="sliding", window=10) for count in (80, 300))
    tokens = capacity(10)
    assert few.cache_bytes == many.cache_bytes == 3 * 2 * 2 * 32 * 4 * tokens + 2 * 8 * tokens
    assert many.first_seconds > 0
    assert many.rate == pytest.approx(598 / many.seconds)
    assert generate(model, text(5), 1, mode="full").rate is None
    assert generate(model, text(5), 3, mode="re-encode", window=4).cache_bytes == 0


def test_the_end_ends_each_row() -> None:
    model, prompts = decoder("rotary"), [text(6), text(3)]
    free = generate(model, prompts, 40, mode="full").ids
    end = free[0][7]
    stopped = generate(model, prompts, 40, mode="full", end=end).ids
    for row, whole in zip(stopped, free, strict=True):
        assert row == (whole[: whole.index(end) + 1] if end in whole else whole)


def test_draws_are_those_of_the_seed_and_the_global_state_is_left_alone() -> None:
    for model in (decoder("sandwich"), build("llama")):
        state = torch.get_rng_state()
        made = [generate(model, text_of_state, 12, mode="full", sampling=Sampling(1.0, seed=seed)).ids
                for seed in (3, 3, 4) for text_of_state in [[1, 2, 3]]]  # fmt: skip
        assert made[0] == made[1]
        assert made[0] != made[2]
        assert torch.equal(state, torch.get_rng_state())


def test_every_token_is_told_as_it_comes() -> None:
    heard: list[Tensor] = []
    made = fieldlens.generate(decoder("none"), [[1, 2], [3]], 6, mode="full", watch=heard.append)
    assert torch.stack(heard, 1).tolist() == made.ids


def test_the_model_is_left_as_it_was() -> None:
    model = decoder("none").train()
    generate(model, text(4), 3, mode="full")
    assert model.training


@pytest.mark.parametrize(
    ("spec", "changes", "mode", "window", "words"),
    [
        ("alibi", {"train_length": 40}, "sliding", 40, "window 40: the training length"),
        ("none:window=6", {"train_length": 40}, "sliding", 6, "window 6: the model's own is narrower"),
        (
            "sinusoidal",
            {"train_length": 40},
            "re-encode",
            40,
            "sinusoidal positions would run on past what was trained",
        ),
    ],
)
def test_defaults_are_said_aloud(spec: str, changes: dict[str, int], mode: str, window: int, words: str) -> None:
    settled = plan(adapt(decoder(spec, **changes)), None, None, [5], 5)
    assert (settled.mode, settled.window) == (mode, window)
    assert words in " ".join(settled.notes)


def test_what_was_asked_for_is_not_said() -> None:
    assert plan(adapt(decoder("sinusoidal")), "sliding", 9, [5], 5).notes == ()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prompts": []}, "a prompt is empty"),
        ({"prompts": [[1], []]}, "a prompt is empty"),
        ({"prompts": [5, 97]}, "token id 97 is outside the vocabulary of 97"),
        ({"prompts": [-1]}, "token id -1 is outside"),
        ({"prompts": [0.5]}, "a prompt is a row of token ids"),
        ({"tokens": 0}, "tokens is 0"),
        ({"chunk": 0}, "chunk is 0"),
        ({"window": 0}, "window is 0"),
        ({"window": 5, "mode": "full"}, "window is 5, but the mode full keeps everything"),
        ({"mode": "slidng"}, "unknown mode 'slidng': did you mean 'sliding'"),
        ({"end": 97, "mode": "full"}, "end is 97: it is outside the vocabulary of 97"),
        ({"mode": "sliding"}, "does not say at what length it was trained: give a window"),
        ({"model": lambda ids: torch.zeros(*ids.shape, 97)}, "cannot generate"),
    ],
)
def test_mistakes_are_refused(options: dict[str, object], message: str) -> None:
    asked = {"model": decoder("none"), "prompts": [1, 2], "tokens": 3, **options}
    with pytest.raises(BadInput, match=message):
        generate(**asked)  # type: ignore[arg-type]


def test_a_cache_that_cannot_fit_is_refused_before_it_is_made() -> None:
    with pytest.raises(OutOfMemory, match=r"window 10{12} for 1 prompts needs a cache of"):
        generate(decoder("none"), [1], 10**12, mode="sliding", window=10**12)


# Models of transformers


@pytest.mark.parametrize("family", SLIDING)
@pytest.mark.parametrize("window", [2, 5, 8])
def test_theirs_slide_as_evaluate_measures(family: str, window: int) -> None:
    model, prompts = build(family).double(), [text(11), text(4)]
    if family in ("bloom", "mpt"):  # found out by trying: padding and a sliding cache do not go together in these
        with pytest.raises(BadInput, match=f"{family} cannot be run through a sliding cache"):
            generate(model, prompts, 12, mode="sliding", window=window)
        prompts = prompts[:1]
    made = generate(model, prompts, 12, mode="sliding", window=window)
    assert made.ids == [by_hand(model, prompt, 12, window) for prompt in prompts]


@pytest.mark.parametrize("mode", ["full", "re-encode"])
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "falcon"])
def test_theirs_in_the_other_modes(family: str, mode: str) -> None:
    model, prompt = build(family).double(), text(9)
    window = None if mode == "full" else 5
    made = generate(model, prompt, 12, mode=mode, window=window)
    assert made.ids[0] == by_hand(model, prompt, 12, window, anew=mode == "re-encode")


def test_their_cache_keeps_its_size() -> None:
    few, many = (generate(build("llama"), text(9), count, mode="sliding", window=5) for count in (10, 40))
    assert few.cache_bytes == many.cache_bytes == 3 * 2 * 4 * 2 * 8 * 4  # layers, k and v, w - 1, heads, width, bytes


def test_models_that_cannot_slide_are_found_out() -> None:
    assert {name: supports_sliding_cache(adapt(build(name))) for name in ("llama", "mpt", "falcon", "mamba")} == {  # type: ignore[arg-type]
        "llama": True, "mpt": True, "falcon": False, "mamba": False
    }  # fmt: skip
    settled = plan(adapt(build("falcon")), None, None, [5], 5)
    assert settled.mode == "full"
    assert "falcon cannot be run through a sliding cache" in settled.notes[0]


def test_what_a_folder_says_about_generation_counts_for_nothing() -> None:
    model, prompt = build("llama"), text(9)
    plain = generate(model, prompt, 8, mode="full").ids
    model.generation_config.update(do_sample=True, repetition_penalty=9.0, max_new_tokens=2)
    kept = model.generation_config
    assert generate(model, prompt, 8, mode="full").ids == plain
    assert model.generation_config is kept


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        ("gpt2", {"mode": "full"}, "gpt2 has 64 positions: too few for 9 tokens of prompt and 60 new ones"),
        ("gpt2", {"mode": "re-encode", "window": 65}, "gpt2 has 64 positions: too few for a window of 65"),
        ("falcon", {"mode": "sliding", "window": 5}, "falcon cannot be run through a sliding cache"),
        ("mamba", {"mode": "sliding", "window": 5}, "mamba cannot be given a window"),
        ("llama", {"mode": "sliding", "window": 1}, "transformers needs at least 2"),
        ("mpt", {"mode": "full"}, "mpt cannot generate this"),
    ],
)
def test_what_theirs_cannot_do_is_refused(family: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        generate(build(family), text(9), 60, **options)  # type: ignore[arg-type]


def test_a_cache_that_is_going_to_be_thrown_away_is_not_begun() -> None:
    """Phi-3 reads all anew where its short positions end, into a cache that grows."""
    model, prompt = build("phi3").double(), text(9)
    assert generate(model, prompt, 24, mode="sliding", window=5).ids == [by_hand(model, prompt, 24, 5)]
    with pytest.raises(
        BadInput, match=r"at 33 tokens phi3 begins a cache of its own.* at most 33 tokens, prompt and new"
    ):
        generate(model, prompt, 25, mode="sliding", window=5)
    settled = plan(adapt(model), None, None, [9], 25)
    assert settled.mode == "full"
    assert "at 33 tokens phi3 begins a cache of its own" in settled.notes[0]
    assert plan(adapt(model), None, None, [9], 24).mode == "sliding"


def test_a_cache_that_was_thrown_away_does_not_pass_for_ours() -> None:
    model = build("llama")
    prepare = model.prepare_inputs_for_generation

    def forgetful(ids_BT: Tensor, past_key_values: Any = None, **kwargs: Any) -> Any:
        if past_key_values.get_seq_length() == 12:
            past_key_values, kwargs["next_sequence_length"] = None, None
        return prepare(ids_BT, past_key_values=past_key_values, **kwargs)

    model.prepare_inputs_for_generation = forgetful
    assert len(generate(model, text(9), 4, mode="sliding", window=5).ids[0]) == 4
    with pytest.raises(BadInput, match="went over to a cache of its own, which does not slide: the modes full"):
        generate(model, text(9), 5, mode="sliding", window=5)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_change_under_a_cache_are_said(kind: str) -> None:
    rope = {"rope_type": kind, "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 32}
    if kind == "longrope":
        rope |= {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    one = adapt(build("llama", max_position_embeddings=32, rope_parameters=rope))
    for mode, tokens, said in (("sliding", 24, 0), ("sliding", 25, 1), ("full", 25, 1), ("re-encode", 25, 0)):
        notes = plan(one, mode, None if mode == "full" else 8, [9], tokens).notes
        assert sum("past 32 tokens all positions of llama change" in note for note in notes) == said


@pytest.mark.parametrize("mode", ["full", "re-encode"])
def test_prompts_that_are_not_what_they_are_alone_are_refused(mode: str) -> None:
    """RecurrentGemma reads its padding; RWKV is wrong of any two rows that go through its state."""
    window = None if mode == "full" else 8
    for family in ("recurrent_gemma", "rwkv"):
        with pytest.raises(BadInput, match=f"{family} continues several prompts otherwise than each alone: give one"):
            generate(build(family), [text(14), text(5)], 3, mode=mode, window=window)
    model, prompts = build("recurrent_gemma"), [text(9), text(9)]
    together = generate(model, prompts, 6, mode=mode, window=window).ids
    assert together == [generate(model, row, 6, mode=mode, window=window).ids[0] for row in prompts]


def test_rows_of_equal_length_are_tried_too() -> None:
    with pytest.raises(BadInput, match="give one prompt at a time"):
        generate(build("rwkv"), [text(9), text(9)], 3, mode="full")


@pytest.mark.parametrize("family", ["gpt2", "llama", "mamba", "jamba"])
@pytest.mark.parametrize("mode", ["full", "re-encode"])
def test_rows_of_theirs_are_what_they_are_alone(family: str, mode: str) -> None:
    model, prompts, window = build(family), [text(14), text(5)], None if mode == "full" else 8
    together = generate(model, prompts, 6, mode=mode, window=window).ids
    assert together == [generate(model, row, 6, mode=mode, window=window).ids[0] for row in prompts]


def test_states_of_a_recurrence_are_in_the_bytes() -> None:
    model = build("jamba")
    assert generate(model, text(9), 6, mode="full").cache_bytes == adapt(model).cache_size(14)


def test_fixed_positions_are_read_anew() -> None:
    settled = plan(adapt(build("gptj")), None, None, [9], 100)
    assert (settled.mode, settled.window) == ("re-encode", 64)
    assert "gptj has 64 positions and no more" in settled.notes[0]


# Ours inside transformers


def inside(model: Decoder, prompt: list[int], tokens: int, **options: object) -> list[int]:
    ids_BT = torch.tensor([prompt])
    asked = {"attention_mask": torch.ones_like(ids_BT), "pad_token_id": 0, "eos_token_id": None, **options}
    made = FieldlensForCausalLM.of(model).generate(ids_BT, max_new_tokens=tokens, **asked)
    return made[0, len(prompt) :].tolist()


@EVERY
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.usefixtures("float64")
def test_ours_inside_transformers_is_ours(spec: str, window: int | None) -> None:
    model, prompt = decoder(spec, window=window), text(9)
    assert inside(model, prompt, 20, do_sample=False) == generate(model, prompt, 20, mode="full").ids[0]


@pytest.mark.parametrize("sample", [False, True])
def test_generate_of_transformers_uses_our_cache(sample: bool) -> None:
    wrapped = FieldlensForCausalLM.of(decoder("alibi", window=5))
    asked = {"max_new_tokens": 90, "pad_token_id": 0, "do_sample": sample, "return_dict_in_generate": True}
    cache = wrapped.generate(torch.tensor([text(30)]), **asked).past_key_values
    assert all(isinstance(layer, SlidingLayer) for layer in cache.layers)
    (sizes,) = {tail.buffer.shape[2] for layer in cache.layers for tail in layer.tails}
    assert sizes == capacity(5)


@pytest.mark.usefixtures("float64")
def test_sampling_inside_transformers_is_by_seed_and_without_a_cache_the_same() -> None:
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
    made = inside(model, prompt, 20, do_sample=False, past_key_values=wrapped.sliding_cache(4))
    assert made == by_hand(model, prompt, 20, 4)


@pytest.mark.usefixtures("float64")
def test_padding_behind_a_prompt_pushes_nothing_out_of_a_window() -> None:
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
    with pytest.raises(BadInput, match="padding behind a text does not go with a cache that slides"):
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
        (found,) = torch.autograd.grad(torch.cat(out, 1)[0, -1].sum(), x_BTD)
        return found

    assert (gradient([12]) - gradient([7, 4, 1])).abs().max() < 1e-12


def test_a_cache_that_slides_takes_nothing_back() -> None:
    with pytest.raises(BadInput, match="takes no tokens back: pass a DynamicCache"):
        FieldlensForCausalLM.of(decoder("none")).sliding_cache().crop(-1)


def test_a_rate_needs_two_tokens() -> None:
    made = Generation([[1]], plan(adapt(decoder("none")), "full", None, [1], 1), 1, 0.1, 0.0, 0)
    assert made.rate is None
    assert not math.isnan(made.first_seconds)


@pytest.mark.parametrize("heat", [0.0, 1.0])
def test_logits_of_theirs_that_are_no_numbers_end_it(heat: float) -> None:
    model = build("llama")
    model.lm_head.weight.data.fill_(torch.inf)
    with pytest.raises(NonFiniteResult, match=r"logits of .* are not finite"):
        generate(model, text(9), 5, mode="full", sampling=Sampling(heat))


@pytest.mark.parametrize("mode", ["full", "re-encode"])
@pytest.mark.parametrize("heat", [0.0, 100.0])
def test_ids_that_no_tokenizer_knows_are_never_written(mode: str, heat: float) -> None:
    for model in (decoder("none"), build("llama")):
        made = generate(
            model, [1, 2, 3], 40, mode=mode, window=None if mode == "full" else 9, sampling=Sampling(heat, known=5)
        )
        assert set(made.ids[0]) <= set(range(5))


@pytest.mark.usefixtures("float64")
def test_long_prompts_of_theirs_are_read_in_chunks() -> None:
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
def test_theirs_draw_as_transformers_does(sampling: Sampling, flags: dict[str, float]) -> None:
    model, prompt = build("llama"), text(7)
    torch.manual_seed(sampling.seed)
    ids = model.generate(
        torch.tensor([prompt]), do_sample=True, max_new_tokens=20, pad_token_id=0, eos_token_id=None, **flags
    )
    assert generate(model, prompt, 20, mode="full", sampling=sampling).ids == ids[:, 7:].tolist()


@pytest.mark.parametrize("heat", [1e-3, 1e-40, 1e-300])
def test_however_cold_the_likeliest_is_drawn(heat: float) -> None:
    model, prompt = decoder("alibi"), text(5)
    greedy = generate(model, prompt, 8, mode="full").ids
    assert generate(model, prompt, 8, mode="full", sampling=Sampling(heat)).ids == greedy


def test_a_wide_window_costs_only_what_is_seen() -> None:
    model, prompt = decoder("alibi"), text(5)
    wide = generate(model, prompt, 4, mode="sliding", window=2**39)
    assert wide.ids == generate(model, prompt, 4, mode="full").ids
    assert wide.cache_bytes is not None
    assert wide.cache_bytes < 2**16
    with pytest.raises(BadInput, match="less than 1099511627776 is needed"):
        generate(model, prompt, 4, window=2**40)


def test_ours_can_be_an_assistant() -> None:
    main, small = (FieldlensForCausalLM.of(decoder("alibi", layers=layers)) for layers in (2, 1))
    ids_BT = torch.tensor([text(6)])
    alone = main.generate(ids_BT, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None)
    helped = main.generate(
        ids_BT, max_new_tokens=12, do_sample=False, pad_token_id=0, eos_token_id=None, assistant_model=small
    )
    assert helped.tolist() == alone.tolist()


def test_prompts_may_be_numbers_of_any_kind() -> None:
    model = decoder("none")
    same = [[5, 6]]
    for prompts in (same, [5, 6], [[np.int64(5), np.int64(6)]], np.array([[5, 6]]), torch.tensor([5, 6])):
        assert generate(model, prompts, 3, mode="full").ids == generate(model, same, 3, mode="full").ids
    for wrong in ([[1, 2], 3], 5, [[1.5]], torch.tensor(3)):
        with pytest.raises(BadInput, match="a prompt is a row of token ids"):
            generate(model, wrong, 3, mode="full")  # type: ignore[arg-type]
