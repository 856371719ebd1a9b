"""Layer patterns: their text, and the contracts of schemes over ten random patterns."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

import fieldlens
from fieldlens.core.errors import BadInput
from fieldlens.generation.engine import CachedEngine
from fieldlens.kernels.attention import attention
from fieldlens.models import cost
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.hf_export import FieldlensForCausalLM
from fieldlens.models.kv_cache import capacity
from fieldlens.receptive.input_gradients import EmbeddingHook
from fieldlens.reporting.plots import tints
from fieldlens.schemes import base
from fieldlens.schemes.discovery import is_built_in, registry
from fieldlens.schemes.spec import canonical, cycle, has_source, scheme, source_of

LENGTH, VOCABULARY = 26, 40


def random_patterns(count: int) -> list[str]:
    """Patterns of two to four entries, of every built-in scheme, with and without windows."""
    generator = random.Random(21)
    names = [name for name, cls in registry().items() if is_built_in(cls)]
    names += ["rotary:scaling=yarn,factor=4", "none:sink=learned", "alibi:logits=ssmax"]
    patterns = []
    for _ in range(count):
        entries = []
        for name in generator.sample(names, generator.choice([2, 2, 3, 4])):
            window = generator.choice(["", "window=1", "window=3", "window=6"])
            entries.append(generator.choice(["", "2*"]) + name + (":,"[":" in name] + window if window else ""))
        patterns.append("/".join(entries))
    return patterns


PATTERNS = random_patterns(10)
EVERY = pytest.mark.parametrize("pattern", PATTERNS)


def decoder(spec: str, layers: int = 4, **changes: object) -> fieldlens.Decoder:
    """A small model with weights large enough that every dependence is visible."""
    shape = {
        "layers": layers,
        "width": 16,
        "heads": 2,
        "vocab_size": VOCABULARY,
        "init_std": 0.3,
        "train_length": 16,
        **changes,
    }
    return fieldlens.Decoder(fieldlens.Config(scheme=spec, **shape)).eval()  # type: ignore[arg-type]


def input_gradient(model: fieldlens.Decoder, ids_BT: Tensor, position: int) -> Tensor:
    embeddings = model.embed(ids_BT).detach().requires_grad_()
    (model(embeddings_BTD=embeddings)[:, position] @ torch.randn(VOCABULARY)).sum().backward()
    assert embeddings.grad is not None
    return embeddings.grad.norm(dim=-1)[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("3*rotary:window=64/none", "3*rotary:window=64/none"),
        (" 3 * rotary:window=64 / none", "3*rotary:window=64/none"),
        ("rotary/rotary/none", "2*rotary/none"),
        ("rotary/none/rotary/none", "rotary/none"),
        ("2*alibi:shift=0/alibi", "alibi"),
        ("1*none", "none"),
        ("none/2*none:window=4", "none/2*none:window=4"),
        ("none:window=4/none/none:window=4", "none:window=4/none/none:window=4"),
    ],
)
def test_canonical_patterns(text: str, expected: str) -> None:
    assert canonical(text) == expected
    assert canonical(expected) == expected


def test_a_pattern_is_not_one_scheme() -> None:
    with pytest.raises(BadInput, match="'rotary/none' is not one scheme: a pattern such as"):
        scheme("rotary/none", 2, 8)
    assert scheme("2*rotary", 2, 8).spec == "rotary"


def test_a_window_beside_the_pattern_joins_each_entry() -> None:
    config = fieldlens.Config(scheme="rotary/none:window=8", window=8)
    assert (config.scheme, config.window) == ("rotary:window=8/none:window=8", 8)
    assert fieldlens.Config(scheme="rotary:window=4/none").window is None
    with pytest.raises(BadInput, match="conflicting windows: 4 in 'none:window=4', but window=8"):
        fieldlens.Config(scheme="rotary/none:window=4", window=8)


def test_a_pattern_cycles_from_layer_0_and_may_end_in_mid_cycle() -> None:
    model = decoder("2*rotary:window=3/none", layers=5)
    names = [model.scheme.of_layer(number).spec for number in range(5)]
    assert names == ["rotary:window=3", "rotary:window=3", "none", "rotary:window=3", "rotary:window=3"]
    assert model.windows == (3, 3, None, 3, 3)
    assert decoder("2*rotary:window=3/none", layers=2).scheme.spec == "rotary:window=3"


def test_layers_of_one_entry_share_their_parameters() -> None:
    model = decoder("2*t5:window=3/kerple/none", layers=8)
    names = {name for name in model.state_dict() if name.startswith("scheme.")}
    assert names == {"scheme.entries.0.table_NH", "scheme.entries.1.p_H", "scheme.entries.1.a_H"}
    _, stays = model.parameter_groups(0.1)
    assert {id(p) for p in model.scheme.parameters()} <= {id(p) for p in stays["params"]}
    assert "scheme.table_NH" in decoder("t5").state_dict()


class Apart(fieldlens.Scheme):
    """bias(Δ) = -slope·Δ, with a slope for each layer."""

    per_layer = True

    def __init__(self, heads: int, head_width: int) -> None:
        super().__init__(heads, head_width)
        self.slope = torch.nn.Parameter(torch.rand(1))

    def bias(self, distances_N: Tensor) -> Tensor:
        return -self.slope.double() * distances_N[None]


@pytest.fixture
def _apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apart, "name", "apart", raising=False)
    monkeypatch.setitem(base.REGISTERED, "apart", Apart)


@pytest.mark.usefixtures("_apart")
def test_a_scheme_may_have_its_own_parameters_in_each_layer(tmp_path: Path) -> None:
    model = decoder("apart/none/apart:window=3", layers=5)
    assert sum(name.startswith("scheme.") for name in model.state_dict()) == 3
    single = decoder("apart", layers=3)
    assert [name for name in single.state_dict() if "scheme" in name] == [f"scheme.entries.{n}.slope" for n in range(3)]
    ids_BT = torch.randint(VOCABULARY, (1, 9))
    before = single(ids_BT)
    with torch.no_grad():
        single.scheme.of_layer(2).slope.add_(1)  # type: ignore[union-attr]
    assert (single(ids_BT) - before).abs().max() > 1e-3
    FieldlensForCausalLM.of(single).save_pretrained(tmp_path)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(ids_BT).logits, single(ids_BT))


@pytest.mark.usefixtures("_apart")
def test_the_source_of_a_pattern_names_its_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Apart, "file_hash", "abc")
    assert source_of("apart/none") == {"scheme_source": "apart=abc"}
    assert source_of("apart/apart:window=3") == source_of("apart") == {"scheme_source": "abc"}
    assert source_of("rotary/none") == {}
    assert has_source("apart/none", "apart=abc")
    monkeypatch.setattr(Apart, "file_hash", "def")
    assert not has_source("apart/none", "apart=abc")
    assert not has_source("apart/apart:window=3", "abc")


@EVERY
@pytest.mark.usefixtures("float64")
def test_reach_is_exact_and_the_future_has_no_influence(pattern: str) -> None:
    model = decoder(pattern)
    ids_BT = torch.randint(VOCABULARY, (1, LENGTH))
    reach = adapt(model).reach() or LENGTH
    norms_T = input_gradient(model, ids_BT, LENGTH - 2)
    assert norms_T[-1] == 0
    smallest = 0 if model.scheme.exact_reach else 1e-13 * norms_T.max()
    assert int((norms_T > smallest).sum()) == min(reach, LENGTH - 1)
    assert bool((norms_T[max(0, LENGTH - 1 - reach) : -1] > 0).all())


@EVERY
@pytest.mark.usefixtures("float64")
def test_last_position_mode_is_the_full_forward(pattern: str) -> None:
    model, ids_BT = decoder(pattern), torch.randint(VOCABULARY, (2, LENGTH))
    for window in (None, 4):
        assert (model(ids_BT, last=True, window=window) - model(ids_BT, window=window)[:, -1:]).abs().max() < 1e-12
    jumping = torch.tensor([8, 0, 1, 2, 3, 4, 5, 6, 9])
    expected = model(ids_BT[:, :9], positions=jumping)[:, -1:]
    assert (model(ids_BT[:, :9], positions=jumping, last=True) - expected).abs().max() < 1e-12


@EVERY
@pytest.mark.usefixtures("float64")
def test_the_cache_equals_the_full_forward(pattern: str) -> None:
    model, ids_BT = decoder(pattern), torch.randint(VOCABULARY, (2, LENGTH))
    for window, chunk in ((None, 5), (5, 3)):
        engine = CachedEngine(model, window, chunk=chunk)
        logits = [engine.read(ids_BT[:, :13], torch.arange(13))]
        logits += [engine.read(ids_BT[:, at : at + 1], torch.tensor([at])) for at in range(13, LENGTH)]
        assert (torch.stack(logits, 1) - model(ids_BT, window=window)[:, 12:]).abs().max() < 1e-12


@EVERY
def test_a_folder_round_trips_and_generates(pattern: str, tmp_path: Path) -> None:
    model = decoder(pattern)
    FieldlensForCausalLM.of(model).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    prompt = torch.randint(1, VOCABULARY, (2, 9))
    prompt[1, :4] = 0
    mask = (prompt > 0).long()
    assert torch.equal(loaded(prompt[:1]).logits, model(prompt[:1]))
    output = loaded.generate(prompt, attention_mask=mask, max_new_tokens=8, do_sample=False, pad_token_id=0)
    for row, alone_T in zip(output, (prompt[0], prompt[1, 4:]), strict=True):
        ids_T = alone_T
        for _ in range(8):
            ids_T = torch.cat([ids_T, model(ids_T[None])[0, -1:].argmax(-1)])
        assert row[-len(ids_T) :].tolist() == ids_T.tolist()


@EVERY
def test_finite_far_beyond(pattern: str) -> None:
    with torch.no_grad():
        assert bool(torch.isfinite(decoder(pattern)(torch.randint(VOCABULARY, (1, 16 * 64)))).all())


@EVERY
@pytest.mark.usefixtures("float64")
def test_relative_means_shift_invariant(pattern: str) -> None:
    model, ids_BT = decoder(pattern), torch.randint(VOCABULARY, (1, LENGTH))
    change = (model(ids_BT, positions=torch.arange(LENGTH) + 1000) - model(ids_BT)).abs().max()
    assert (change < 1e-9) == model.scheme.relative


def test_a_pattern_of_one_scheme_is_that_scheme() -> None:
    plain, pattern = decoder("alibi:window=4"), decoder("alibi:window=4/alibi:window=4")
    assert pattern.config == plain.config
    assert list(pattern.state_dict()) == list(plain.state_dict())


def test_the_layers_of_a_pattern_differ() -> None:
    """Against a model computed block by block, each with its own scheme."""
    model, ids_BT = decoder("alibi/none:window=3", layers=3), torch.randint(VOCABULARY, (1, 12))
    x_BTD = model.embed(ids_BT)
    for number, spec in enumerate(("alibi", "none:window=3", "alibi")):
        alone = decoder(spec, layers=1)
        alone.blocks[0] = model.blocks[number]
        alone.norm = torch.nn.Identity()  # type: ignore[assignment]
        x_BTD = alone.states(x_BTD)
    assert torch.allclose(model.head(model.norm(x_BTD)), model(ids_BT), atol=1e-6)


def test_a_sinusoidal_embedding_is_added_once() -> None:
    plain, pattern = decoder("sinusoidal"), decoder("none/sinusoidal/sinusoidal:window=1000")
    pattern.load_state_dict(plain.state_dict())
    ids_BT = torch.randint(VOCABULARY, (1, 12))
    assert torch.equal(pattern(ids_BT), plain(ids_BT))


def test_windowed_layers_read_their_window_only() -> None:
    """Counted: the layers with a window have O(L·w) keys, the cache of each layer its own size."""
    adapter = adapt(decoder("3*none:window=8/none"))
    assert isinstance(adapter, DecoderAdapter)
    assert adapter.windows == (8, 8, 8, None)
    assert adapter.reach() is None
    assert adapter.cache_size(1000) == 2 * 16 * 4 * (3 * 8 + 1000)
    decays = adapt(decoder("fox/none"))  # one more number per key and head
    assert decays.cache_size(10) == 4 * 10 * (2 * (2 * 16 + 2) + 2 * 2 * 16)
    operations = [cost.forward(adapter, 2000, 1, None).operations - 2.0 * adapter.parameters * 2000]
    assert operations == [4.0 * 2000 * 16 * (3 * 8 + 2000)]
    engine = CachedEngine(adapter.decoder)
    engine.read(torch.zeros(1, 300, dtype=torch.long), torch.arange(300))
    slots = [keys.buffer.shape[2] for keys, _ in engine.cache.layers]  # type: ignore[union-attr]
    assert slots[:3] == [capacity(8)] * 3
    assert slots[3] >= 300


class ScoreCounter(TorchDispatchMode):
    """Counts the scores that attention computes: queries × keys of every call of a kernel or of a product of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in func.name():
            first = int("backward" in func.name())  # there the first argument is the gradient of the output
            self.count += args[first].shape[2] * args[first + 1].shape[2]
        elif func is torch.ops.aten.bmm.default:
            self.count += args[0].shape[1] * args[1].shape[2]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "spec", ["alibi", "rotary", "fox", "t5:sink=learned", "rotary:logits=ssmax,sink=learned", "cope", "inkling", "fire"]
)
def test_windowed_layers_compute_a_number_of_scores_linear_in_the_length(spec: str) -> None:
    """Counted layer by layer, forward and backward: twice the length costs twice, and in full layers four times."""
    window, counts = 16, {}
    for length in (512, 1024):
        model = decoder(f"{spec}{',' if ':' in spec else ':'}window={window}/none", layers=2, train_length=16)
        for number in range(2):
            scheme = model.scheme.of_layer(number)
            q, k, v = (torch.randn(1, 2, length, 8, requires_grad=True) for _ in range(3))
            with ScoreCounter() as counter:
                attention(q, k, v, scheme, x_BSD=torch.randn(1, length, 16)).sum().backward()
            counts[length, number] = counter.count
    assert counts[1024, 0] <= 2.05 * counts[512, 0]
    assert counts[1024, 0] <= 8 * 1024 * (window + 80)  # a block has 64 queries more; up to 7 products of its scores
    assert counts[1024, 1] == 4 * counts[512, 1]


