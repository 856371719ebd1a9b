"""Schemes beyond tables, each against a float64 construction from its formula and against published implementations."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_oss import modeling_gpt_oss
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.llama4 import modeling_llama4
from transformers.models.ministral3 import modeling_ministral3

import fieldlens
from fieldlens.core.errors import BadInput
from fieldlens.schemes import base
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.spec import scheme

HEADS, WIDTH, TOKENS = 2, 8, 90


@pytest.fixture(autouse=True)
def _float64(float64: None) -> None:
    """Every test of this module computes in float64."""


def qkv(tokens: int = TOKENS, width: int = WIDTH) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = torch.randn(3, 1, HEADS, tokens, width)
    return q, k, v


def softmax_attention(scores_HTS: Tensor, v_BHSK: Tensor, window: int | None = None) -> Tensor:
    """Attention from whole matrices of logits, masked here."""
    tokens = scores_HTS.shape[-1]
    distances = torch.arange(tokens)[:, None] - torch.arange(tokens)
    hidden = (distances < 0) | (distances >= (window or tokens))
    return torch.softmax(scores_HTS.masked_fill(hidden, -torch.inf), -1) @ v_BHSK[0]


def products(q: Tensor, k: Tensor) -> Tensor:
    return q[0] @ k[0].transpose(1, 2) / math.sqrt(q.shape[-1])


# Rotary with its scalings, against transformers: frequencies, and rotated vectors.
ROPE = {
    "rotary:scaling=linear,factor=4": {"rope_type": "linear", "factor": 4.0},
    "rotary:scaling=yarn,factor=4,original=128": {
        "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128,
    },
    "rotary:base=500000,scaling=yarn,factor=16,original=4096": {
        "rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 4096, "rope_theta": 5e5,
    },
    "rotary:scaling=llama3,factor=8,original=256": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "rotary:fraction=0.4": {"rope_type": "proportional", "partial_rotary_factor": 0.4},
}  # fmt: skip


def reference_frequencies(parameters: dict[str, object], length: int | None = None) -> tuple[Tensor, float]:
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, max_position_embeddings=256,
        rope_parameters={"rope_theta": 1e4, **parameters},
    )  # fmt: skip
    return ROPE_INIT_FUNCTIONS[str(parameters["rope_type"])](config, torch.device("cpu"), seq_len=length)


@pytest.mark.parametrize("spec", ROPE)
def test_scaled_frequencies_are_transformers(spec: str) -> None:
    frequencies_F, factor = reference_frequencies(ROPE[spec])
    built = scheme(spec, 2, 64)
    assert (built.angles(torch.tensor([1]))[0] - frequencies_F).abs().max() < 1e-6
    assert built.score_factor == pytest.approx(factor**2, rel=1e-6)


@pytest.mark.parametrize("length", [100, 257, 1000])
def test_dynamic_frequencies_are_transformers(length: int) -> None:
    frequencies_F, _ = reference_frequencies({"rope_type": "dynamic", "factor": 2.0}, length)
    built = scheme("rotary:scaling=dynamic,factor=2", 2, 64, train_length=256)
    assert (built.angles(torch.tensor([1, length - 1]))[0] - frequencies_F).abs().max() < 1e-6
    assert not built.exact_with_cache


def test_ntk_changes_the_base() -> None:
    """The slowest frequency is divided by the factor, the fastest stays."""
    angles = scheme("rotary:scaling=ntk,factor=4", 2, 64).angles(torch.tensor([1]))[0]
    plain = scheme("rotary", 2, 64).angles(torch.tensor([1]))[0]
    assert angles[0] == plain[0]
    assert float(plain[-1] / angles[-1]) == pytest.approx(4, rel=1e-12)
    changed = scheme(f"rotary:base={1e4 * 4 ** (64 / 62)}", 2, 64).angles(torch.tensor([1]))[0]
    assert (angles - changed).abs().max() < 1e-12


def test_yarn_attention_is_transformers() -> None:
    """cos and sin of queries and of keys carry YaRN's factor there, so scores carry its square."""
    parameters = {"rope_theta": 1e4, **ROPE["rotary:scaling=yarn,factor=4,original=128"]}
    config = LlamaConfig(hidden_size=128, num_attention_heads=2, rope_parameters=parameters)
    q, k, v = qkv(200, 64)
    cos, sin = LlamaRotaryEmbedding(config)(q.float(), torch.arange(200)[None])
    expected = softmax_attention(products(*apply_rotary_pos_emb(q, k, cos.double(), sin.double())), v)
    result = fieldlens.attention(q, k, v, scheme("rotary:scaling=yarn,factor=4,original=128", 2, 64))
    assert (result[0] - expected).abs().max() < 1e-4  # the reference has float32 angles
    without = fieldlens.attention(q, k, v, scheme("rotary", 2, 64))
    assert (without[0] - expected).abs().max() > 1e-2


