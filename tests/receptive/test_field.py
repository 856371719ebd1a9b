"""The receptive field: analytic cases, exact reach, thirteen model families against plain autograd."""

import math

import numpy as np
import pytest
import torch
from families import FAMILIES, VOCABULARY, build
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from torch import Tensor, nn

import fieldlens
from fieldlens import Config, Decoder
from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.adapt import adapt
from fieldlens.receptive.field import ReceptiveField, erf
from fieldlens.receptive.input_gradients import EmbeddingHook, embedding_hook, layers_of


class Mixing(nn.Module):
    """Layers that average embeddings with fixed weights by distance; the logits are linear in the last average."""

    def __init__(self, weights_N: Tensor, layers: int = 1, residual: bool = False, width: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, width, dtype=torch.float64)
        self.head = nn.Linear(width, 11, dtype=torch.float64)
        self.weights_N, self.layers, self.residual = weights_N, layers, residual

    def forward(self, ids_BT: Tensor) -> Tensor:
        x_BTD = self.embedding(ids_BT)
        t = ids_BT.shape[1]
        distances_TT = torch.arange(t)[:, None] - torch.arange(t)[None]
        within = (distances_TT >= 0) & (distances_TT < len(self.weights_N))
        mix_TT = torch.where(within, self.weights_N[distances_TT.clamp(0, len(self.weights_N) - 1)], 0.0)
        mix_TT = mix_TT / mix_TT.sum(1, keepdim=True).clamp(min=1e-300)
        for _ in range(self.layers):
            x_BTD = (x_BTD + mix_TT @ x_BTD) / 2 if self.residual else mix_TT @ x_BTD
        return self.head(x_BTD)


def field_of(model: nn.Module, length: int, **options: object) -> ReceptiveField:
    ids_T = torch.randint(11, (length + 1,), generator=torch.Generator().manual_seed(1))
    return fieldlens.receptive_field(model, ids_T, **options)  # type: ignore[arg-type]


def ones(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.float64)


def test_a_gradient_whose_square_underflows_counts() -> None:
    field = field_of(Mixing(torch.tensor([1.0, 1e-30])).float(), 8)
    assert field.share.tolist() == pytest.approx([0, 0, 0, 0, 0, 0, 1e-30, 1], rel=1e-6, abs=1e-40)


@pytest.mark.parametrize(
    ("length", "tokens"), [(100, 100), (200, 199), (500, 496), (512, 507), (1000, 991), (2048, 2028)]
)
def test_uniform_attention_and_the_rule_for_ties(length: int, tokens: int) -> None:
    field = field_of(Mixing(ones(length)), length)
    assert (field.share - 1 / length).abs().max() < 1e-12
    assert field.erf(0.99) == tokens == math.floor(0.99 * length + 1e-9) + 1


@pytest.mark.parametrize(("window", "tokens"), [(40, 40), (100, 100), (320, 317)])
def test_one_window(window: int, tokens: int) -> None:
    field = field_of(Mixing(ones(window)), 512)
    assert field.erf(0.99) == tokens == math.floor(0.99 * window + 1e-9) + 1
    assert (field.share[-window:] - 1 / window).abs().max() < 1e-12
    assert float(field.share[: 512 - window].abs().max()) == 0


@pytest.mark.parametrize(
    ("slope", "length", "tokens"), [(1, 512, 5), (1 / 4, 512, 19), (1 / 16, 512, 74), (1 / 256, 2048, 1171)]
)
def test_one_layer_of_alibi(slope: float, length: int, tokens: int) -> None:
    weights_N = torch.exp(-slope * torch.arange(length, dtype=torch.float64))
    field = field_of(Mixing(weights_N), length)
    assert (field.share.flip(0) - weights_N / weights_N.sum()).abs().max() < 1e-12
    assert field.erf(0.99) == tokens


