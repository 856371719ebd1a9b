"""FlexAttention: equal to blocks for every scheme, its mask, its compilations, and when it is not used.

The uncompiled kernel has a complete backward pass on a CPU below one check of the device, which is replaced here: so
every gradient is compared in float64. Compiled kernels run on a CPU in inference only.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
import torch
from conftest import all_specs
from torch.nn.attention.flex_attention import create_block_mask

import fieldlens
from fieldlens.core.errors import BadInput
from fieldlens.kernels import flex, selection
from fieldlens.kernels.layout import Contiguous
from fieldlens.models.adapters.decoder import DecoderAdapter

HEADS, WIDTH = 2, 16
CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),  # torch's own tracing
]


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Select a kernel; returns the list of kernels that were then chosen. Flex runs uncompiled, with gradients."""
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "COMPILED", False)
    return lambda name: record_choices(monkeypatch, name)


def record_choices(monkeypatch: pytest.MonkeyPatch, name: str) -> list[str]:
    chosen: list[str] = []

    def choose(case: selection.Case) -> selection.Choice:
        choice = selection.choose_kernel(case)
        chosen.append(choice.kernel)
        return choice

    monkeypatch.setenv("FIELDLENS_KERNEL", name)
    monkeypatch.setattr("fieldlens.kernels.attention.choose_kernel", choose)
    return chosen


def results(spec: str, window: int | None, queries: int, keys: int, **options: Any) -> list[torch.Tensor]:
    """The output, and the gradients of q, k, v, the layer's input and all parameters, with the same random numbers."""
    options = {"dtype": torch.float64, **options}
    torch.manual_seed(1)
    built = fieldlens.scheme(spec, HEADS, WIDTH, train_length=16).to(**options)
    shapes = [(2, HEADS, count, WIDTH) for count in (queries, keys, keys)]
    inputs = [torch.randn(shape, requires_grad=True, **options) for shape in shapes]
    x_BSD = torch.randn(2, keys, HEADS * WIDTH, requires_grad=True, **options)
    out = fieldlens.attention(*inputs, built, window, x_BSD=x_BSD)
    sought = [*inputs, x_BSD, *built.parameters()]
    return [out, *torch.autograd.grad(out.cos().sum(), sought, allow_unused=True, materialize_grads=True)]


def serves(spec: str) -> bool:
    """Whether flex can compute a scheme: it adds biases, but cannot call a scheme that computes with scores."""
    return not fieldlens.scheme(spec, HEADS, WIDTH, train_length=16).takes_scores


def has_terms(spec: str, window: int | None) -> bool:
    """Whether there is anything to add to plain causal attention, which needs no kernel of ours."""
    built = fieldlens.scheme(spec, HEADS, WIDTH, train_length=16)
    more = built.has_sink or built.takes_input or (built.softmax_options and built.softmax_options.sink_H is not None)
    return bool(window is not None or more or built.bias(torch.arange(2)) is not None)