def test_last_position_mode_computes_what_each_layer_needs() -> None:
    model = decoder("none:window=4/none:window=8", layers=3)
    counts: list[tuple[int, int]] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _, inputs, output: counts.append((inputs[0].shape[1], output.shape[1])))
    model(torch.randint(VOCABULARY, (1, 100)), last=True)
    assert counts == [(14, 11), (11, 4), (4, 1)]
    assert adapt(model).reach() == 14


def test_the_lens_follows_each_layer() -> None:
    """The output of each layer depends on as many tokens as the windows up to it reach."""
    hook = EmbeddingHook(adapt(decoder("none:window=3/none:window=6/none", layers=3)))
    norms_RT = hook.layers(torch.randint(VOCABULARY, (1, 21)))[:, 0]
    assert (norms_RT != 0).sum(1).tolist() == [3, 8, 20]


def test_a_pattern_has_the_colour_of_its_first_scheme() -> None:
    assert tints(["3*rotary:window=64/none"])[0] == tints(["rotary"])[0]


def test_the_text_is_a_configuration_and_a_file_name(tmp_path: Path) -> None:
    model = decoder("3*rotary:window=64/none")
    FieldlensForCausalLM.of(model).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["scheme"] == "3*rotary:window=64/none"
    assert cycle(model.config.scheme) == ["rotary:window=64"] * 3 + ["none"]