def test_fraction_zeroes_the_slow_frequencies() -> None:
    angles = scheme("rotary:fraction=0.5", 2, 64).angles(torch.arange(9))
    assert torch.equal(angles[:, :16], scheme("rotary", 2, 64).angles(torch.arange(9))[:, :16])
    assert not angles[:, 16:].any()
    assert not scheme("rotary:fraction=0", 2, 64).angles(torch.arange(9)).any()


def test_the_training_length_is_the_original_length() -> None:
    config = fieldlens.Config(
        scheme="rotary:scaling=yarn,factor=4", layers=1, width=16, heads=2, vocab_size=9, train_length=64
    )
    model = fieldlens.Decoder(config)
    assert model.scheme.original == 64
    with pytest.raises(BadInput, match="needs the original length"):
        fieldlens.Decoder(fieldlens.Config(scheme="rotary:scaling=yarn,factor=4", layers=1, width=16, heads=2))


def test_xpos_decays_each_pair_with_distance() -> None:
    """Σ_j Re(q_j·conj(k_j)·e^{iθΔ})·ζ_j^(Δ/512), over complex pairs."""
    q, k, v = qkv()
    half = WIDTH // 2
    q_c, k_c = (torch.complex(x[0, ..., :half], x[0, ..., half:]) for x in (q, k))
    j = torch.arange(half)
    distances = (torch.arange(TOKENS)[:, None] - torch.arange(TOKENS))[..., None]
    zeta, theta = (2 * j / WIDTH + 0.4) / 1.4, 1e4 ** (-2 * j / WIDTH)
    turns = torch.polar(zeta ** (distances / 512), theta * distances)
    scores = torch.einsum("htj,hsj,tsj->hts", q_c, k_c.conj(), turns).real / math.sqrt(WIDTH)
    assert (fieldlens.attention(q, k, v, scheme("xpos", 2, 8))[0] - softmax_attention(scores, v)).abs().max() < 1e-12


def test_xpos_refuses_positions_that_overflow() -> None:
    q, k, v = qkv(2)
    built = scheme("xpos", 2, 8)
    far = torch.tensor([32690, 32691])
    assert bool(fieldlens.attention(q.float(), k.float(), v.float(), built, None, far, far).isfinite().all())
    with pytest.raises(BadInput, match="xpos: position 40001 is beyond 32695: increase scale_base"):
        fieldlens.attention(q, k, v, built, None, far + 7310, far + 7310)