@pytest.mark.parametrize(
    ("window", "plain", "residual"),
    [(40, 327, 228), (80, 659, 459), (100, 825, 575), (120, 991, 691), (160, 1323, 922), (320, 2652, 1847)],
)
def test_twelve_stacked_windows(window: int, plain: int, residual: int) -> None:
    """The gradient is a box convolved with itself twelve times, or (I + box)^12 / 2^12."""
    for tokens, more in ((plain, False), (residual, True)):
        field = field_of(Mixing(ones(window), 12, residual=more), 13 * window)
        kernel_N = np.full(window, 1 / window)
        expected_N = np.ones(1)
        for _ in range(12):
            spread_N = np.convolve(expected_N, kernel_N)
            still_N = np.pad(expected_N, (0, len(spread_N) - len(expected_N)))
            expected_N = (spread_N + still_N) / 2 if more else spread_N
        recent_N = field.share.flip(0).numpy()
        assert np.abs(recent_N[: len(expected_N)] - expected_N[: len(recent_N)]).max() < 1e-12
        assert field.erf(0.99) == tokens


def test_a_model_that_reads_one_token() -> None:
    weights_N = torch.zeros(8, dtype=torch.float64)
    weights_N[7] = 1
    field = field_of(Mixing(weights_N), 20)
    assert field.erf(0.5) == field.erf(0.99) == 8


def test_no_dependence_is_a_status_never_a_number() -> None:
    model = Mixing(ones(8))
    with torch.no_grad():
        model.head.weight.zero_()
    field = field_of(model, 8)
    assert "does not depend" in field.status
    assert field.to_json()["status"] == field.status
    assert "erf" not in field.to_json()
    with pytest.raises(BadInput, match="has no receptive field"):
        field.erf()
    with torch.no_grad():
        model.head.weight.fill_(1e-17)  # an effect far below what float64 can resolve in the logits
    assert field_of(model, 8).status
    with torch.no_grad():
        model.head.weight.fill_(1.0)
        model.embedding.weight[3] = math.nan
    assert "not finite" in field_of(model, 40).status


def test_undefined_segments_are_counted_and_excluded() -> None:
    norms_NT = np.array([[1.0, 1.0], [math.nan, math.nan], [0.0, 2.0]])
    field = ReceptiveField(norms_NT)
    assert field.to_json()["undefined_segments"] == 1
    assert field.share.tolist() == [0.25, 0.75]


@given(st.floats(1e-3, 1e3), st.integers(2, 40))
def test_scale_does_not_matter_and_shares_sum_to_one(scale: float, length: int) -> None:
    norms_T = np.random.default_rng(length).random((1, length)) + 0.01
    field, scaled = ReceptiveField(norms_T), ReceptiveField(norms_T * scale)
    assert float(field.share.sum()) == pytest.approx(1, abs=1e-12)
    assert float(field.cumulative[0]) == pytest.approx(1, abs=1e-12)
    assert (field.share - scaled.share).abs().max() < 1e-12
    assert all(field.erf(level) <= field.erf(level + 0.05) for level in (0.1, 0.5, 0.9))


def test_the_order_of_averaging_matters() -> None:
    norms_NT = np.array([[9.0, 1.0], [1.0, 9.0], [0.01, 0.99]])
    shares, norms = ReceptiveField(norms_NT), ReceptiveField(norms_NT, "norms")
    assert shares.share.tolist() == pytest.approx([(0.9 + 0.1 + 0.01) / 3, (0.1 + 0.9 + 0.99) / 3])
    assert norms.share.tolist() == pytest.approx([10.01 / 21, 10.99 / 21])


def test_the_first_token_is_reported_separately() -> None:
    norms_T = np.ones((1, 100))
    norms_T[0, 0] = 900.0
    field = ReceptiveField(norms_T)
    assert field.first_share == pytest.approx(900 / 999)
    assert field.erf(0.5) == 100
    assert field.erf(0.5, without_first=True) == 50
    assert field.saturated()
    assert field.has_sink
    even = ReceptiveField(np.ones((1, 8)))
    assert even.first_share > 0.1
    assert not even.has_sink


