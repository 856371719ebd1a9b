"""Each scheme against a float64 closed form derived independently, and the spec text."""

import json
from pathlib import Path

import numpy as np
import oracle
import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb
from transformers.models.t5.modeling_t5 import T5Attention

from fieldlens.core.errors import BadInput
from fieldlens.kernels.attention import bias_table
from fieldlens.kernels.rotary import apply_rotary, rotary_table
from fieldlens.schemes.discovery import registry
from fieldlens.schemes.sandwich import wave
from fieldlens.schemes.smoothed import log_fit
from fieldlens.schemes.spec import canonical, parse, scheme
from fieldlens.schemes.t5 import bucket

FAR = torch.arange(16384)
VECTORS = json.loads((Path(__file__).parents[1] / "vectors.json").read_text())


def parameters_of(built: torch.nn.Module) -> dict[str, object]:
    """Parameters of a learned scheme, as the closed form takes them."""
    learned = {key.split("_")[0]: value.detach().double().numpy() for key, value in built.named_parameters()}
    return {**learned, "scale": 8.0}  # √64, the factor in the authors' T5


@pytest.mark.parametrize("heads", [8, 12])
@pytest.mark.parametrize("name", ["sandwich", "smoothed", "alibi", "kerple", "t5"])
def test_bias_is_its_closed_form(name: str, heads: int) -> None:
    built = scheme(name, heads, 64)
    expected = oracle.bias(name, heads, FAR.numpy(), **parameters_of(built))
    bias = built.bias(FAR)
    assert bias.dtype == torch.float64
    assert np.abs(bias.detach().numpy() - expected).max() <= 1e-9 * np.ptp(expected)
    single = bias_table(built, len(FAR), torch.empty(0, dtype=torch.float32))
    assert np.abs(single.detach().double().numpy() - expected).max() <= 1e-6 * np.ptp(expected)


@pytest.mark.parametrize("spec", ["sandwich:dims=64", "sandwich:first=1", "sandwich:dims=256,first=1"])
def test_sandwich_options(spec: str) -> None:
    _, options = parse(spec)
    expected = oracle.bias("sandwich", 12, FAR.numpy(), **options)
    assert np.abs(scheme(spec, 12, 64).bias(FAR).numpy() - expected).max() <= 1e-9 * np.ptp(expected)


def test_kerple_power_is_its_closed_form() -> None:
    built = scheme("kerple:kind=power", 12, 64)
    expected = oracle.bias("kerple", 12, FAR.numpy(), kind="power", **parameters_of(built))
    assert np.abs(built.bias(FAR).detach().numpy() - expected).max() <= 1e-9 * np.ptp(expected)


def test_t5_original_has_no_factor() -> None:
    built = scheme("t5:scale=original", 12, 64)
    assert torch.equal(built.bias(torch.arange(16)).T, built.table_NH[:16].double())


def test_learned_ratios_start_at_the_fixed_ones() -> None:
    learned, fixed = (scheme(f"sandwich:ratios={kind}", 12, 64).bias(FAR) for kind in ("learned", "fixed"))
    assert (learned - fixed).abs().max() <= 1e-6 * fixed.abs().max()


@pytest.mark.parametrize("first", [0, 1])
def test_sandwich_vectors(first: int) -> None:
    distances = torch.tensor(VECTORS["distances"])
    values = torch.tensor(VECTORS[f"first={first}"], dtype=torch.float64)
    assert (wave(distances, 128, first) - values).abs().max() < 1e-6


def test_sandwich_is_the_listing_up_to_a_constant() -> None:
    """The paper's appendix: a product of sine and cosine embeddings, divided by the compression ratios."""
    positions, i = np.arange(2048)[:, None], np.arange(64)
    embeddings = np.concatenate([f(positions / 1e4 ** (2 * i / 128)) for f in (np.sin, np.cos)], -1)
    product = embeddings @ embeddings[-1]
    listing = product[None] / (np.arange(1, 13) * 8 / 12)[:, None]
    bias = scheme("sandwich", 12, 64).bias(torch.arange(2047, -1, -1)).numpy()
    difference = listing - bias
    assert np.abs(difference - difference[:, :1]).max() < 1e-9
    assert np.abs(difference[:, 0] * np.arange(1, 13) * 8 / 12 - 64).max() < 1e-9


def test_sandwich_is_the_inner_product_of_sinusoidal_embeddings() -> None:
    embeddings = scheme("sinusoidal", 2, 64).embedding(torch.arange(4096))
    products = embeddings @ embeddings[-1] - 64
    bias = scheme("sandwich", 8, 16).bias(torch.arange(4095, -1, -1))
    assert (products - bias[-1] * 8).abs().max() < 1e-9


