"""Every scheme with every method: exact against an independent implementation, or refused with the reason."""

from typing import Any

import naive_extension as naive
import pytest
import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.extension.attach import attached
from fieldlens.extension.discovery import build, registry
from fieldlens.extension.rope import DecoderFrequencies
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.decoder import Config, Decoder

TRAINED, TOKENS = 8, 20

METHODS = [
    "crop", "window:window=6", "streaming:sinks=2,window=6", "self-extend:group=3,window=5", "rerope",
    "rerope:leak=4,window=6", "linear:factor=3", "ntk", "dynamic-ntk", "yarn",
]  # fmt: skip
PATTERNS = [
    "rotary:window=6/none", "2*rotary/none", "rotary:base=500/rotary", "rotary/alibi", "none:window=6/alibi",
    "rotary:sink=learned/none", "sinusoidal/rotary", "xpos/rotary", "fox/none",
]  # fmt: skip
SCALED = ("linear", "ntk", "dynamic-ntk", "yarn")


def decoder(spec: str, **changes: Any) -> Decoder:
    torch.manual_seed(0)
    sizes = {"layers": 3, "width": 16, "heads": 2, "vocab_size": 53, "init_std": 0.3, "train_length": TRAINED}
    return Decoder(Config(scheme=spec, **{**sizes, **changes})).eval()


def expected_refusal(model: Decoder, name: str) -> str:
    """Why a method does not fit the schemes of a decoder; empty if it does."""
    schemes, ones = model.scheme.distinct_schemes, torch.ones(1, dtype=torch.long)
    angles = [angles[0] for scheme in schemes if (angles := scheme.angles(ones)) is not None]
    rotary = angles and all(scheme.bias(ones) is None for scheme in schemes)
    reasons = {
        "has windows of its own": name == "streaming" and any(model.windows),
        "adds positions to its embeddings": model.scheme.embedding(ones) is not None,
        "adds more than rotations and biases": not all(scheme.tables_only for scheme in schemes),
        "needs rotary positions": name != "streaming" and not rotary,
        "has rotary frequencies that are not powers of a base": name in SCALED and not all(map(geometric, angles)),
    }
    return "" if name in ("crop", "window") else next((reason for reason, holds in reasons.items() if holds), "")


def geometric(theta_F: Tensor) -> bool:
    """Whether frequencies are 1, r, r², …"""
    return bool((theta_F - theta_F[1] ** torch.arange(len(theta_F))).abs().max() < 1e-9)


def reference(model: Decoder, spec: str, ids_BT: Tensor) -> Tensor:
    """Logits at the last token by another route than the one that is tested."""
    method = build(spec, TRAINED)
    if method.name == "crop":
        return model(ids_BT[:, -TRAINED:])[:, -1]
    if method.name == "window" and not any(model.windows):  # a model of the same weights whose schemes have the window
        windowed = decoder(model.config.scheme, window=6)
        windowed.load_state_dict(model.state_dict())
        return windowed(ids_BT)[:, -1]
    if method.name not in SCALED:
        formula = naive.distances(spec, TRAINED)
        return torch.stack([naive.decoder_logits(model, ids_T, formula)[-1] for ids_T in ids_BT])
    return scaled_reference(model, spec, ids_BT)


def scaled_reference(model: Decoder, spec: str, ids_BT: Tensor) -> Tensor:
    """With the frequencies of transformers in place of the schemes' own, and its factor on the scores."""
    replaced, factors = [], {1.0}
    for scheme in model.scheme.distinct_schemes:
        if (angles := scheme.angles(torch.ones(1, dtype=torch.long))) is not None:
            base = float(angles[0, 1]) ** -angles.shape[-1]
            table = DecoderFrequencies(build(spec, TRAINED), base, 2 * angles.shape[-1])
            table.tables(torch.zeros(1), TOKENS)
            theta_F = table.module.inv_freq.double()
            factors.add(table.module.attention_scaling)
            scheme.angles = lambda positions, theta_F=theta_F: positions[..., None] * theta_F  # type: ignore[method-assign]
            replaced.append(scheme)
    plain = naive.attention

    def attention(q: Tensor, k: Tensor, v: Tensor, m: Any, theta_F: Tensor | None, bias: Any) -> Tensor:
        return plain(q if theta_F is None else q * max(factors) ** 2, k, v, m, theta_F, bias)

    try:
        naive.attention = attention
        return torch.stack([naive.decoder_logits(model, ids_T, lambda i, j: i - j)[-1] for ids_T in ids_BT])
    finally:
        naive.attention = plain
        for scheme in replaced:
            del scheme.angles


def check(spec: str) -> None:
    model = decoder(spec)
    adapter = adapt(model)
    ids_BT = adapter.noise(TOKENS)[:1]
    for method in METHODS:
        reason = expected_refusal(model, method.partition(":")[0])
        if reason:
            with pytest.raises(BadInput, match=rf"\A.*{reason}.*\Z"), attached(adapter, build(method, TRAINED)):
                pass
            continue
        with attached(adapter, build(method, TRAINED)) as extended:
            logits = next(extended.logits(ids_BT, 1, None, 0))[:, -1]
        expected = reference(model, method, ids_BT)
        assert float((logits - expected).abs().max()) < 1e-6 * float(expected.abs().max()), f"{spec}, {method}"


def test_every_method_is_tried() -> None:
    assert {method.partition(":")[0] for method in METHODS} >= {
        name for name, cls in registry().items() if cls.__module__.startswith("fieldlens.")
    }


@pytest.mark.usefixtures("float64")
@torch.no_grad()
def test_every_scheme_is_exact_or_refused(every_spec: str) -> None:
    check(every_spec)


@pytest.mark.usefixtures("float64")
@torch.no_grad()
@pytest.mark.parametrize("spec", PATTERNS)
def test_every_pattern_is_exact_or_refused(spec: str) -> None:
    check(spec)
