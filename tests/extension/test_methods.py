"""Every method against an independent implementation, with and without a cache, on our decoders and on transformers."""

import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import families
import naive_extension as naive
import pytest
import torch

from fieldlens.core.errors import BadInput
from fieldlens.extension import base
from fieldlens.extension.attach import attached, configuration
from fieldlens.extension.base import distance_matrix
from fieldlens.extension.discovery import build, canonical, record, registry
from fieldlens.extension.hf_sinks import sink_cache
from fieldlens.generation.engine import CachedEngine
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.decoder import Config, Decoder
from fieldlens.models.kv_cache import SlidingCache

TRAINED, TOKENS = 8, 24
"""The methods below start at 4 to 9 tokens: 24 tokens are three times their windows."""

REGIONS = [
    "self-extend", "self-extend:group=3,window=5", "rerope", "rerope:leak=4,window=6", "streaming:sinks=2,window=6",
    "streaming:sinks=0,window=6",
]  # fmt: skip
SCALED = ["yarn", "yarn:factor=2,beta_fast=4", "linear:factor=3", "ntk", "dynamic-ntk"]


def decoder(scheme: str, **changes: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"layers": 2, "width": 16, "heads": 2, "vocab_size": 53, "init_std": 0.3, "train_length": TRAINED}
    return Decoder(Config(scheme=scheme, **{**sizes, **changes})).eval()


def llama(**changes: Any) -> Any:
    small = {"num_hidden_layers": 2, "head_dim": 8, "max_position_embeddings": TRAINED}
    return families.build("llama", **{**small, **changes})


@pytest.mark.parametrize("spec", [*REGIONS, "window:window=6"])
def test_distances_are_those_of_the_papers(spec: str) -> None:
    m, visible = distance_matrix(build(spec, TRAINED), TOKENS)
    formula = naive.distances(spec, TRAINED)
    for i in range(TOKENS):
        expected = [formula(i, j) if j <= i else None for j in range(TOKENS)]
        assert visible[i].tolist() == [distance is not None for distance in expected]
        assert m[i].tolist() == pytest.approx([distance or 0 for distance in expected])


@pytest.mark.usefixtures("float64")
@torch.no_grad()
@pytest.mark.parametrize("spec", [*REGIONS, "window:window=6"])
@pytest.mark.parametrize("scheme", ["rotary", "alibi", "none"])
def test_decoders_equal_the_naive_implementation(scheme: str, spec: str) -> None:
    model = decoder(scheme)
    adapter = adapt(model)
    method = build(spec, TRAINED)
    if method.needs_rotary and scheme != "rotary":
        with pytest.raises(BadInput, match="needs rotary positions"), attached(adapter, method):
            pass
        return
    ids_BT = adapter.noise(TOKENS)
    expected = torch.stack([naive.decoder_logits(model, ids_T, naive.distances(spec, TRAINED)) for ids_T in ids_BT])
    with attached(adapter, method) as extended:
        logits = torch.cat(list(extended.logits(ids_BT, TOKENS, None, 0)), 1)
        last = next(extended.logits(ids_BT, 1, None, 0))
    assert (logits - expected).abs().max() < 1e-6
    assert (last - expected[:, -1:]).abs().max() < 1e-6
    assert (model(ids_BT) - expected).abs().max() > 1e-3  # detached again


@pytest.mark.usefixtures("float64")
@torch.no_grad()
@pytest.mark.parametrize("spec", REGIONS)
def test_transformers_models_equal_the_naive_implementation(spec: str) -> None:
    model = llama()
    adapter = adapt(model)
    ids_BT = adapter.noise(TOKENS)
    expected = torch.stack([naive.llama_logits(model, ids_T, naive.distances(spec, TRAINED)) for ids_T in ids_BT])
    with attached(adapter, build(spec, TRAINED)) as extended:
        logits = next(extended.logits(ids_BT, TOKENS, None, 0))
    assert (logits - expected).abs().max() < 1e-6 * expected.abs().max()


