"""Attention: defaults, input checks, memory."""

import oracle
import pytest
import torch

import fieldlens
from fieldlens.core.errors import BadInput
from fieldlens.kernels import cpu_flash
from fieldlens.kernels.attention import bias_table
from fieldlens.kernels.blocks import LEARNED_ROWS
from fieldlens.kernels.layout import FEW, Contiguous, OneMask, Scattered, make_layout, visible

HEADS, WIDTH = 2, 4


def qkv(queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return tuple(torch.randn(1, HEADS, count, WIDTH) for count in (queries, keys, keys))  # type: ignore[return-value]


def test_a_window_of_w_is_w_keys_with_the_query_itself() -> None:
    distances = torch.arange(-2, 6)
    assert visible(distances, 3).tolist() == [False, False, True, True, True, False, False, False]
    assert visible(distances, None).tolist() == [False, False, *[True] * 6]


def test_positions_default_to_the_last_queries() -> None:
    q, k, v = qkv(3, 8)
    built = fieldlens.scheme("alibi", HEADS, WIDTH)
    explicit = fieldlens.attention(q, k, v, built, None, torch.arange(5, 8), torch.arange(8))
    assert torch.equal(fieldlens.attention(q, k, v, built), explicit)


@pytest.mark.parametrize("queries", [1, 3, 8])
@pytest.mark.parametrize(
    "starts", [((2, 5), (2, 5)), ((2, 5), (2, 4)), ((6, 6), (2, 2)), ((7, 9), (3, 5)), ((7, 9), (5, 3))]
)
def test_rows_of_a_batch_at_different_positions(starts: tuple[tuple[int, int], tuple[int, int]], queries: int) -> None:
    """Rows that begin at different positions, with keys that do not begin at 0, as after a cache has slid."""
    q, k, v = (torch.randn(2, HEADS, count, WIDTH, dtype=torch.float64) for count in (queries, 8, 8))
    built = fieldlens.scheme("alibi", HEADS, WIDTH)
    firsts = [torch.tensor(first)[:, None] for first in starts]
    q_positions, k_positions = firsts[0] + torch.arange(8)[8 - queries :], firsts[1] + torch.arange(8)
    expected = oracle.attention(q, k, v, built, None, q_positions, k_positions)
    assert torch.allclose(fieldlens.attention(q, k, v, built, None, q_positions, k_positions), expected, atol=1e-12)


def test_the_schemes_own_window_counts() -> None:
    q, k, v = qkv(9, 9)
    own = fieldlens.attention(q, k, v, fieldlens.scheme("alibi:window=3", HEADS, WIDTH), window=5)
    argument = fieldlens.attention(q, k, v, fieldlens.scheme("alibi", HEADS, WIDTH), window=3)
    assert torch.equal(own, argument)


def test_layout_detects_consecutive_positions() -> None:
    run = torch.arange(FEW + 1)
    assert isinstance(make_layout(run, run, None), Contiguous)
    assert make_layout(run, run, None).square
    assert not make_layout(run, run, 4).square
    assert not make_layout(run[5:], run, None).square
    assert isinstance(make_layout(run.expand(3, -1), run.expand(3, -1), None), Contiguous)
    assert isinstance(make_layout(run + 4, run, 4), Scattered)  # the last query sees no key
    assert isinstance(make_layout(run + 3, run, 4), Contiguous)
    assert isinstance(make_layout(run - 1, run - 1, None), Scattered)  # a key before position 0 is padding
    assert isinstance(make_layout(run.flip(0), run, None), Scattered)


def test_few_queries_and_keys_have_one_mask() -> None:
    run = torch.arange(FEW)
    assert isinstance(make_layout(run, run, None), OneMask)
    assert make_layout(run, run, None).square
    assert not make_layout(run, run, 4).square
    assert not make_layout(run[5:], run, None).square
    assert isinstance(make_layout(run + 4, run, 4), Scattered)  # the last query sees no key
    assert isinstance(make_layout(run[:1] + FEW, torch.arange(FEW + 1), None), Contiguous)


@pytest.mark.parametrize("window", [None, 1, 7])
def test_one_mask_equals_blocks(every_spec: str, window: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output and gradients, also those of learned biases, with fewer queries than keys."""
    built = fieldlens.scheme(every_spec, HEADS, WIDTH, train_length=16).double()
    inputs = [x.double().requires_grad_() for x in qkv(20, 33)]
    x_BSD = torch.randn(1, 33, HEADS * WIDTH, dtype=torch.float64, requires_grad=True)
    parameters = [*inputs, x_BSD, *built.parameters()]
    results = []
    for few in (FEW, 8):
        monkeypatch.setattr("fieldlens.kernels.layout.FEW", few)
        out = fieldlens.attention(*inputs, built, window, x_BSD=x_BSD)
        gradients = torch.autograd.grad(out.cos().sum(), parameters, allow_unused=True, materialize_grads=True)
        results.append([out, *gradients])
    for one_mask, blocks in zip(*results, strict=True):
        assert (one_mask - blocks).abs().max() < 1e-12


@pytest.mark.parametrize("window", [None, 100])
@pytest.mark.parametrize(
    "spec", ["sandwich", "kerple", "t5", "none:window=100", "fox:sink=learned", "t5:sink=learned", "cope"]
)
def test_no_square_tensor_is_made(spec: str, window: int | None) -> None:
    """No operator in forward or backward has an output of about H·L·L elements."""
    length = 2048
    built = fieldlens.scheme(spec, HEADS, WIDTH)
    q, k, v = (x.requires_grad_() for x in qkv(length, length))
    sizes: list[int] = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            out = function(*args, **(kwargs or {}))
            for tensor in out if isinstance(out, (tuple, list)) else [out]:
                if isinstance(tensor, torch.Tensor):
                    sizes.append(tensor.untyped_storage().nbytes() // tensor.element_size())
            return out

    with Watch():
        fieldlens.attention(q, k, v, built, window, x_BSD=torch.randn(1, length, HEADS * WIDTH)).sum().backward()
    assert max(sizes) <= HEADS * length * (2 * LEARNED_ROWS)


def test_a_padded_batch_is_cut_to_the_window_too() -> None:
    """Each block of queries reads only keys that some row can see, and a gathered mask stays small."""
    tokens, window = 4096, 64
    positions = torch.stack([torch.arange(tokens), torch.arange(tokens) - 7]).clamp(min=-1)
    windowed = make_layout(positions, positions, window)
    assert isinstance(windowed, Scattered)
    for queries, keys in windowed.blocks(256):
        assert keys.stop - keys.start <= queries.stop - queries.start + window + 7
    full = make_layout(positions, positions, None)
    assert all((queries.stop - queries.start) * 2 * tokens <= 2**20 for queries, _ in full.blocks(256))


def test_reach_is_the_largest_distance() -> None:
    far = torch.tensor([1_000_000, 1_000_002])
    assert make_layout(far, far, None).reach == 3


def test_half_precision_keeps_its_bias_in_float32() -> None:
    """At bias -40 a bfloat16 table would be off by 0.1; the error here is that of bfloat16 inputs alone."""
    built = fieldlens.scheme("sandwich", HEADS, WIDTH)
    assert bias_table(built, 512, torch.empty(0, dtype=torch.bfloat16)).dtype == torch.float32  # type: ignore[union-attr]
    q, k, v = (x.bfloat16().requires_grad_() for x in qkv(64, 64))
    wide = [x.detach().float().requires_grad_() for x in (q, k, v)]
    half_out, wide_out = fieldlens.attention(q, k, v, built), fieldlens.attention(*wide, built)
    assert half_out.dtype == torch.bfloat16
    assert (half_out.float() - wide_out).abs().max() <= 2**-8 * wide_out.abs().max()
    half_out.float().sum().backward()
    wide_out.sum().backward()
    for half, full in zip((q, k, v), wide, strict=True):
        assert (half.grad.float() - full.grad).abs().max() <= 2**-7 * full.grad.abs().max() + 1e-6  # type: ignore[union-attr]


def test_public_operators_replace_missing_private_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*_: object) -> None:
        raise AttributeError("no such operator")

    cpu_flash.available.cache_clear()
    monkeypatch.setattr(cpu_flash, "_forward", gone)
    try:
        assert not cpu_flash.available()
        q, k, v = qkv(9, 9)
        built, positions = fieldlens.scheme("alibi", HEADS, WIDTH), torch.arange(9)[None]
        expected = oracle.attention(q, k, v, built, None, positions, positions)
        assert (fieldlens.attention(q, k, v, built) - expected).abs().max() < 1e-6
    finally:
        cpu_flash.available.cache_clear()


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 5, 4)), "incompatible shapes: q"),
        (((1, 2, 3, 4), (1, 3, 3, 4), (1, 3, 3, 4)), "incompatible shapes: q"),
        (((1, 3, 3, 4), (1, 3, 3, 4), (1, 3, 3, 4)), "q has 3 heads of width 4, but the scheme has 2 heads of width 4"),
    ],
)
def test_incompatible_shapes(shapes: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fieldlens.attention(*(torch.zeros(shape) for shape in shapes), fieldlens.scheme("none", HEADS, WIDTH))


def test_invalid_positions_and_inputs() -> None:
    q, k, v = qkv(3, 8)
    built = fieldlens.scheme("none", HEADS, WIDTH)
    with pytest.raises(BadInput, match=r"q_positions has shape \(4,\), expected \(3,\) or \(1, 3\)"):
        fieldlens.attention(q, k, v, built, None, torch.arange(4), torch.arange(8))
    with pytest.raises(BadInput, match=r"k_positions has shape \(2, 8\), expected \(8,\) or \(1, 8\)"):
        fieldlens.attention(q, k, v, built, None, torch.arange(3), torch.zeros(2, 8).long())
    with pytest.raises(BadInput, match="8 queries for 3 keys"):
        fieldlens.attention(k, q, q, built)
    with pytest.raises(BadInput, match="at least one query and one key"):
        fieldlens.attention(q, k[:, :, :0], v[:, :, :0], built)
    with pytest.raises(BadInput, match="q, k and v must have the same dtype"):
        fieldlens.attention(q, k.double(), v, built)
    with pytest.raises(BadInput, match="window must be at least 1, got 0"):
        fieldlens.attention(q, k, v, built, 0)