def test_bos_is_not_counted() -> None:
    norms_T = np.ones((1, 101))
    field = ReceptiveField(norms_T, bos=True, train_length=100)
    assert (field.length, field.first, field.erf(0.99)) == (100, 2, 100)
    assert field.first_share == pytest.approx(2 / 101)


def test_without_the_first_token_nothing_may_be_left() -> None:
    for average in ("shares", "norms"):
        field = ReceptiveField(np.array([[1.0, 0.0, 0.0]]), average)
        assert not field.stands_alone
        assert field.to_json()["erf_without_first"] is None
        assert field.to_json()["saturated_without_first"] is None


def test_levels_must_be_between_0_and_1() -> None:
    for level in (0.0, 1.0, -1.0):
        with pytest.raises(BadInput, match="level must be between 0 and 1, got"):
            erf(np.ones(3) / 3, level)


def test_probability_and_log_probability_give_equal_shares(float64: None) -> None:
    decoder = Decoder(Config(layers=2, width=32, heads=4, vocab_size=VOCABULARY, init_std=0.2))
    ids_BT = torch.randint(VOCABULARY, (1, 30))
    logs = fieldlens.receptive_field(decoder, ids_BT).share
    embeddings_BTD = decoder.embed(ids_BT[:, :-1]).detach().requires_grad_()
    probability = decoder(embeddings_BTD=embeddings_BTD, last=True)[0, -1].softmax(0)[ids_BT[0, -1]]
    (gradient,) = torch.autograd.grad(probability, embeddings_BTD)
    norms_T = gradient[0].norm(dim=-1)
    assert (logs - norms_T / norms_T.sum()).abs().max() < 1e-12


def test_finite_differences_agree(float64: None) -> None:
    decoder = Decoder(Config(scheme="alibi", layers=2, width=16, heads=2, vocab_size=VOCABULARY, init_std=0.3))
    ids_BT = torch.randint(VOCABULARY, (1, 9))
    field = fieldlens.receptive_field(decoder, ids_BT)
    x_BTD = decoder.embed(ids_BT[:, :-1]).detach()

    def log_p(x: Tensor) -> Tensor:
        return decoder(embeddings_BTD=x, last=True)[0, -1].log_softmax(0)[ids_BT[0, -1]]

    norms = []
    with torch.no_grad():
        for token in range(8):
            slopes = []
            for axis in range(16):
                step = torch.zeros_like(x_BTD)
                step[0, token, axis] = 1e-6
                slopes.append((log_p(x_BTD + step) - log_p(x_BTD - step)) / 2e-6)
            norms.append(torch.stack(slopes).norm())
    expected = torch.stack(norms) / torch.stack(norms).sum()
    assert (field.share - expected).abs().max() < 1e-6


def naive(model: nn.Module, row_T: Tensor) -> Tensor:
    """Plain autograd, with all parameters and all logits."""
    outputs: list[Tensor] = []
    handle = model.get_input_embeddings().register_forward_hook(lambda *args: outputs.append(args[2]))  # type: ignore[operator]
    log_p = model(row_T[None, :-1]).logits[0, -1].log_softmax(-1)[row_T[-1]]
    handle.remove()
    (gradient,) = torch.autograd.grad(log_p, outputs[0])
    norms_T = gradient[0].norm(dim=-1).double()
    return norms_T / norms_T.sum()


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_shares_are_those_of_plain_autograd(family: str, checkpointing: bool) -> None:
    model, ids_BT = build(family).train(), torch.randint(VOCABULARY, (3, 41))
    model.eval()
    expected = torch.stack([naive(model, row) for row in ids_BT]).mean(0)
    adapter = adapt(model)
    assert embedding_hook(adapter, checkpointing).checkpointing == checkpointing
    model.train()
    field = fieldlens.receptive_field(model, ids_BT, checkpointing=checkpointing)
    assert (field.share - expected).abs().max() < 1e-5
    assert all(module.training for module in model.modules())  # as it was
    model.eval()
    fieldlens.receptive_field(model, ids_BT, checkpointing=checkpointing)
    assert not any(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_misspelt_options_are_refused() -> None:
    ids_T = torch.zeros(5, dtype=torch.long)
    with pytest.raises(BadInput, match="unknown target 'log-likelyhood': did you mean 'log-likelihood'"):
        fieldlens.receptive_field(build("llama"), ids_T, target="log-likelyhood")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="unknown average 'share'"):
        fieldlens.receptive_field(build("llama"), ids_T, average="share")  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="at least float32"):
        fieldlens.receptive_field(build("llama").bfloat16(), ids_T)