def test_smoothed_is_kerple_up_to_a_constant() -> None:
    smoothed, kerple = scheme("smoothed", 12, 64), scheme("kerple", 12, 64).double()
    with torch.no_grad():
        kerple.p_H.copy_(6.6 / (8 * torch.arange(1, 13).double() / 12))
        kerple.a_H.fill_(1.0)
    difference = smoothed.bias(FAR) - kerple.bias(FAR)
    assert (difference - difference[:, :1]).abs().max() < 1e-9


@pytest.mark.parametrize("heads", [8, 12, 16])
def test_official_slopes_are_blooms(heads: int) -> None:
    mask = torch.ones(1, 64, dtype=torch.long)
    bloom = build_alibi_tensor(mask, heads, torch.float32).view(heads, 64)
    bias = scheme("alibi:slopes=official", heads, 64).bias(torch.arange(63, -1, -1))
    difference = bloom - bias
    assert (difference - difference[:, :1]).abs().max() < 1e-5


def test_alibi_order_of_options() -> None:
    """Slopes first, then the shift, then the floor: with the floor three printed columns are one model."""
    floored = [scheme(f"alibi:{o},slope_floor=0.01", 12, 64).slopes for o in ("shift=6", "shift=8", "same=8")]
    assert floored[0][0] == max(0.01, 2 ** -(8 / 12 + 6))
    assert floored[1] == floored[2] == [0.01] * 12
    assert scheme("alibi:shift=-3", 12, 64).slopes[0] == pytest.approx(2 ** -(8 / 12 - 3), rel=1e-12)
    assert scheme("alibi:same=2", 12, 64).slopes == [0.25] * 12


def test_t5_buckets_are_transformers() -> None:
    distances = torch.arange(20000)
    reference = T5Attention._relative_position_bucket(-distances, bidirectional=False, num_buckets=32, max_distance=128)
    assert torch.equal(bucket(distances, 32, 128), reference)
    starts = [int((reference == n).nonzero()[0]) for n in range(16, 32)]
    assert starts == [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


@pytest.mark.parametrize(("buckets", "max_distance"), [(8, 64), (32, 512), (2, 3), (7, 20)])
def test_t5_buckets_grow_to_the_last(buckets: int, max_distance: int) -> None:
    indices = bucket(torch.arange(4 * max_distance), buckets, max_distance)
    steps = indices.diff()
    assert indices[0] == 0
    assert int(indices[-1]) == buckets - 1
    assert steps.min() >= 0
    assert bool((indices[max_distance:] == buckets - 1).all())


def test_rotary_is_llamas() -> None:
    config = LlamaConfig(
        hidden_size=128, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 1e4}
    )
    q, k = torch.randn(2, 1, 2, 512, 64)
    positions = torch.arange(512)[None]
    cos, sin = LlamaRotaryEmbedding(config)(q, positions)
    references = apply_rotary_pos_emb(q, k, cos, sin)
    angles = scheme("rotary", 2, 64).angles(positions[0])
    for x, expected in zip((q, k), references, strict=True):
        assert (apply_rotary(x, rotary_table(angles, q)) - expected).abs().max() < 1e-4


