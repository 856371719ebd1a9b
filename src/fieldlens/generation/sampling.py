"""Token sampling: greedy, or with temperature, top-k and top-p."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, NonFiniteResult
from fieldlens.models.finite import is_finite

COLD = 1e-6


@dataclass(frozen=True)
class Sampling:
    """Sampling options. Without a temperature: greedy, or temperature 1 if top-k or top-p is set."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    vocab_size: int | None = None
    """Vocabulary size of the tokenizer, if the model has more ids; ids beyond it are never sampled."""

    def __post_init__(self) -> None:
        if self.temperature is not None and not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise BadInput(f"temperature must be finite and at least 0 (greedy), got {self.temperature:g}")
        if self.top_k is not None and self.top_k < 1:
            raise BadInput(f"top-k must be at least 1, got {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise BadInput(f"top-p must be greater than 0 and at most 1, got {self.top_p:g}")
        if not 0 <= self.seed < 2**63:
            raise BadInput(f"seed must be between 0 and 2^63 - 1, got {self.seed}")

    @property
    def effective_temperature(self) -> float:
        """The temperature after defaults are applied; 0 is greedy."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.top_k is None and self.top_p is None else 1.0

    @property
    def greedy(self) -> bool:
        """Whether to take the most likely token; true also if logits / temperature would overflow."""
        return self.effective_temperature < COLD


TokenCallback = Callable[[Tensor], None]
"""Called with the next token of each row, (B,), as soon as it is sampled."""


@dataclass(frozen=True)
class Continuation:
    """How each row is continued: by at most `tokens` tokens, or until one of `ends`."""

    tokens: int
    sampling: Sampling = Sampling()
    ends: frozenset[int] = frozenset()
    watch: TokenCallback = lambda ids_B: None


class Sampler:
    """Samples one token after another, with its own random generator."""

    def __init__(self, sampling: Sampling, device: torch.device) -> None:
        self.sampling = sampling
        self.generator = torch.Generator(device).manual_seed(sampling.seed)

    def choose(self, logits_BV: Tensor) -> Tensor:
        """Return the next token of each row: (B,)."""
        if not is_finite(logits_BV):
            raise NonFiniteResult("the model produced NaN or inf logits: no token can be sampled")
        logits_BV = logits_BV[:, : self.sampling.vocab_size]
        if self.sampling.greedy:
            return logits_BV.argmax(-1)
        probabilities_BV = candidates(logits_BV, self.sampling).softmax(-1)
        return torch.multinomial(probabilities_BV, 1, generator=self.generator)[:, 0]


def candidates(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Return logits / temperature, with -inf for excluded tokens, in float32 or higher.

    top-k keeps the logits that are at least the k-th largest. Of these, top-p keeps the smallest set of most likely
    tokens whose probabilities sum to at least p.
    """
    scores_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)) / sampling.effective_temperature
    if sampling.top_k is not None and sampling.top_k < scores_BV.shape[-1]:
        minimum_B1 = scores_BV.topk(sampling.top_k).values[:, -1:]
        scores_BV = scores_BV.masked_fill(scores_BV < minimum_B1, -math.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        sorted_BV, indices_BV = scores_BV.sort(-1, descending=True)
        probabilities_BV = sorted_BV.softmax(-1)
        # excluded if the more likely tokens already sum to p
        excluded_BV = probabilities_BV.cumsum(-1) - probabilities_BV >= sampling.top_p
        excluded_BV[:, 0] = False
        scores_BV = scores_BV.masked_fill(excluded_BV.scatter(-1, indices_BV, excluded_BV), -math.inf)
    return scores_BV
