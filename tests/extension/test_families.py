"""Attaching to families of transformers: the identity gives stock logits, and what cannot be attached is refused."""

from typing import Any

import families
import pytest
import torch

from fieldlens.core.errors import BadInput
from fieldlens.extension import attach, hf_probe
from fieldlens.extension.attach import attached
from fieldlens.extension.base import Region
from fieldlens.extension.discovery import build
from fieldlens.extension.hf_attach import RegionAttachment, RotaryAttachment
from fieldlens.extension.hf_probe import Probe
from fieldlens.models.adapters.adapt import adapt

SIZES = {
    "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64,
}  # fmt: skip
LATENT = {
    "head_dim": None, "num_key_value_heads": 4, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8,
    "kv_lora_rank": 16, "q_lora_rank": 16, "first_k_dense_replace": 4, "n_routed_experts": 4, "num_experts_per_tok": 2,
    "n_group": 1, "topk_group": 1, "moe_intermediate_size": 16,
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {}, "mistral": {"sliding_window": 6}, "qwen2": {}, "qwen3": {}, "gemma": {}, "olmo": {}, "olmo2": {},
    "gpt_neox": {"rotary_pct": 0.5}, "phi": {}, "phi3": {"original_max_position_embeddings": 64}, "granite": {},
    "stablelm": {}, "ministral": {}, "starcoder2": {}, "nemotron": {}, "persimmon": {}, "seed_oss": {}, "apertus": {},
    "gemma3_text": {"sliding_window": 6}, "smollm3": {}, "exaone4": {}, "cohere": {}, "cohere2": {"sliding_window": 6},
    "glm": {}, "helium": {}, "deepseek_v3": LATENT,
}  # fmt: skip
"""Half-split and interleaved pairs, partly rotated heads, layers without rotation, two bases, latent attention."""

SCALED = {"rope_theta": 1e4, "factor": 2.0}
REFUSED = {
    "gpt2": "has no rotary module",
    "bloom": "has no rotary module",
    "gptj": "has no rotary module",
    "llama4_text": "has no rotary module",
    "falcon": "does not use the attention registry",
    "gemma2": "does not support `softcap`",
}


def model_of(family: str) -> Any:
    settings = {key: value for key, value in (SIZES | FAMILIES[family]).items() if value is not None}
    return (
        families.build(family, **settings) if family in families.FAMILIES | families.RARE else _built(family, settings)
    )


def _built(family: str, settings: dict[str, Any]) -> Any:
    families.RARE[family] = settings
    try:
        return families.build(family)
    finally:
        del families.RARE[family]


@pytest.mark.usefixtures("float64")
@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
def test_the_identity_gives_stock_logits_and_a_method_changes_them(family: str) -> None:
    model = model_of(family)
    adapter = adapt(model)
    ids_BT = adapter.noise(20)
    stock = model(ids_BT).logits
    rotations = Probe(model, family, ids_BT).rotations()
    with RegionAttachment(adapter, rotations, (Region(),), 0).open():
        assert (model(ids_BT).logits - stock).abs().max() < 1e-6
    with RotaryAttachment(adapter, None).open():
        assert (model(ids_BT).logits - stock).abs().max() < 1e-6
    with attached(adapter, build("rerope:window=4", 64)) as extended:
        logits = next(extended.logits(ids_BT, 20, None, 0))
        output = model(input_ids=ids_BT[:, :9], use_cache=True)
        for token in range(9, 20):
            output = model(input_ids=ids_BT[:, [token]], past_key_values=output.past_key_values, use_cache=True)
            assert (output.logits[:, 0] - logits[:, token]).abs().max() < 1e-6
    assert (logits - stock).abs().max() > 1e-3
    assert torch.equal(model(ids_BT).logits, stock)  # detached
    assert model.config._attn_implementation == "sdpa"


def test_layers_and_pairs_are_found_by_trial() -> None:
    kinds = {
        "llama": {(0, 8, False, False)},
        "gpt_neox": {(0, 4, False, False)},
        "smollm3": {(0, 8, False, False), None},
        "cohere2": {(0, 8, True, True), None},
        "glm": {(0, 4, True, False)},
        "deepseek_v3": {(8, 8, False, False)},
    }
    for family, expected in kinds.items():
        model = model_of(family)
        rotations = Probe(model, family, adapt(model).noise(8)).rotations().values()
        assert {r and (r.offset, r.width, r.interleaved, r.repeated) for r in rotations} == expected, family