@pytest.mark.parametrize("window", [None, 70])
def test_flex_equals_blocks(every_spec: str, window: int | None, uncompiled: Callable[[str], list[str]]) -> None:
    """Output and gradients of q, k, v, the layer's input and all parameters, in float64."""
    uncompiled("blocks")
    expected = results(every_spec, window, 150, 150)
    chosen = uncompiled("flex")
    computed = results(every_spec, window, 150, 150)
    assert set(chosen) == ({"flex"} if serves(every_spec) and has_terms(every_spec, window) else set())
    for ours, theirs in zip(computed, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-10


@pytest.mark.parametrize("spec", ["alibi", "t5", "fox:sink=learned"])
@pytest.mark.parametrize(("queries", "keys", "window"), [(100, 300, None), (130, 300, 20), (128, 256, 129)])
def test_flex_with_fewer_queries_than_keys(
    spec: str, queries: int, keys: int, window: int | None, uncompiled: Callable[[str], list[str]]
) -> None:
    uncompiled("blocks")
    expected = results(spec, window, queries, keys)
    chosen = uncompiled("flex")
    computed = results(spec, window, queries, keys)
    assert chosen == ["flex"]
    for ours, theirs in zip(computed, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-10


@pytest.mark.parametrize("window", [None, 70])
def test_sdpa_equals_blocks(every_spec: str, window: int | None, uncompiled: Callable[[str], list[str]]) -> None:
    uncompiled("blocks")
    expected = results(every_spec, window, 90, 150)
    chosen = uncompiled("sdpa")
    computed = results(every_spec, window, 90, 150)
    assert set(chosen) <= {"sdpa"}
    for ours, theirs in zip(computed, expected, strict=True):
        assert (ours - theirs).abs().max() < 1e-10


@pytest.mark.parametrize(("q_blocks", "k_blocks"), [(1, 1), (3, 3), (1, 4), (2, 5)])
@pytest.mark.parametrize("window", [None, 1, 2, 127, 128, 129, 300, 10**6])
def test_flex_block_mask_equals_that_of_torch(q_blocks: int, k_blocks: int, window: int | None) -> None:
    """Ours is built from whole blocks, without a tensor of T × S elements."""
    offset = (k_blocks - q_blocks) * flex.BLOCK
    width = 10**9 if window is None else window

    def visible(b: torch.Tensor, h: torch.Tensor, i: torch.Tensor, j: torch.Tensor) -> torch.Tensor:
        return (i + offset - j >= 0) & (i + offset - j < width)

    sizes = q_blocks * flex.BLOCK, k_blocks * flex.BLOCK
    expected = create_block_mask(visible, None, None, *sizes, device="cpu", BLOCK_SIZE=flex.BLOCK)
    ours = flex.block_mask(q_blocks, k_blocks, window, torch.device("cpu"))
    assert ours.shape == expected.shape
    for kind in ("kv", "full_kv", "q", "full_q"):
        counts, expected_counts = (getattr(mask, f"{kind}_num_blocks") for mask in (ours, expected))
        assert torch.equal(counts, expected_counts)
        indices, expected_indices = (getattr(mask, f"{kind}_indices")[0, 0] for mask in (ours, expected))
        for row, count in enumerate(counts.flatten().tolist()):
            assert sorted(indices[row, :count].tolist()) == sorted(expected_indices[row, :count].tolist())
    i, j = torch.arange(sizes[0])[:, None], torch.arange(sizes[1])
    assert torch.equal(ours.mask_mod(0, 0, i, j), visible(i, i, i, j))  # type: ignore[arg-type]


def test_flex_block_masks_are_made_once_per_shape() -> None:
    device = torch.device("cpu")
    assert flex.block_mask(2, 2, 40, device) is flex.block_mask(2, 2, 40, device)


def test_flex_generates_and_then_differentiates(uncompiled: Callable[[str], list[str]]) -> None:
    """A mask that was made in inference mode is kept, and used by a backward pass of the same shape."""
    chosen = uncompiled("flex")
    flex.block_mask.cache_clear()
    with torch.inference_mode():
        q = torch.randn(1, HEADS, 150, WIDTH)
        fieldlens.attention(q, q, q, fieldlens.scheme("alibi", HEADS, WIDTH))
    gradients = results("alibi", None, 150, 150)[1:]
    assert set(chosen) == {"flex"}
    assert all(x.isfinite().all() for x in gradients)


def test_flex_keeps_long_sums_exact_in_float32(uncompiled: Callable[[str], list[str]]) -> None:
    """The decays of FoX are sums over the text, near 4000 here: in float32 alone they would be off by 2e-4."""
    key_bias = (4000 + torch.linspace(0, 5, 256, dtype=torch.float64)).expand(1, HEADS, -1)
    q, k, v = (torch.randn(1, HEADS, 256, WIDTH) for _ in range(3))
    layout = Contiguous(0, 256, 0, 256, None, q.device)
    bias = layout.expand(torch.zeros(HEADS, 256))
    out = flex.attend_flex(q, k, v, bias, layout, None, key_bias, None)
    wide = flex.attend_flex(q.double(), k.double(), v.double(), bias.double(), layout, None, key_bias, None)
    assert (out - wide).abs().max() < 2e-6


def test_flex_closed_forms_equal_the_tables(every_spec: str) -> None:
    built = fieldlens.scheme(every_spec, 12, 64, train_length=16)
    form = built.bias_form()
    if form is None:
        return
    distances = torch.arange(5000)
    rows = [form.curve(distances.double(), *(c_H[h].double() for c_H in form.coefficients_H)) for h in range(12)]
    torch.testing.assert_close(torch.stack(rows), built.bias(distances), rtol=1e-14, atol=1e-14)


def test_flex_uses_no_closed_form_of_a_parent_with_another_bias() -> None:
    class Halved(type(fieldlens.scheme("alibi", HEADS, WIDTH))):  # type: ignore[misc]
        def bias(self, distances_N: torch.Tensor) -> torch.Tensor:
            return super().bias(distances_N) / 2

    q = torch.empty(1, HEADS, 90, WIDTH)
    assert flex.bias_form(fieldlens.scheme("alibi", HEADS, WIDTH), True, q) is not None
    assert flex.bias_form(Halved(HEADS, WIDTH), True, q) is None


def count_compilations(
    lengths: list[int], windows: list[int | None], specs: list[str], batches: tuple[int, ...] = (1,)
) -> int:
    """Graphs that torch compiles for these inputs, by its own count."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    run = flex._compiled.__wrapped__("eager")
    for spec in specs:
        built = fieldlens.scheme(spec, HEADS, WIDTH)
        for length, window, batch in product(lengths, windows, batches):
            q, x_BSD = torch.randn(batch, HEADS, length, WIDTH), torch.randn(batch, length, 2 * WIDTH)
            with pytest.MonkeyPatch.context() as patch, torch.no_grad():
                patch.setattr(flex, "kernel", lambda: run)
                fieldlens.attention(q, q, q, built.float(), window, x_BSD=x_BSD)
    return counters["stats"]["unique_graphs"]


def test_flex_compiles_once_per_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A study's lengths, with and without a window, compile once for each padded length; more than the default 8."""
    monkeypatch.setenv("FIELDLENS_KERNEL", "flex")
    monkeypatch.setattr(flex, "failure", lambda *_: None)
    assert count_compilations([65, 100, 127, 128, 129, 200, 256, 300], [None, 50, 90], ["alibi"]) == 3
    assert count_compilations([128 * n for n in range(1, 11)], [None], ["alibi"]) == 10
    assert count_compilations([128], [None], ["alibi", "alibi:shift=2", "sandwich", "sandwich:dims=64"]) == 2


@pytest.mark.parametrize("spec", ["alibi", "t5", "fox"])
def test_flex_compiles_once_for_all_batches(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One text, a batch and the rest of the texts: two compilations for each padded length on CUDA."""
    monkeypatch.setenv("FIELDLENS_KERNEL", "flex")
    monkeypatch.setattr(flex, "failure", lambda *_: None)
    assert count_compilations([100, 128, 200], [None, 50], [spec], (1, 8, 5, 2)) == 8
    monkeypatch.setattr(flex, "DYNAMIC_BATCH", ("cpu",))
    assert count_compilations([100, 128, 200], [None, 50], [spec], (1, 8, 5, 2)) == 4


def test_flex_gives_way_to_blocks_after_too_many_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three lengths where two may be compiled: the third is as exact, with a warning."""
    torch._dynamo.reset()
    monkeypatch.setattr(flex, "MAX_COMPILATIONS", 2)
    run = flex._compiled.__wrapped__("eager")
    monkeypatch.setattr(flex, "kernel", lambda: run)
    monkeypatch.setattr(flex, "failure", lambda *_: None)
    monkeypatch.setenv("FIELDLENS_KERNEL", "flex")
    built = fieldlens.scheme("alibi", HEADS, WIDTH)
    with torch.no_grad():
        for length in (128, 256):
            q = torch.randn(1, HEADS, length, WIDTH)
            fieldlens.attention(q, q, q, built)
        q = torch.randn(1, HEADS, 384, WIDTH)
        with pytest.warns(UserWarning, match="compiled for too many shapes: further ones use blocks"):
            computed = fieldlens.attention(q, q, q, built)
        monkeypatch.setenv("FIELDLENS_KERNEL", "blocks")
        assert torch.equal(computed, fieldlens.attention(q, q, q, built))
    torch._dynamo.reset()


COMPILED = """
import json, sys, torch, fieldlens
from fieldlens.kernels import flex, selection

obstacle = selection.flex_obstacle(selection.Case(torch.device("cpu"), torch.float32, 16))
assert obstacle is None, obstacle
calls, kernel = [], flex.kernel
flex.kernel = lambda: calls.append(1) or kernel()
record = {}
for spec in sys.argv[1:]:
    q, k, v = (torch.randn(1, 2, 128, 16) for _ in range(3))
    x_BSD = torch.randn(1, 128, 32)
    built = fieldlens.scheme(spec, 2, 16, train_length=16)
    calls.clear()
    with torch.no_grad():
        computed = fieldlens.attention(q, k, v, built.float(), 70, x_BSD=x_BSD)
        used = bool(calls)
        wide = [x.double() for x in (q, k, v)]
        expected = fieldlens.attention(*wide, built.double(), 70, x_BSD=x_BSD.double())
    record[spec] = [used, (computed - expected).abs().max().item()]
print(json.dumps(record))
"""


def run_compiled(specs: list[str], threads: str) -> dict[str, tuple[bool, float]]:
    """Whether compiled flex ran, and its largest error, for each scheme with a window.

    In a process of its own: torch's compiler imports setuptools, which fails where distutils was imported before it.
    """
    settings = {**os.environ, "FIELDLENS_KERNEL": "flex", "OMP_NUM_THREADS": threads}
    child = subprocess.run(
        [sys.executable, "-c", COMPILED, *specs], env=settings, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stderr
    return json.loads(child.stdout)


def test_flex_compiled_on_a_cpu_serves_every_scheme() -> None:
    record = run_compiled(all_specs(), "1")
    for spec, (used, error) in record.items():
        built = fieldlens.scheme(spec, HEADS, WIDTH, train_length=16)
        has_sink = built.has_sink or (built.softmax_options is not None and built.softmax_options.sink_H is not None)
        assert used == (serves(spec) and not has_sink), spec  # compiled on a CPU it has no normaliser for sinks
        assert error < 1e-5, spec
    used, error = run_compiled(["kerple"], "2")["kerple"]  # the kernel for one thread must not be reused
    assert used
    assert error < 1e-5


CPU, CUDA_DEVICE = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize(
    ("changes", "kernel", "reason"),
    [
        ({}, "flex", "CUDA"),
        ({"fixed": False, "gradient": True, "sink": True}, "flex", "CUDA"),
        ({"head_width": 8}, "blocks", "not flex: head width 8 is less than 16"),
        ({"consecutive": False}, "blocks", "not flex: positions are not consecutive"),
        ({"few": True}, "blocks", "not flex: few queries"),
        ({"dtype": torch.float64}, "blocks", "not flex: float64"),
        ({"device": torch.device("mps")}, "blocks", "mps"),
        ({"device": CPU}, "cpu_flash", "fixed bias on a CPU"),
        ({"device": CPU, "fixed": False, "dtype": torch.float32}, "blocks", "learned bias on a CPU"),
        ({"device": CPU, "fixed": False}, "blocks", "bfloat16 on a CPU"),
    ],
)
def test_flex_is_chosen_where_it_serves(
    changes: dict[str, Any], kernel: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FIELDLENS_KERNEL", raising=False)
    monkeypatch.setattr(flex, "failure", lambda *_: None)
    case = selection.Case(CUDA_DEVICE, torch.bfloat16, 64)._replace(**changes)
    assert selection.choose_kernel(case) == (kernel, reason)


@pytest.mark.parametrize(
    ("name", "changes", "chosen"),
    [
        ("flex", {}, "flex (FIELDLENS_KERNEL=flex)"),
        ("flex", {"gradient": True}, "cpu_flash (not flex: compiled on a CPU it has no backward pass)"),
        ("flex", {"sink": True}, "cpu_flash (not flex: compiled on a CPU it has no normaliser for sinks)"),
        ("flex", {"device": torch.device("mps")}, "blocks (not flex: it has no backward pass on mps)"),
        ("blocks", {}, "blocks (FIELDLENS_KERNEL=blocks)"),
        ("sdpa", {"device": CUDA_DEVICE}, "sdpa (FIELDLENS_KERNEL=sdpa)"),
    ],
)
def test_flex_and_other_kernels_by_request(
    name: str, changes: dict[str, Any], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FIELDLENS_KERNEL", name)
    monkeypatch.setattr(flex, "failure", lambda *_: None)
    assert str(selection.choose_kernel(selection.Case(CPU, torch.float32, 64)._replace(**changes))) == chosen


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("alibi", "cpu_flash (fixed bias on a CPU); one mask (texts of at most 64 tokens)"),
        ("rotary", "sdpa (plain causal attention)"),
        ("cope", "general (the scheme computes with scores)"),
    ],
)
def test_results_name_the_kernel_of_short_texts_too(
    spec: str, names: str, uncompiled: Callable[[str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = uncompiled("blocks")
    results("alibi", None, 64, 64)
    assert chosen == []  # one mask
    results("alibi", None, 65, 65)
    assert chosen == ["blocks"]
    monkeypatch.delenv("FIELDLENS_KERNEL")
    built = fieldlens.scheme(spec, HEADS, WIDTH)
    assert selection.describe_kernels([built], CPU, torch.float32, training=False) == names


def test_results_name_the_kernel_of_last_queries_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the last layer's single query, flex is not the only kernel of an evaluation; training computes all."""
    monkeypatch.setenv("FIELDLENS_KERNEL", "flex")
    monkeypatch.setattr(flex, "failure", lambda *_: None)
    adapter = DecoderAdapter(fieldlens.Decoder(fieldlens.Config(scheme="alibi", layers=1, width=32, heads=2)))
    assert adapter.kernel() == (
        "cpu_flash (not flex: few queries); flex (FIELDLENS_KERNEL=flex); one mask (texts of at most 64 tokens)"
    )
    schemes = adapter.decoder.scheme.distinct_schemes
    assert "few queries" not in selection.describe_kernels(schemes, CPU, torch.float32, training=True)


@pytest.mark.parametrize(
    ("dtype", "reason"), [(torch.float32, "learned bias on a CPU"), (torch.bfloat16, "bfloat16 on a CPU")]
)
def test_the_reason_for_blocks_names_the_dtype(dtype: torch.dtype, reason: str) -> None:
    built = fieldlens.scheme("t5", HEADS, WIDTH)
    assert str(selection.usual_kernel(built, CPU, dtype, training=True)) == f"blocks ({reason})"


def test_unknown_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_KERNEL", "flexx")
    with pytest.raises(BadInput, match="unknown value of FIELDLENS_KERNEL 'flexx': did you mean 'flex'\\?"):
        results("alibi", None, 90, 90)


def test_flex_that_does_not_compile_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no C++ compiler\nwith details")

    monkeypatch.setattr(flex, "_compiled", lambda: broken)
    flex.failure.cache_clear()
    try:
        assert flex.failure(CPU, torch.float32, 16) == "it does not compile here (RuntimeError: no C++ compiler)"
    finally:
        flex.failure.cache_clear()


@CUDA
@pytest.mark.cuda
def test_flex_on_cuda_compiles_once_for_all_batches() -> None:
    """With the real compiler, forward and backward: two graphs for each padded length."""
    from torch._dynamo.utils import counters

    torch._dynamo.reset()
    counters.clear()
    for length, batch in product((100, 128, 200), (1, 8, 5, 2)):
        q = torch.randn(batch, HEADS, length, WIDTH, device="cuda", requires_grad=True)
        fieldlens.attention(q, q, q, fieldlens.scheme("alibi", HEADS, WIDTH)).sum().backward()
    assert counters["stats"]["unique_graphs"] == 4


@CUDA
@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_flex_on_cuda_equals_blocks(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiled kernel with all gradients, for every scheme, with and without a window."""
    for spec, window in product(all_specs(), (None, 70)):
        monkeypatch.setenv("FIELDLENS_KERNEL", "flex")
        computed = results(spec, window, 300, 300, dtype=dtype, device="cuda")
        monkeypatch.setenv("FIELDLENS_KERNEL", "blocks")
        expected = results(spec, window, 300, 300, dtype=dtype, device="cuda")
        tolerance = 1e-4 if dtype == torch.float32 else 3e-2
        for ours, theirs in zip(computed, expected, strict=True):
            assert (ours - theirs).abs().max() <= tolerance * max(1.0, float(theirs.abs().max())), (spec, window)


@CUDA
@pytest.mark.cuda
@pytest.mark.parametrize("name", ["flex", "blocks"])
def test_kernels_on_cuda_are_deterministic(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learned biases too: their gradients are summed in a fixed order."""
    monkeypatch.setenv("FIELDLENS_KERNEL", name)
    first, second = (results("t5", None, 300, 300, dtype=torch.float32, device="cuda") for _ in range(2))
    for one_time, other_time in zip(first, second, strict=True):
        assert torch.equal(one_time, other_time)