def test_xpos_is_x_transformers() -> None:
    module = pytest.importorskip(
        "x_transformers.x_transformers", reason="x-transformers is not installed (extra: bench)"
    )
    rotary = module.RotaryEmbedding(WIDTH, use_xpos=True, scale_base=512)
    q, k, v = qkv()
    angles, scale = rotary(torch.arange(TOKENS))
    pairs = torch.stack([torch.arange(WIDTH // 2), torch.arange(WIDTH // 2) + WIDTH // 2], 1).flatten()  # interleaved
    rotated = module.apply_rotary_pos_emb(q[..., pairs], angles, scale)
    keys = module.apply_rotary_pos_emb(k[..., pairs], angles, scale**-1)
    expected = softmax_attention(products(rotated, keys), v)
    assert (fieldlens.attention(q, k, v, scheme("xpos", 2, 8))[0] - expected).abs().max() < 1e-5


# The options of every scheme: SSMax, log-n, sinks.
@pytest.mark.parametrize("window", [None, 20])
@pytest.mark.parametrize("option", ["logits=ssmax", "logits=logn"])
def test_logits_are_scaled_by_the_number_of_visible_keys(option: str, window: int | None) -> None:
    q, k, v = qkv()
    built = scheme(f"alibi:{option}", 2, 8, train_length=32).double()
    visible = torch.arange(1, TOKENS + 1).clamp(max=window or TOKENS).double()
    factor = torch.where(visible > 32, visible.log() / math.log(32), 1.0)[None]
    if option == "logits=ssmax":
        assert built.softmax_options is not None
        with torch.no_grad():
            built.softmax_options.ssmax_H.copy_(torch.tensor([0.3, 0.7]))
        factor = torch.tensor([0.3, 0.7])[:, None] * visible.log()
    bias = built.bias((torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)).clamp(min=0).flatten())
    scores = factor[..., None] * products(q, k) + bias.view(2, TOKENS, TOKENS)
    result = fieldlens.attention(q, k, v, built, window)
    assert (result[0] - softmax_attention(scores, v, window)).abs().max() < 1e-12


@pytest.mark.parametrize("length", [64, 1024, None])
def test_ssmax_starts_with_a_mean_factor_of_1(length: int | None) -> None:
    built = scheme("none:logits=ssmax", 2, 8, train_length=length)
    assert built.softmax_options is not None
    visible_B1T = torch.arange(1, (length or 1024) + 1).double()[None, None]
    assert float(built.softmax_options.query_scale(visible_B1T).mean().detach()) == pytest.approx(1, rel=1e-7)


class Temperature(Scheme):
    """q·(1 + 0.1·ln(1 + ⌊(i+shift)/16⌋)): the attention temperature of Llama 4, as a plugin would write it."""

    relative = False

    def __init__(self, heads: int, head_width: int, *, shift: int = 1) -> None:
        super().__init__(heads, head_width)
        self.shift = shift

    def query_scale(self, positions: Tensor, visible: Tensor) -> Tensor:
        return 1 + 0.1 * torch.log1p(torch.floor((positions + self.shift) / 16))


def projected(module: torch.nn.Module, x_BTD: Tensor) -> list[Tensor]:
    """The unrotated queries, keys and values of an attention module of transformers."""
    projections = (module.q_proj, module.k_proj, module.v_proj)
    return [projection(x_BTD).unflatten(-1, (HEADS, WIDTH)).transpose(1, 2) for projection in projections]


SHAPE = {
    "hidden_size": HEADS * WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "head_dim": WIDTH,
    "num_hidden_layers": 1, "vocab_size": 9, "intermediate_size": 8, "attn_implementation": "eager",
}  # fmt: skip


@pytest.fixture
def _temperature(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Temperature, "name", "temperature", raising=False)
    monkeypatch.setitem(base.REGISTERED, "temperature", Temperature)


@pytest.mark.usefixtures("_temperature")
def test_a_plugin_has_the_temperature_of_llama_4() -> None:
    """A layer without rotary of Llama 4, built from its configuration."""
    config = modeling_llama4.Llama4TextConfig(
        **SHAPE, no_rope_layers=[0], attn_temperature_tuning=True, floor_scale=16, attn_scale=0.1
    )
    module = modeling_llama4.Llama4TextAttention(config, 0)
    x, mask = torch.randn(1, TOKENS, HEADS * WIDTH), torch.full((TOKENS, TOKENS), -torch.inf).triu(1)
    expected = module(x, None, mask)[0]
    result = fieldlens.attention(*projected(module, x), scheme("temperature", 2, 8))
    assert (module.o_proj(result.transpose(1, 2).flatten(2)) - expected).abs().max() < 1e-6  # its factors are float32
    without = fieldlens.attention(*projected(module, x), scheme("none", 2, 8))
    assert (module.o_proj(without.transpose(1, 2).flatten(2)) - expected).abs().max() > 1e-4


@pytest.mark.usefixtures("_temperature")
def test_a_plugin_has_the_temperature_of_ministral_3() -> None:
    """Without the rotation, which is the identity here; its positions are not shifted by 1."""
    rope = {"rope_type": "default", "rope_theta": 1e4, "llama_4_scaling_beta": 0.1}
    config = modeling_ministral3.Ministral3Config(**SHAPE, rope_parameters=rope)
    config.rope_parameters["original_max_position_embeddings"] = 16
    module = modeling_ministral3.Ministral3Attention(config, 0)
    x, mask = torch.randn(1, TOKENS, HEADS * WIDTH), torch.full((TOKENS, TOKENS), -torch.inf).triu(1)
    identity = torch.ones(1, TOKENS, WIDTH), torch.zeros(1, TOKENS, WIDTH)
    expected = module(x, identity, mask, torch.arange(TOKENS)[None])[0]
    result = fieldlens.attention(*projected(module, x), scheme("temperature:shift=0", 2, 8))
    assert (module.o_proj(result.transpose(1, 2).flatten(2)) - expected).abs().max() < 1e-6
    shifted = fieldlens.attention(*projected(module, x), scheme("temperature", 2, 8))
    assert (module.o_proj(shifted.transpose(1, 2).flatten(2)) - expected).abs().max() > 1e-5


@pytest.mark.parametrize("tokens", [20, TOKENS])
def test_the_sink_is_gpt_oss(tokens: int) -> None:
    """Outputs and gradients, with one mask (few tokens) and in blocks."""
    q, k, v = (x.requires_grad_() for x in qkv(tokens))
    built = scheme("none:sink=learned", 2, 8)
    assert built.softmax_options is not None
    sinks = built.softmax_options.sink_H
    with torch.no_grad():
        sinks.copy_(torch.tensor([1.5, -0.5]))

    class Module(torch.nn.Module):
        num_key_value_groups = 1

    module = Module()
    module.sinks, module.training = sinks, False
    mask = torch.full((tokens, tokens), -torch.inf).triu(1)
    reference = modeling_gpt_oss.eager_attention_forward(module, q, k, v, mask, WIDTH**-0.5)[0].transpose(1, 2)
    result, upstream = fieldlens.attention(q, k, v, built), torch.randn(1, HEADS, tokens, WIDTH)
    assert (result - reference).abs().max() < 1e-12
    for ours, theirs in zip(
        *(torch.autograd.grad(o, (q, k, v, sinks), upstream) for o in (result, reference)), strict=True
    ):
        assert (ours - theirs).abs().max() < 1e-11


# Content.
def test_fox_is_its_formula() -> None:
    """Σ ln f over the tokens after the key up to the query, by loops."""
    q, k, v = qkv(30)
    x = torch.randn(1, 30, 16)
    built = scheme("fox", 2, 8)
    with torch.no_grad():
        built.weight_HD.normal_()
    gates = np.log(
        1 / (1 + np.exp(-(x[0].numpy() @ built.weight_HD.detach().numpy().T + built.bias_H.detach().numpy())))
    )
    bias = np.zeros((2, 30, 30))
    for i in range(30):
        for j in range(i):
            bias[:, i, j] = gates[j + 1 : i + 1].sum(0)
    expected = softmax_attention(products(q, k) + torch.from_numpy(bias), v)
    assert (fieldlens.attention(q, k, v, built, x_BSD=x)[0] - expected).abs().max() < 1e-12


def test_fox_starts_as_alibi() -> None:
    q, k, v = qkv()
    built = scheme("fox", 2, 8)
    with torch.no_grad():
        built.weight_HD.zero_()
    result = fieldlens.attention(q, k, v, built, x_BSD=torch.randn(1, TOKENS, 16))
    assert (result - fieldlens.attention(q, k, v, scheme("alibi", 2, 8))).abs().max() < 1e-12


def test_fox_stays_exact_in_float32_after_many_tokens() -> None:
    """Sums of decays reach thousands: without the shift of each block, weights would be off by 1e-3."""
    q, k, v = qkv(3000)
    x = torch.randn(1, 3000, 16)
    built = scheme("fox", 2, 8)
    with torch.no_grad():
        built.bias_H.zero_()
    exact = fieldlens.attention(q, k, v, built, x_BSD=x)
    single = [t.float() for t in (q, k, v)]
    rounded = fieldlens.attention(*single, built.float(), x_BSD=x.float())
    assert (rounded - exact).abs().max() < 2e-5


def test_content_is_required_and_checked() -> None:
    q, k, v = qkv(5)
    with pytest.raises(BadInput, match="scheme 'fox' needs the input of the layer: pass it as x_BSD"):
        fieldlens.attention(q, k, v, scheme("fox", 2, 8))


def test_fire_is_its_formula() -> None:
    q, k, v = qkv()
    built = scheme("fire:threshold=20", 2, 8)
    i, j = np.arange(TOKENS)[:, None], np.arange(TOKENS)[None]
    ratio = np.log1p(0.1 * np.maximum(i - j, 0)) / (np.log1p(0.1 * np.maximum(20, i)) + 1e-6)
    first, second = built.hidden, built.output
    hidden = np.maximum(ratio[..., None] @ first.weight.detach().numpy().T + first.bias.detach().numpy(), 0)
    bias = hidden @ second.weight.detach().numpy().T + second.bias.detach().numpy()
    expected = softmax_attention(products(q, k) + torch.from_numpy(bias).permute(2, 0, 1), v)
    assert (fieldlens.attention(q, k, v, built)[0] - expected).abs().max() < 1e-12


def test_fire_starts_as_published() -> None:
    built = scheme("fire", 2, 8)
    assert (built.threshold, built.hidden.out_features, built.per_layer) == (512, 32, True)
    assert (float(built.c.detach()), float(built.multiplier.detach())) == (pytest.approx(0.1), 1)


@pytest.mark.parametrize("floor", [None, 10])
def test_inkling_is_transformers(floor: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole attention layer of transformers, which normalises queries and keys and divides by the head width."""
    modeling = pytest.importorskip(
        "transformers.models.inkling.modeling_inkling", reason="this version of transformers has no Inkling"
    )
    config = modeling.InklingTextConfig(
        **SHAPE, layer_types=["hybrid"], d_rel=16, rel_extent=40, log_scaling_n_floor=floor, log_scaling_alpha=0.1
    )
    module = modeling.InklingAttention(config, 0)
    monkeypatch.setattr(modeling.InklingShortConvolution, "forward", lambda _, states, **__: states)  # no part of it
    built = scheme("inkling:extent=40" + (f",floor={floor}" if floor else ""), 2, 8)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.normal_()
        module.rel_logits_proj.proj.copy_(built.curves_RN)
        module.r_proj.weight.copy_(built.mix_HRD.flatten(0, 1))
    x, mask = torch.randn(1, TOKENS, HEADS * WIDTH), torch.full((TOKENS, TOKENS), -torch.inf).triu(1)
    q, k, v = projected(module, x)
    result = fieldlens.attention(module.q_norm(q) * WIDTH**-0.5, module.k_norm(k), v, built, x_BSD=x)
    expected = module(x, mask)[0]
    assert (module.o_proj(result.transpose(1, 2).flatten(2)) - expected).abs().max() < 1e-5  # its softmax is float32


def cope_scores(q: Tensor, k: Tensor, table_KN: np.ndarray) -> np.ndarray:
    """CoPE by loops over queries and keys."""
    logits = products(q, k).numpy().copy()
    result = logits.copy()
    largest = table_KN.shape[1] - 1
    for h in range(logits.shape[0]):
        for i in range(logits.shape[1]):
            position = 0.0
            for j in range(i, -1, -1):
                position = position + 1 / (1 + np.exp(-logits[h, i, j]))
                clamped = min(position, largest)
                low = int(clamped)
                high = min(low + 1, largest)
                vector = table_KN[:, low] * (1 - clamped + low) + table_KN[:, high] * (clamped - low)
                result[h, i, j] += q[0, h, i].numpy() @ vector
    return result


def test_cope_is_its_formula() -> None:
    q, k, v = qkv(70)
    built = scheme("cope:positions=12", 2, 8)
    with torch.no_grad():
        built.table_KN.normal_()
    expected = softmax_attention(torch.from_numpy(cope_scores(q, k, built.table_KN.detach().numpy())), v)
    assert (fieldlens.attention(q, k, v, built)[0] - expected).abs().max() < 1e-12


def test_cope_is_x_transformers() -> None:
    module = pytest.importorskip(
        "x_transformers.x_transformers", reason="x-transformers is not installed (extra: bench)"
    )
    q, k, v = qkv(50)
    built = scheme("cope:positions=12", 2, 8)
    reference = module.CoPE(WIDTH, HEADS, 12)
    with torch.no_grad():
        built.table_KN.normal_()
        reference.pos_emb.copy_(built.table_KN.T)
    masked = products(q, k)[None].masked_fill(torch.ones(50, 50).triu(1).bool(), -torch.inf)
    expected = softmax_attention(products(q, k) + reference(q, masked)[0], v)
    assert (fieldlens.attention(q, k, v, built)[0] - expected).abs().max() < 1e-6


class StickBreaking(Scheme):
    """w_ij = β_ij·Π_{j<m≤i} (1 - β_im),  β = σ(q·k/√K): weights that are no softmax, as a plugin would write them."""

    def attention_weights(self, logits_BHts: Tensor, visible_Bts: Tensor) -> Tensor:
        rest_BHts = F.logsigmoid(-logits_BHts).masked_fill(~visible_Bts[:, None], 0)
        later_BHts = rest_BHts.flip(3).cumsum(3).flip(3) - rest_BHts
        return (F.logsigmoid(logits_BHts) + later_BHts).exp()


@pytest.fixture
def _stick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StickBreaking, "name", "stick", raising=False)
    monkeypatch.setitem(base.REGISTERED, "stick", StickBreaking)


@pytest.mark.usefixtures("_stick")
def test_a_plugin_can_replace_the_softmax() -> None:
    q, k, v = qkv(70)
    beta = 1 / (1 + np.exp(-products(q, k).numpy()))
    weights = np.zeros_like(beta)
    for i in range(70):
        left = np.ones(HEADS)
        for j in range(i, -1, -1):
            weights[:, i, j] = left * beta[:, i, j]
            left = left * (1 - beta[:, i, j])
    expected = torch.from_numpy(weights) @ v[0]
    assert (fieldlens.attention(q, k, v, scheme("stick", 2, 8))[0] - expected).abs().max() < 1e-12


def test_the_general_path_keeps_one_block_of_scores() -> None:
    """Between forward and backward no tensor of T × S elements is saved."""
    q, k, v = (x.requires_grad_() for x in qkv(600))
    sizes: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        fieldlens.attention(q, k, v, scheme("cope", 2, 8)).sum()
    assert max(sizes) <= 600 * HEADS * WIDTH
