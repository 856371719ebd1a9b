"""The whole matrix of logits, against the attention that it describes."""

import pytest
import torch

import fieldlens
from fieldlens.kernels.logits import whole_logits
from fieldlens.models.scheme_on_text import added_scores
from fieldlens.schemes.spec import scheme


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.usefixtures("float64")
def test_the_softmax_of_the_logits_is_attention(every_spec: str, window: int | None) -> None:
    built = scheme(
        every_spec if window is None else f"{every_spec}{',' if ':' in every_spec else ':'}window=5", 2, 8, 16
    )
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.add_(0.1 * torch.rand_like(parameter))
    q, k, v = torch.randn(3, 2, 2, 30, 8)
    x = torch.randn(2, 30, 16)
    logits = whole_logits(q, k, built, x)
    options = built.softmax_options
    sink = -torch.inf if options is None or options.sink_H is None else options.sink_H[:, None, None]
    weights = (logits - torch.logaddexp(logits.logsumexp(-1, keepdim=True), torch.as_tensor(sink))).exp()
    assert (weights @ v - fieldlens.attention(q, k, v, built, x_BSD=x)).abs().max() < 1e-12


@pytest.mark.usefixtures("float64")
def test_added_scores_of_a_bias_are_the_bias() -> None:
    config = fieldlens.Config(scheme="none/alibi:window=4", layers=2, width=16, heads=2, vocab_size=9)
    added_HTT = added_scores(fieldlens.Decoder(config), torch.randint(9, (12,)), layer=1)
    distances = torch.arange(12)[:, None] - torch.arange(12)
    bias = scheme("alibi", 2, 8).bias(distances.clamp(min=0).flatten()).view(2, 12, 12)
    expected = bias.masked_fill((distances < 0) | (distances >= 4), torch.nan)
    assert torch.allclose(added_HTT, expected, atol=1e-12, equal_nan=True)