def test_the_top_logit_gives_other_shares() -> None:
    model, ids_BT = build("llama"), torch.randint(VOCABULARY, (1, 30))
    truth, top = (fieldlens.receptive_field(model, ids_BT, target=t) for t in ("log-likelihood", "top-logit"))
    assert (truth.share - top.share).abs().max() > 1e-4


@pytest.mark.parametrize("window", [1, 2, 5])
@pytest.mark.parametrize("spec", ["none", "alibi", "rotary", "sinusoidal", "t5"])
def test_windows_of_a_decoder_have_exact_reach(spec: str, window: int, float64: None) -> None:
    decoder = Decoder(
        Config(scheme=spec, window=window, layers=3, width=16, heads=2, vocab_size=VOCABULARY, init_std=0.3)
    )
    field = fieldlens.receptive_field(decoder, torch.randint(VOCABULARY, (1, 31)))
    reach = 3 * (window - 1) + 1
    assert adapt(decoder).reach() == reach
    assert field.share[:-reach].eq(0).all()
    assert field.share[-reach:].gt(0).all()


@pytest.mark.parametrize("family", ["mistral", "gemma3_text", "gpt_neox"])
def test_windows_of_transformers_models_have_exact_reach(family: str) -> None:
    model = build(family).double()
    adapter, ids_BT = adapt(model), torch.randint(VOCABULARY, (1, 61))
    field = fieldlens.receptive_field(model, ids_BT)
    reach = adapter.reach() or 60
    assert field.share[:-reach].eq(0).all()
    assert field.share[-reach:].gt(0).all()
    banded = fieldlens.receptive_field(model, ids_BT, window=3)
    reach = adapter.reach(3)
    assert reach == 2 * adapter.layers + 1  # type: ignore[operator]
    assert banded.share[:-reach].eq(0).all()
    assert banded.share[-reach:].gt(0).all()