@pytest.mark.parametrize("family", REFUSED)
def test_refused_families_say_why(family: str) -> None:
    known = family in families.FAMILIES | families.RARE
    changes = {"alibi": False} if family == "falcon" else {}
    model = families.build(family, **changes) if known else _built(family, SIZES)
    with pytest.raises(BadInput, match=REFUSED[family]), attached(adapt(model), build("self-extend", 64)):
        pass


def test_a_norm_between_rotation_and_attention_is_refused() -> None:
    """With unit weights such a norm commutes with the rotation; with trained weights it does not."""
    FAMILIES["hunyuan_v1_dense"] = {}
    try:
        model = model_of("hunyuan_v1_dense")
    finally:
        del FAMILIES["hunyuan_v1_dense"]
    for name, weight in model.named_parameters():
        if "query_layernorm" in name:
            weight.data = torch.linspace(0.5, 2, len(weight))
    with pytest.raises(BadInput, match="something other than a rotation"), attached(adapt(model), build("rerope", 64)):
        pass


@pytest.mark.parametrize("family", ["smollm3", "exaone4", "glm", "cohere2"])
def test_a_layer_that_is_misunderstood_is_found_by_the_identity(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two planted failures: every layer rotated, where some are not; half-split pairs, where they are interleaved."""
    rotations_of = Probe.rotations

    def planted(probe: Probe) -> dict[Any, Any]:
        rotations = rotations_of(probe)
        rotation = next(rotation for rotation in rotations.values() if rotation)
        wrong = hf_probe.Rotation(rotation.call, rotation.offset, rotation.width, False, False)
        return dict.fromkeys(rotations, wrong)

    monkeypatch.setattr(Probe, "rotations", planted)
    with (
        pytest.raises(BadInput, match="the replaced attention changes its logits by"),
        attached(adapt(model_of(family)), build("rerope:window=4", 64)),
    ):
        pass


def test_a_missing_mask_is_found_by_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer without its own window, as if the mask registry had given none."""
    monkeypatch.setattr("fieldlens.extension.hf_attach._as_bool", lambda mask, keys: None)
    adapter = adapt(model_of("mistral"))
    with (
        pytest.raises(BadInput, match="the replaced attention changes its logits"),
        attached(adapter, build("rerope:window=4", 64)),
    ):
        pass


def test_a_method_without_effect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("llama")
    with (
        pytest.raises(BadInput, match="no effect on llama at 34 tokens"),
        attached(adapt(model), build("linear:factor=1", 64)),
    ):
        pass
    with pytest.raises(BadInput, match="no effect on mistral at 42 tokens"):
        attach._prove(adapt(model_of("mistral")), build("rerope:window=8", 64))
    monkeypatch.setattr(RegionAttachment, "open", lambda self: torch.no_grad())
    with pytest.raises(BadInput, match="its layers ignore the change"), attached(adapt(model), build("rerope", 64)):
        pass


@pytest.mark.parametrize(
    ("family", "changes", "spec", "reason"),
    [
        ("mistral", {}, "streaming", "has windows of its own"),
        ("llama", {"rope_parameters": {**SCALED, "rope_type": "linear"}}, "yarn", "already has"),
        ("llama", {"rope_parameters": {**SCALED, "rope_type": "dynamic"}}, "rerope", "already changes"),
        ("mamba", {}, "window", "does not support a window"),
        ("gpt2", {}, "crop:tokens=65", "has 64 positions, 65 tokens are too many"),
    ],
)  # fmt: skip
def test_unsuitable_methods_are_refused(family: str, changes: dict[str, Any], spec: str, reason: str) -> None:
    adapter = adapt(families.build(family, **changes))
    with pytest.raises(BadInput, match=reason), attached(adapter, build(spec, 64)):
        pass


@torch.no_grad()
def test_a_static_cache_is_refused() -> None:
    from transformers.cache_utils import StaticCache

    model = model_of("llama")
    adapter = adapt(model)
    with attached(adapter, build("rerope:window=4", 64)), pytest.raises(BadInput, match="without unused slots"):
        model(adapter.noise(8), past_key_values=StaticCache(model.config, max_cache_len=32), use_cache=True)


@torch.no_grad()
def test_padded_rows_equal_single_rows() -> None:
    model = model_of("llama")
    adapter = adapt(model)
    ids_BT = adapter.noise(16)
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, :5] = 0
    positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
    for spec in ("rerope:window=4", "self-extend:group=3,window=4"):
        with attached(adapter, build(spec, 64)):
            padded = model(ids_BT, attention_mask=mask_BT, position_ids=positions_BT).logits[1, 5:]
            alone = model(ids_BT[1:, 5:]).logits[0]
        assert (padded - alone).abs().max() < 1e-4
