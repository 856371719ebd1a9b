"""Chunked cross-entropy against torch's own."""

import pytest
import torch

from fieldlens.training import loss


@pytest.mark.parametrize("chunk", [1, 40, 10**6])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_loss_and_gradients_are_torchs(chunk: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loss, "CHUNK", chunk)
    monkeypatch.setattr(loss, "ROWS", 1)
    states = torch.randn(13, 8, dtype=dtype, requires_grad=True)
    weight = torch.randn(20, 8, dtype=dtype, requires_grad=True)
    targets = torch.randint(20, (13,))
    actual = loss.cross_entropy(states, weight, targets)
    expected = torch.nn.functional.cross_entropy(states @ weight.T, targets)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    assert (actual - expected).abs() < tolerance
    gradients = (torch.autograd.grad(3 * value, (states, weight)) for value in (actual, expected))
    for gradient, expected_gradient in zip(*gradients, strict=True):
        assert (gradient - expected_gradient).abs().max() < tolerance


def test_gradcheck() -> None:
    states, weight = (torch.randn(n, 4, dtype=torch.float64, requires_grad=True) for n in (5, 7))
    assert torch.autograd.gradcheck(lambda s, w: loss.cross_entropy(s, w, torch.arange(5)), (states, weight))


def test_without_gradients_none_are_computed() -> None:
    with torch.no_grad():
        value = loss.cross_entropy(torch.zeros(3, 2), torch.zeros(10, 2), torch.tensor([1, 2, 3]))
    assert float(value) == pytest.approx(torch.log(torch.tensor(10.0)).item())
