"""Sampling: the same candidates as transformers' processors, the same draws by seed, the right frequencies."""

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessorList, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from fieldlens.core.errors import BadInput, NonFiniteResult
from fieldlens.generation.sampling import Sampler, Sampling, candidates

CPU = torch.device("cpu")


def transformers_candidates(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """The same filters by the processors of transformers."""
    steps = LogitsProcessorList([TemperatureLogitsWarper(sampling.effective_temperature)])
    if sampling.top_k is not None:
        steps.append(TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        steps.append(TopPLogitsWarper(sampling.top_p))
    return steps(torch.zeros(len(logits_BV), 1, dtype=torch.long), logits_BV)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 7, 500, 5000])
@pytest.mark.parametrize("top_p", [None, 1e-6, 0.3, 0.9, 1.0])
@pytest.mark.usefixtures("float64")
def test_candidates_are_those_of_transformers(temperature: float, top_k: int | None, top_p: float | None) -> None:
    sampling, logits_BV = Sampling(temperature, top_k, top_p), 3 * torch.randn(6, 500)
    assert torch.equal(candidates(logits_BV, sampling), transformers_candidates(logits_BV, sampling))


def test_equal_logits_at_the_edge_of_top_k_all_stay() -> None:
    logits_BV = torch.tensor([[1.0, 2.0, 1.0, 0.0]])
    assert candidates(logits_BV, Sampling(top_k=2)).isfinite().tolist() == [[True, True, True, False]]


def test_draws_depend_on_the_seed() -> None:
    logits_BV = torch.randn(3, 50)
    first, same, other = (Sampler(Sampling(1.0, seed=seed), CPU) for seed in (5, 5, 6))
    drawn = [[sampler.choose(logits_BV).tolist() for _ in range(20)] for sampler in (first, same, other)]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]


@pytest.mark.parametrize("temperature", [0.0, 100.0])
def test_ids_beyond_the_tokenizer_are_never_chosen(temperature: float) -> None:
    sampler, logits_BV = Sampler(Sampling(temperature, vocab_size=3), CPU), torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0]])
    assert {int(sampler.choose(logits_BV)) for _ in range(50)} <= {0, 1, 2}


def test_draws_leave_the_global_state_alone() -> None:
    state = torch.get_rng_state()
    Sampler(Sampling(1.0), CPU).choose(torch.randn(1, 9, generator=torch.Generator().manual_seed(0)))
    assert torch.equal(state, torch.get_rng_state())


def test_frequencies_match_the_probabilities() -> None:
    """20,000 draws: each frequency within 5 standard errors of its probability."""
    logits_V = torch.tensor([0.0, 1.0, 2.0, -1.0])
    sampler, draws = Sampler(Sampling(1.5, top_k=3), CPU), 20_000
    counts_V = torch.bincount(sampler.choose(logits_V.expand(draws, -1)), minlength=4)
    probabilities_V = torch.tensor([0.0, 1.0, 2.0, -torch.inf]).div(1.5).softmax(0)
    assert counts_V[3] == 0
    assert bool(
        (
            (counts_V / draws - probabilities_V).abs() <= 5 * (probabilities_V * (1 - probabilities_V) / draws).sqrt()
        ).all()
    )


def test_without_a_temperature_sampling_is_greedy() -> None:
    logits_BV = torch.randn(4, 30)
    for sampling in (Sampling(), Sampling(0.0), Sampling(0.0, top_k=3)):
        assert torch.equal(Sampler(sampling, CPU).choose(logits_BV), logits_BV.argmax(-1))
    assert (
        Sampling(top_k=3).effective_temperature,
        Sampling(top_p=0.5).effective_temperature,
        Sampling(0.7, 3).effective_temperature,
    ) == (1.0, 1.0, 0.7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature must be .* got -1"),
        ({"temperature": float("nan")}, "temperature must be .* got nan"),
        ({"temperature": float("inf")}, "temperature must be .* got inf"),
        ({"top_k": 0}, "top-k must be at least 1, got 0"),
        ({"top_p": 0.0}, "top-p must be .* got 0"),
        ({"top_p": 1.1}, "top-p must be .* got 1.1"),
        ({"top_p": float("nan")}, "top-p must be .* got nan"),
        ({"seed": -1}, "seed must be .* got -1"),
    ],
)
def test_bad_numbers_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Sampling(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("logit", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_are_refused(logit: float) -> None:
    with pytest.raises(NonFiniteResult, match="produced NaN or inf logits"):
        Sampler(Sampling(), CPU).choose(torch.tensor([[0.0, logit]]))