def test_the_reach_grows_with_the_layer(float64: None) -> None:
    decoder = Decoder(Config(scheme="none", window=3, layers=4, width=16, heads=2, vocab_size=VOCABULARY, init_std=0.3))
    norms_RBT = EmbeddingHook(adapt(decoder)).layers(torch.randint(VOCABULARY, (1, 31)))
    assert [int((row > 0).sum()) for row in norms_RBT[:, 0]] == [3, 5, 7, 9]
    model = build("mistral").double()
    assert len(layers_of(adapt(model))) == 3
    norms_RBT = EmbeddingHook(adapt(model), checkpointing=True).layers(torch.randint(VOCABULARY, (1, 31)))
    assert [int((row > 0).sum()) for row in norms_RBT[:, 0]] == [6, 11, 16]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (torch.zeros(1, dtype=torch.long), "at least one context token"),
        (torch.zeros(5), "ids must be integers, got torch.float32"),
        (torch.zeros(0, 5, dtype=torch.long), "at least one context token"),
        ([[1, 2, 3], [1, 2]], "of the same length"),
        (torch.full((5,), VOCABULARY), "token id 97 is outside the vocabulary of 97"),
        (torch.full((5,), -1), "token id -1"),
        (torch.zeros(100, dtype=torch.long), "99 tokens exceed the 64 positions of"),
    ],
)
def test_bad_ids_are_refused(ids: Tensor, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fieldlens.receptive_field(build("gpt2"), ids)


def test_a_function_without_an_embedding_cannot_be_measured() -> None:
    with pytest.raises(BadInput, match="needs a submodule named embedding"):
        fieldlens.receptive_field(lambda ids: torch.zeros(*ids.shape, 5), torch.zeros(4, dtype=torch.long))


def test_figure_and_json() -> None:
    field = field_of(Mixing(ones(20)), 64)
    written = field.to_json()
    assert written["erf"]["0.99"]["tokens"] == 20
    assert len(written["share"]) == 64
    assert field.plot().get_xscale() == "log"
    ax = Figure().subplots()
    assert field.plot(ax) is ax
    assert ax.get_legend() is not None


def test_only_modules_that_run_once_on_text_are_layers() -> None:
    model = build("llama")
    whole = layers_of(adapt(model))
    model.eye = type(whole[0])(model.config, 0)
    assert layers_of(adapt(model)) == whole
    model.model.layers.append(model.model.layers[0])
    model.config.num_hidden_layers += 1
    assert layers_of(adapt(model)) == whole[1:]
    assert fieldlens.receptive_field(model, torch.randint(VOCABULARY, (2, 9))).share.gt(0).all()


def test_losses_do_not_depend_on_earlier_lengths() -> None:
    rope = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 100.0}
    fresh, used = (adapt(build("llama", rope_parameters=rope, max_position_embeddings=8)) for _ in range(2))
    used.losses(torch.randint(VOCABULARY, (1, 41)))
    ids_BT = torch.randint(VOCABULARY, (1, 17))
    assert torch.equal(used.losses(ids_BT), fresh.losses(ids_BT))


@pytest.mark.parametrize("family", ["opt", "bloom", "llama"])
def test_recomputing_leaves_no_trace_on_the_layers(family: str) -> None:
    model, ids_BT = build(family), torch.randint(VOCABULARY, (1, 12))
    layers = layers_of(adapt(model))
    before = [{name: value for name, value in vars(layer).items() if name[0] != "_"} for layer in layers]
    EmbeddingHook(adapt(model), checkpointing=True).norms(ids_BT)
    assert [{name: value for name, value in vars(layer).items() if name[0] != "_"} for layer in layers] == before
    assert not any("_gradient_checkpointing_func" in vars(layer) for layer in layers)


@pytest.mark.parametrize("window", [None, 3])
@pytest.mark.parametrize("name", ["gpt_neox", "gemma3_text", "falcon"])
def test_one_query_in_the_top_layer_changes_no_gradient(name: str, window: int | None) -> None:
    adapter = adapt(build(name).double().eval())
    ids_BT = torch.randint(VOCABULARY, (2, 12), generator=torch.Generator().manual_seed(1))
    assert embedding_hook(adapter).shortcut
    whole, short = (
        EmbeddingHook(adapter, shortcut=shortcut).norms(ids_BT, window=window) for shortcut in (False, True)
    )
    torch.testing.assert_close(short, whole, rtol=1e-10, atol=1e-14)


def test_positions_mixed_above_the_top_layer_need_every_query() -> None:
    class Averaged(nn.Module):
        def forward(self, states_BTD: Tensor) -> Tensor:
            return states_BTD.cumsum(1)

    model = build("llama").eval()
    model.model.norm = Averaged()
    adapter = adapt(model)
    assert not embedding_hook(adapter).shortcut
    assert embedding_hook(adapter, checkpointing=True).checkpointing


def test_other_inputs_of_tokens_are_detected() -> None:
    """As in models with a second embedding table."""

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.other, self.head = nn.Embedding(30, 8), nn.Embedding(30, 8), nn.Linear(8, 30)

        def forward(self, ids_BT: Tensor) -> Tensor:
            return self.head((self.embedding(ids_BT) + self.other(ids_BT)).cumsum(1))

    assert embedding_hook(adapt(Twice())).has_other_inputs
    assert not embedding_hook(adapt(build("llama"))).has_other_inputs