@pytest.mark.usefixtures("float64")
@torch.no_grad()
@pytest.mark.parametrize("spec", SCALED)
@pytest.mark.parametrize("positions", [TRAINED, 32])
def test_scaled_frequencies_are_those_of_transformers(spec: str, positions: int) -> None:
    """The configuration that the report advises gives the same model, whatever length its own configuration states."""
    adapter, method = adapt(llama(max_position_embeddings=positions)), build(spec, TRAINED)
    changes = {"max_position_embeddings": positions, **(configuration(adapter, method) or {})}
    ids_BT = adapter.noise(TOKENS)
    expected = llama(**changes)(ids_BT).logits
    shorter = llama(**changes)(ids_BT[:, :12]).logits
    with attached(adapter, method) as extended:
        assert (next(extended.logits(ids_BT, TOKENS, None, 0)) - expected).abs().max() < 1e-6
        # dynamic scaling must not remember the longest text
        assert (next(extended.logits(ids_BT[:, :12], 12, None, 0)) - shorter).abs().max() < 1e-6


@pytest.mark.usefixtures("float64")
@torch.no_grad()
@pytest.mark.parametrize("spec", SCALED)
def test_decoders_have_the_frequencies_of_transformers(spec: str) -> None:
    model, method = decoder("rotary:base=500"), build(spec, TRAINED)
    ids_BT = adapt(model).noise(TOKENS)
    small = llama(hidden_size=16, num_attention_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    changes = configuration(adapt(small), method) or {}
    rotary = llama(hidden_size=16, num_attention_heads=2, **changes).model.rotary_emb
    rotary(torch.zeros(1), torch.arange(TOKENS)[None])  # dynamic scaling takes its frequencies from the length
    theta_F, scaling = rotary.inv_freq.double(), rotary.attention_scaling
    model.scheme.angles = lambda positions: positions[..., None] * theta_F  # type: ignore[method-assign]
    plain = naive.attention
    try:
        naive.attention = lambda q, *rest: plain(q * scaling**2, *rest)  # type: ignore[assignment]
        expected = torch.stack([naive.decoder_logits(model, ids_T, lambda i, j: i - j) for ids_T in ids_BT])
    finally:
        naive.attention = plain
        del model.scheme.angles
    with attached(adapt(model), method) as extended:
        logits = torch.cat(list(extended.logits(ids_BT, TOKENS, None, 0)), 1)
    assert (logits - expected).abs().max() < 1e-6


@pytest.mark.usefixtures("float64")
@torch.no_grad()
@pytest.mark.parametrize("spec", [*REGIONS, "yarn", "linear:factor=3", "ntk"])
@pytest.mark.parametrize("first", [1, 11])
def test_a_cache_changes_nothing_in_transformers_models(spec: str, first: int) -> None:
    model, method = llama(), build(spec, TRAINED)
    adapter = adapt(model)
    ids_BT = adapter.noise(TOKENS)
    assert method.cached
    with attached(adapter, method) as extended:
        whole = next(extended.logits(ids_BT, TOKENS, None, 0))
        cache = sink_cache(2, *method.kept) if method.kept else None
        logits = []
        for start, stop in [(0, first), *((n, n + 1) for n in range(first, 16)), (16, 20), (20, TOKENS)]:
            output = model(input_ids=ids_BT[:, start:stop], past_key_values=cache, use_cache=True)
            cache = output.past_key_values
            logits.append(output.logits)
        if method.kept:
            assert cache.layers[0].keys.shape[2] == sum(method.kept) - 1
    assert (torch.cat(logits, 1) - whole).abs().max() < 1e-6


@pytest.mark.usefixtures("float64")
@torch.no_grad()
@pytest.mark.parametrize("spec", [*REGIONS, "yarn"])
@pytest.mark.parametrize("scheme", ["rotary", "alibi"])
@pytest.mark.parametrize("first", [1, 11])
def test_a_cache_changes_nothing_in_decoders(scheme: str, spec: str, first: int) -> None:
    model, method = decoder(scheme), build(spec, TRAINED)
    if method.needs_rotary and scheme != "rotary":
        return
    ids_BT = adapt(model).noise(TOKENS)
    positions = torch.arange(TOKENS)
    with attached(adapt(model), method) as extended:
        whole = torch.cat(list(extended.logits(ids_BT, TOKENS, None, 0)), 1)
        engine = CachedEngine(model, chunk=5, kept=method.kept)
        for start, stop in [(0, first), *((n, n + 1) for n in range(first, TOKENS))]:
            logits_BV = engine.read(ids_BT[:, start:stop], positions[start:stop])
            assert (logits_BV - whole[:, stop - 1]).abs().max() < 1e-6
    if method.kept:
        fresh = SlidingCache([method.kept[1]] * 2, None, method.kept[0])
        assert fresh.admit(positions[:20])[0].tolist() == list(range(20))
        kept = [*range(method.kept[0]), *range(20 - method.kept[1] + 1, 21)]
        assert fresh.admit(positions[20:21])[0].tolist() == kept


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("spec", ["self-extend", "streaming:sinks=2,window=6", "rerope:leak=4,window=6"])
@pytest.mark.parametrize("family", ["llama", "decoder"])
def test_gradients_are_exact(family: str, spec: str) -> None:
    """Recomputing blocks gives the same gradient as the naive implementation."""
    model = llama() if family == "llama" else decoder("rotary")
    weight = (model.model.embed_tokens if family == "llama" else model.embedding).weight
    formula = naive.distances(spec, TRAINED)
    adapter = adapt(model)
    ids_T = adapter.noise(TOKENS)[0]
    logits = (naive.llama_logits if family == "llama" else naive.decoder_logits)(model, ids_T, formula)
    (expected,) = torch.autograd.grad(logits[-1].logsumexp(0), weight)
    with attached(adapter, build(spec, TRAINED)) as extended:
        logits = next(extended.logits(ids_T[None], 1, None, 0))
        (gradient,) = torch.autograd.grad(logits[0, -1].logsumexp(0), weight)
    assert (gradient - expected).abs().max() < 1e-6 * expected.abs().max()


@torch.no_grad()
@pytest.mark.parametrize("spec", ["self-extend", "streaming:sinks=2,window=6"])
def test_long_texts_are_processed_in_blocks(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of queries, with and without the fused kernel, give what one block gives."""
    from fieldlens.extension import attention

    adapter, method = adapt(llama()), build(spec, TRAINED)
    ids_BT = adapter.noise(50)
    results = []
    for fused, rows in ((True, 256), (True, 7), (False, 256), (False, 7)):
        monkeypatch.setattr(attention, "ROWS", rows)
        monkeypatch.setattr(attention, "FUSED_ROWS", rows)
        with nullcontext() if fused else monkeypatch.context() as patch:
            if patch:
                patch.setattr(attention.cpu_flash, "available", lambda: False)
            with attached(adapter, method) as extended:
                results.append(next(extended.logits(ids_BT, 50, None, 0)))
    for result in results[1:]:
        assert (result - results[0]).abs().max() < 1e-4


@torch.no_grad()
def test_crop_reads_the_last_tokens_after_bos() -> None:
    model = decoder("alibi")
    adapter = adapt(model)
    ids_BT = adapter.noise(20)
    with attached(adapter, build("crop:tokens=5", TRAINED)) as cropped:
        losses_BN = cropped.losses(ids_BT, 3)
    single = [adapter.losses(ids_BT[:, stop - 6 : stop]) for stop in (18, 19, 20)]
    assert torch.allclose(losses_BN, torch.cat(single, 1))
    ids_BT[:, 0] = 7
    with attached(adapter, build("crop:tokens=5", TRAINED), bos=7) as cropped:
        losses_B1 = cropped.losses(ids_BT)
    kept = torch.cat([ids_BT[:, :1], ids_BT[:, -6:]], 1)
    assert torch.allclose(losses_B1, adapter.losses(kept))


def test_ntk_divides_the_lowest_frequency_by_the_factor() -> None:
    parameters = build("ntk:factor=4", TRAINED).rope_parameters({"rope_theta": 10000.0}, 64)
    assert parameters is not None
    lowest = [theta ** (-62 / 64) for theta in (parameters["rope_theta"], 10000.0)]
    assert math.isclose(lowest[1] / lowest[0], 4)


def test_specs_are_parsed_like_those_of_schemes() -> None:
    assert canonical("streaming: window=64 , sinks=4") == "streaming:window=64"
    assert {"crop", "dynamic-ntk", "linear", "ntk", "rerope", "self-extend", "streaming", "window", "yarn"} <= set(
        registry()
    )
    with pytest.raises(BadInput, match="unknown method 'yern': did you mean 'yarn'"):
        build("yern", 8)
    with pytest.raises(BadInput, match="unknown yarn option 'factr'"):
        build("yarn:factr=2", 8)
    with pytest.raises(BadInput, match="needs the training length"):
        build("yarn", None)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("yarn:factor=0.5", "factor must be at least 1"),
        ("self-extend:group=1", "group must be at least 2"),
        ("self-extend:window=9", "window must be at most the training length 8"),
        ("streaming:sinks=-1", "sinks must be at least 0"),
        ("streaming:sinks=8", "sinks must be less than the training length 8"),
        ("streaming:window=0", "window must be at least 1"),
        ("rerope:leak=0.5", "leak must be at least 1"),
        ("crop:tokens=0", "tokens must be at least 1"),
    ],
)
def test_bad_options_are_refused(spec: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        build(spec, TRAINED)


def test_a_plugin_can_declare_a_method(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "halved.py"
    plugin.write_text(
        "from fieldlens.extension.base import ExtensionMethod, Region\n"
        "class Halved(ExtensionMethod):\n"
        "    name = 'halved'\n"
        "    def regions(self):\n"
        "        return (Region(a=lambda i: i / 2, b=lambda j: j / 2),)\n"
    )
    monkeypatch.setattr(base, "REGISTERED", dict(base.REGISTERED))
    monkeypatch.setenv("FIELDLENS_PLUGINS", str(plugin))
    method = build("halved", TRAINED)
    assert record(method)["source"]
    adapter = adapt(decoder("rotary"))
    ids_BT = adapter.noise(12)
    with attached(adapter, method) as extended, torch.no_grad():
        halved = extended.losses(ids_BT)
    with attached(adapter, build("linear:factor=2", TRAINED)) as extended, torch.no_grad():
        assert torch.allclose(halved, extended.losses(ids_BT), atol=1e-4)


def test_the_plugin_of_the_docs_has_its_formula(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "extend.md").read_text()
    (code,) = re.findall(r"^```python\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    plugin = tmp_path / "shifted.py"
    plugin.write_text(code)
    monkeypatch.setattr(base, "REGISTERED", dict(base.REGISTERED))
    monkeypatch.setenv("FIELDLENS_PLUGINS", str(plugin))
    method = build("string:shift=5,window=2", TRAINED)
    m, visible = distance_matrix(method, TOKENS)
    assert bool((visible == torch.ones(TOKENS, TOKENS).tril().bool()).all())
    assert [int(m[20, 20 - distance]) for distance in (0, 4, 5, 6, 20)] == [0, 4, 2, 3, 17]
    with attached(adapt(decoder("rotary")), method) as extended:
        assert extended.method.options() == {"shift": 5, "window": 2}


@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_layers_may_have_different_schemes() -> None:
    """Layers without positions stay as they are, and each rotary layer keeps its base."""
    model = decoder("rotary/none", layers=4)
    adapter = adapt(model)
    ids_BT = adapter.noise(TOKENS)
    expected = next(adapter.logits(ids_BT[:, :4], 1, None, 0))
    with attached(adapter, build("rerope:window=6", TRAINED)) as extended:
        assert (next(extended.logits(ids_BT[:, :4], 1, None, 0)) - expected).abs().max() < 1e-9
        assert (
            next(extended.logits(ids_BT, 1, None, 0)) - next(extended.logits(ids_BT, 1, None, 50))
        ).abs().max() < 1e-9
    with pytest.raises(BadInput, match="has biases"), attached(adapt(decoder("rotary/alibi")), build("yarn", TRAINED)):
        pass
