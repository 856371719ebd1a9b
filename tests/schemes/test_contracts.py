"""Properties of every registered scheme, with and without a window."""

import oracle
import pytest
import torch
from torch import Tensor

import fieldlens
from fieldlens.kernels import cpu_flash
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.layers import LayerSchemes
from fieldlens.schemes.spec import canonical, scheme

WINDOWS = pytest.mark.parametrize("window", [None, 1, 5])
LAYERS, LENGTH, TRAINED = 3, 24, 16


@pytest.fixture(autouse=True)
def _blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut even these short texts into blocks; tests/kernels/test_attention.py shows that one mask equals blocks."""
    monkeypatch.setattr("fieldlens.kernels.layout.FEW", 16)


def decoder(spec: str, window: int | None, layers: int = LAYERS) -> fieldlens.Decoder:
    """A small model with weights large enough that every dependence is visible."""
    config = fieldlens.Config(
        scheme=spec, window=window, layers=layers, width=32, heads=4, vocab_size=60, init_std=0.2, train_length=TRAINED
    )
    return fieldlens.Decoder(config).eval()


def input_gradient(model: fieldlens.Decoder, ids: Tensor, position: int) -> Tensor:
    """Gradient norm of the logits at one position with respect to each input embedding."""
    embeddings = model.embed(ids).detach().requires_grad_()
    weights = torch.randn(model.config.vocab_size)
    (model(embeddings_BTD=embeddings)[:, position] @ weights).sum().backward()
    assert embeddings.grad is not None
    return embeddings.grad.norm(dim=-1)[0]


@WINDOWS
@pytest.mark.usefixtures("float64")
def test_the_future_has_no_influence(every_spec: str, window: int | None) -> None:
    model = decoder(every_spec, window)
    ids = torch.randint(60, (1, LENGTH))
    for position in (0, 10, LENGTH - 2):
        norms = input_gradient(model, ids, position)
        assert bool((norms[position + 1 :] == 0.0).all())
        assert norms[position] > 0


@WINDOWS
@pytest.mark.usefixtures("float64")
def test_reach_is_exact(every_spec: str, window: int | None) -> None:
    model = decoder(every_spec, window)
    norms = input_gradient(model, torch.randint(60, (1, LENGTH)), LENGTH - 1)
    reach = LENGTH if window is None else min(LENGTH, LAYERS * (window - 1) + 1)
    assert int((norms > (0 if model.scheme.exact_reach else 1e-13 * norms.max())).sum()) == reach
    assert bool((norms[LENGTH - reach :] > 0).all())


@WINDOWS
@pytest.mark.usefixtures("float64")
def test_relative_means_shift_invariant(every_spec: str, window: int | None) -> None:
    model = decoder(every_spec, window)
    ids, positions = torch.randint(60, (2, LENGTH)), torch.arange(LENGTH)
    change = (model(ids, positions=positions + 1000) - model(ids, positions=positions)).abs().max()
    if model.scheme.relative:
        assert change < 1e-9
    elif window != 1 or model.scheme.embedding(positions) is not None:  # the scores of a single key change nothing
        assert change > 1e-3


@WINDOWS
@pytest.mark.usefixtures("float64")
def test_last_position_mode_is_the_full_forward(every_spec: str, window: int | None) -> None:
    model = decoder(every_spec, window)
    ids = torch.randint(60, (2, LENGTH))
    assert (model(ids, last=True) - model(ids)[:, -1:]).abs().max() < 1e-12
    assert (model(ids, last=True, window=3) - model(ids, window=3)[:, -1:]).abs().max() < 1e-12


@pytest.mark.usefixtures("float64")
def test_last_position_mode_at_positions_that_jump_back(every_spec: str) -> None:
    """The nearest keys are then not among the last tokens, so no token may be dropped."""
    model = decoder(every_spec, 2)
    ids, positions = torch.randint(60, (1, 9)), torch.tensor([8, 0, 1, 2, 3, 4, 5, 6, 9])
    full = model(ids, positions=positions)[:, -1:]
    assert (model(ids, positions=positions, last=True) - full).abs().max() < 1e-12


@WINDOWS
def test_finite_far_beyond(every_spec: str, window: int | None) -> None:
    model = decoder(every_spec, window)
    with torch.no_grad():
        assert bool(torch.isfinite(model(torch.randint(60, (1, 16 * 128)))).all())


def test_state_round_trips(every_spec: str) -> None:
    first, second = decoder(every_spec, None), decoder(every_spec, None)
    second.load_state_dict(first.state_dict())
    ids = torch.randint(60, (2, LENGTH))
    assert torch.equal(first(ids), second(ids))
    assert canonical(first.config.scheme) == first.config.scheme


def test_learned_parameters_are_shared_and_do_not_decay(every_spec: str) -> None:
    model = decoder(every_spec, None)
    learned = {id(parameter) for parameter in model.scheme.parameters()}
    decays, stays = model.parameter_groups(0.1)
    assert not learned & {id(parameter) for parameter in decays["params"]}
    assert learned <= {id(parameter) for parameter in stays["params"]}
    assert len(decays["params"]) + len(stays["params"]) == len(list(model.parameters()))
    copies = len(model.scheme.distinct_schemes)
    assert copies == (LAYERS if isinstance(model.scheme, LayerSchemes) else 1)
    assert sum(p.numel() for p in model.scheme.parameters()) == copies * sum(
        p.numel() for p in decoder(every_spec, None, layers=1).scheme.parameters()
    )


def test_learned_parameters_receive_gradients(every_spec: str) -> None:
    model, ids_BT = decoder(every_spec, None), torch.randint(60, (2, 131))  # long enough for biases of far keys
    torch.nn.functional.cross_entropy(model(ids_BT[:, :-1]).flatten(0, 1), ids_BT[:, 1:].flatten()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert bool(torch.isfinite(parameter.grad).all()), name
        assert bool((parameter.grad != 0).any()), name


# Fast attention against the oracle: (q_positions, k_positions), each (T,) or (B, T).
T, S = 130, 200
POSITIONS = {
    "square": (torch.arange(S), torch.arange(S)),
    "the last T of S": (torch.arange(S - T, S), torch.arange(S)),
    "a later chunk": (torch.arange(900, 900 + T), torch.arange(900 + T - S, 900 + T)),
    "keys run on past the queries": (torch.arange(20, 20 + T), torch.arange(10, 10 + S)),
    "queries before all keys": (torch.arange(T), torch.arange(50, 50 + S)),
    "a ring": (torch.arange(S, S + 2), (torch.arange(S) + 77) % S + 2),
    "rows shifted against each other": (
        torch.stack([torch.arange(S - T, S), torch.arange(S - T, S) + 31, torch.arange(S - T, S) + 500]),
        torch.stack([torch.arange(S), torch.arange(S) + 31, torch.arange(S) + 500]),
    ),
    "rows with different distances": (
        torch.stack([torch.arange(S - T, S), torch.arange(S - T, S) + 31]),
        torch.stack([torch.arange(S), torch.arange(S) + 21]),
    ),
    "one query": (
        torch.tensor([[S - 1], [S + 30], [-1]]),
        torch.stack([torch.arange(S), torch.arange(S) + 31, torch.full((S,), -1)]),
    ),
    "padded rows": (
        torch.stack([torch.arange(T), torch.arange(T) - 30, torch.arange(T) - T]).clamp(min=-1),
        torch.stack([torch.arange(T), torch.arange(T) - 30, torch.arange(T) - T]).clamp(min=-1),
    ),
}


def both(case: str, built: Scheme, window: int | None, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """Output and gradients of q, k, v and parameters: of fieldlens, then of the oracle. Inputs are exact in float32."""
    torch.manual_seed(1)
    q_positions, k_positions = (torch.atleast_2d(positions) for positions in POSITIONS[case])
    batch, t, s = max(2, len(q_positions)), q_positions.shape[1], k_positions.shape[1]
    q, k, v, upstream = (torch.randn(batch, 4, count, 8).to(dtype).requires_grad_() for count in (t, s, s, t))
    x = torch.randn(batch, s, 32).to(dtype).requires_grad_()
    inputs = [q, k, v, x, *built.parameters()]
    result = fieldlens.attention(q, k, v, built, window, *POSITIONS[case], x_BSD=x)
    expected = oracle.attention(q, k, v, built, window, q_positions.expand(batch, -1), k_positions.expand(batch, -1), x)
    first, second = (_with_gradients(out, inputs, upstream.detach()) for out in (result, expected))
    return first, second


def _with_gradients(out: Tensor, inputs: list[Tensor], upstream: Tensor) -> list[Tensor]:
    """Output and gradients; 0 for learned embeddings, which attention does not use."""
    return [out.detach(), *torch.autograd.grad(out, inputs, upstream, materialize_grads=True)]


ALL_CASES = [(case, window) for case in POSITIONS for window in (None, 7)]
ALL_CASES += [(case, window) for case in ("square", "padded rows", "the last T of S") for window in (1, 150)]


@pytest.mark.parametrize(("case", "window"), ALL_CASES)
def test_attention_is_the_oracle(every_spec: str, window: int | None, case: str) -> None:
    built = scheme(every_spec, 4, 8, TRAINED).double()
    results, references = both(case, built, window, torch.float64)
    for result, expected in zip(results, references, strict=True):
        assert (result - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max()))


@pytest.mark.parametrize("case", ["square", "padded rows"])
@WINDOWS
def test_float32_error_is_no_worse_than_the_oracles(every_spec: str, window: int | None, case: str) -> None:
    single, double = in_both_types(every_spec)
    results, references = both(case, single, window, torch.float32)
    _, exact = both(case, double, window, torch.float64)
    sizes = [float(truth.abs().max()) for truth in exact]
    for index, (result, reference, truth) in enumerate(zip(results, references, exact, strict=True)):
        # some gradients are exactly 0; those of parameters (after the output, q, k, v and x) are sums over many scores
        learned = index >= 5
        # Gradients of decays are sums over the text of sums over queries that cancel in exact arithmetic: each rounding
        # error of a weight enters all sums before it (3.5e-5 here, 1e-12 in float64: test_attention_is_the_oracle).
        loose = 4e-6 if single.exact_reach else 6e-5
        # The rounding of a weight grows with its score, which `logits` multiplies by up to ln(S): 1.02e-6 on one CPU.
        close = 2e-6 if "logits=" in every_spec else 1e-6
        allowed = loose * max(sizes[0], *sizes[5:]) if learned else close * max(sizes[0], sizes[index])
        assert (result - truth).abs().max() <= 2 * (reference - truth).abs().max() + allowed


def in_both_types(spec: str) -> tuple[Scheme, Scheme]:
    """A scheme in float32, and the same parameters in float64."""
    single, double = scheme(spec, 4, 8, TRAINED), scheme(spec, 4, 8, TRAINED).double()
    double.load_state_dict(single.state_dict())
    return single, double


@pytest.mark.parametrize("window", [None, 5])
def test_attention_is_exact_at_16384_tokens(every_spec: str, window: int | None) -> None:
    """The last 48 queries of a long text, float32 against the float64 oracle."""
    single, double = in_both_types(every_spec)
    far = torch.arange(16384)
    q, k, v = torch.randn(1, 4, 48, 8), torch.randn(1, 4, 16384, 8), torch.randn(1, 4, 16384, 8)
    x = torch.randn(1, 16384, 32)
    positions = (far[None, -48:], far[None])
    with torch.no_grad():
        reference, truth = (
            oracle.attention(q.to(dtype), k.to(dtype), v.to(dtype), built, window, *positions, x.to(dtype))
            for dtype, built in ((torch.float32, single), (torch.float64, double))
        )
        result = fieldlens.attention(q, k, v, single, window, x_BSD=x)
    assert (result - truth).abs().max() <= 2 * (reference - truth).abs().max() + 1e-6 * truth.abs().max()


@pytest.mark.parametrize("window", [None, 3])
def test_strides_do_not_matter(every_spec: str, window: int | None) -> None:
    """The private kernel assumes stride 1 on the last axis."""
    built, x = scheme(every_spec, 4, 8, TRAINED), torch.randn(2, 20, 32)
    plain = [torch.randn(2, 4, 20, 8) for _ in range(3)]
    strided = [x.transpose(2, 3).contiguous().transpose(2, 3).requires_grad_() for x in plain]
    plain = [x.requires_grad_() for x in plain]
    first, second = (fieldlens.attention(*inputs, built, window, x_BSD=x) for inputs in (plain, strided))
    assert (first - second).abs().max() < 1e-6
    gradients = (torch.autograd.grad(first.sum(), plain), torch.autograd.grad(second.sum(), strided))
    for plain_gradient, strided_gradient in zip(*gradients, strict=True):
        assert (plain_gradient - strided_gradient).abs().max() < 1e-5


@pytest.mark.parametrize("window", [None, 3])
def test_gradcheck(every_spec: str, window: int | None) -> None:
    built = scheme(every_spec, 2, 4, TRAINED).double()
    q, k, v = (torch.randn(2, 2, 9, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    x = torch.randn(2, 9, 8, dtype=torch.float64, requires_grad=True)
    parameters = tuple(built.parameters())
    assert torch.autograd.gradcheck(
        lambda q, k, v, x, *_: fieldlens.attention(q, k, v, built, window, x_BSD=x),
        (q, k, v, x, *parameters),
        fast_mode=True,
    )


@WINDOWS
@pytest.mark.parametrize("case", ["square", "padded rows", "queries before all keys"])
def test_private_kernel_and_public_operators_agree(
    every_spec: str, window: int | None, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = scheme(every_spec, 4, 8, TRAINED).double()
    assert cpu_flash.available()
    fast, _ = both(case, built, window, torch.float64)
    monkeypatch.setattr(cpu_flash, "available", lambda: False)
    public, _ = both(case, built, window, torch.float64)
    for result, expected in zip(fast, public, strict=True):
        assert (result - expected).abs().max() <= 1e-12 * max(1.0, float(expected.abs().max()))