@pytest.mark.parametrize("heads", [8, 12])
def test_rotary_and_sinusoidal_tables(heads: int) -> None:
    width = heads * 64
    for angles, dims in ((scheme("rotary", heads, 64).angles(FAR), 64), (None, width)):
        frequencies = np.array([10000.0 ** (-2 * j / dims) for j in range(dims // 2)])
        expected_angles = FAR.numpy()[:, None] * frequencies
        if angles is not None:
            cos, sin = rotary_table(angles, torch.empty(0))
        else:
            sin, cos = scheme("sinusoidal", heads, 64).embedding(FAR).float().chunk(2, -1)
        assert np.abs(cos.numpy() - np.cos(expected_angles)).max() < 1e-6
        assert np.abs(sin.numpy() - np.sin(expected_angles)).max() < 1e-6


def test_sinusoidal_scale_and_base() -> None:
    built = scheme("sinusoidal:base=100,scale=0.5", 1, 4).embedding(torch.tensor([3]))
    expected = 0.5 * np.array([np.sin(3), np.sin(0.3), np.cos(3), np.cos(0.3)])
    assert np.abs(built[0].numpy() - expected).max() < 1e-12


@pytest.mark.parametrize("row", VECTORS["fits"], ids=lambda row: f"first={row['first']},points={row['points']}")
def test_log_fit_constants(row: dict[str, float]) -> None:
    near = torch.arange(int(row["points"]))
    slope, constant = log_fit(near, wave(near, 128, int(row["first"])) / 8)
    assert slope == pytest.approx(row["slope"], abs=5.1e-5)
    assert constant == pytest.approx(row["constant"], abs=5.1e-5)


def test_recent_fit_is_our_least_squares() -> None:
    x = np.log(1 + np.arange(50.0))
    y = oracle.bias("sandwich", 8, np.arange(50))[-1]
    slope, constant = np.linalg.lstsq(np.stack([x, np.ones(50)], 1), y, rcond=None)[0]
    far = np.log(1 + np.arange(1000.0))
    bias = scheme("smoothed:fit=recent", 8, 64).bias(torch.arange(1000))[-1]
    assert np.abs(bias.numpy() - (slope * far + constant)).max() < 1e-9


def test_projection_moves_parameters_back() -> None:
    for kind, maximum in (("log", None), ("power", 2.0)):
        built = scheme(f"kerple:kind={kind}", 4, 8)
        with torch.no_grad():
            built.p_H.copy_(torch.tensor([-1.0, 0.0, 5.0, 1.0]))
            built.a_H.fill_(-3.0)
        built.project()
        assert built.p_H.tolist() == pytest.approx([0.01, 0.01, maximum or 5.0, 1.0])
        assert built.a_H.tolist() == pytest.approx([0.01] * 4)


def test_projection_happens_at_load() -> None:
    source, target = scheme("kerple", 4, 8), scheme("kerple", 4, 8)
    with torch.no_grad():
        source.a_H.fill_(-1.0)
    target.load_state_dict(source.state_dict())
    assert target.a_H.tolist() == pytest.approx([0.01] * 4)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("sandwich", "sandwich"),
        ("sandwich:", None),
        ("sandwich:dims=128", "sandwich"),
        (" sandwich : dims=64", None),
        ("sandwich:first=1,dims=64", "sandwich:dims=64,first=1"),
        ("alibi:shift=-3.0", "alibi:shift=-3"),
        ("alibi:window=8,shift=0", "alibi:window=8"),
        ("alibi:same=0", "alibi:same=0"),
        ("none:window=40", "none:window=40"),
        ("rotary:base=1e4", "rotary"),
        ("rotary:base=500000", "rotary:base=500000"),
        ("alibi:slope_floor=0.01", "alibi:slope_floor=0.01"),
    ],
)
def test_canonical_spelling(spec: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(BadInput):
            canonical(spec)
    else:
        assert canonical(spec) == expected
        assert canonical(canonical(spec)) == expected


def test_window_beside_the_spec_joins_it() -> None:
    assert canonical("alibi", 8) == canonical("alibi:window=8", 8) == "alibi:window=8"
    with pytest.raises(BadInput, match="conflicting windows: 8 in 'alibi:window=8', but window=9"):
        canonical("alibi:window=8", 9)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("sandwhich", "unknown scheme 'sandwhich': did you mean 'sandwich'"),
        ("sandwich:dim=64", "unknown sandwich option 'dim': did you mean 'dims'"),
        ("sandwich:dims=many", "option 'dims' of scheme 'sandwich' must be an integer, got 'many'"),
        ("sandwich:dims", "has no value: write sandwich:dims=VALUE"),
        ("sandwich:dims=64,dims=32", "is given twice"),
        ("sandwich:dims=7", "dims must be an even number between 2 and 65536, got 7"),
        ("sandwich:dims=1000000000", "dims must be an even number between 2 and 65536, got 1000000000"),
        ("sandwich:first=2", "allowed: 0, 1"),
        ("alibi:shift=2,same=4", "shift=2 and same=4 cannot be combined"),
        ("alibi:slopes=official,same=4", "slopes=official and same=4 cannot be combined"),
        ("alibi:slope_floor=-1", "slope_floor must be at least 0, got -1"),
        ("alibi:shift=nan", "must be between .* and .*, got 'nan'"),
        ("t5:buckets=32,max_distance=16", "max_distance must be greater than buckets/2 = 16, got 16"),
        ("t5:buckets=1", "buckets must be between 2 and 65536, got 1"),
        ("t5:buckets=1000000000,max_distance=9999999999", "buckets must be between 2 and 65536, got 1000000000"),
        ("rotary:base=0", "base must be greater than 0, got 0"),
        ("sinusoidal:base=-2", "base must be greater than 0, got -2"),
        ("none:window=0", "window must be at least 1, got 0"),
        ("none:window=-1", "window must be at least 1, got -1"),
        ("", "unknown scheme ''"),
    ],
)
def test_bad_specs_say_what_is_allowed(spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        scheme(spec, 4, 8)


def test_unsupported_shapes() -> None:
    with pytest.raises(BadInput, match="head width must be even, got 7"):
        scheme("rotary", 4, 7)
    with pytest.raises(BadInput, match="width must be even, got 21"):
        scheme("sinusoidal", 3, 7)
    with pytest.raises(BadInput, match="heads must be between 1 and 65536, got 0"):
        scheme("none", 0, 8)


def test_every_scheme_is_fully_declared() -> None:
    colours = [cls.colour for cls in registry().values()]
    assert len(set(colours)) == len(colours)
    for name, cls in registry().items():
        assert cls.name == name
        assert cls.label
        assert cls.source
        assert cls.__doc__
