"""Which token comes next: the likeliest, or one drawn by temperature, top-k and top-p."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, NonFiniteResult

COLD = 1e-6


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Without a temperature: the likeliest, or at 1 if top-k or top-p is given."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    seed: int = 0
    known: int | None = None
    """How many ids a tokenizer knows, if a model has more: those are no text, and never chosen."""

    def __post_init__(self) -> None:
        if self.temperature is not None and not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise BadInput(f"temperature is {self.temperature:g}: a finite number from 0 is needed; 0 is greedy")
        if self.top_k is not None and self.top_k < 1:
            raise BadInput(f"top-k is {self.top_k}: at least 1 is needed")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise BadInput(f"top-p is {self.top_p:g}: more than 0 and at most 1 is needed")
        if not 0 <= self.seed < 2**63:
            raise BadInput(f"seed is {self.seed}: from 0 to 2^63 - 1 is needed")

    @property
    def effective_temperature(self) -> float:
        """The temperature that counts; 0 takes the likeliest token."""
        if self.temperature is not None:
            return self.temperature
        return 0.0 if self.top_k is None and self.top_p is None else 1.0

    @property
    def greedy(self) -> bool:
        """Also where it is so cold that logits over temperature would be infinite."""
        return self.effective_temperature < COLD


class Sampler:
    """Chooses by a sampling, one token after another, from a random state of its own."""

    def __init__(self, sampling: Sampling, device: torch.device) -> None:
        self.sampling = sampling
        self.chance = torch.Generator(device).manual_seed(sampling.seed)

    def choose(self, logits_BV: Tensor) -> Tensor:
        """The next token of each row: (B,)."""
        if not bool(logits_BV.isfinite().all()):
            raise NonFiniteResult("the model's logits are not finite: no token can be chosen")
        logits_BV = logits_BV[:, : self.sampling.known]
        if self.sampling.greedy:
            return logits_BV.argmax(-1)
        chances_BV = candidates(logits_BV, self.sampling).softmax(-1)
        return torch.multinomial(chances_BV, 1, generator=self.chance)[:, 0]


def candidates(logits_BV: Tensor, sampling: Sampling) -> Tensor:
    """Logits over temperature, -inf for what cannot be drawn. Never below float32, as everything that is summed.

    top-k keeps what is no less than the k-th largest; of that, top-p the fewest whose chances add up to p.
    """
    scores_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)) / sampling.effective_temperature
    if sampling.top_k is not None and sampling.top_k < scores_BV.shape[-1]:
        least_B1 = scores_BV.topk(sampling.top_k).values[:, -1:]
        scores_BV = scores_BV.masked_fill(scores_BV < least_B1, -math.inf)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered_BV, places_BV = scores_BV.sort(-1, descending=True)
        chances_BV = ordered_BV.softmax(-1)
        late_BV = chances_BV.cumsum(-1) - chances_BV >= sampling.top_p  # what is likelier adds up to p already
        late_BV[:, 0] = False
        scores_BV = scores_BV.masked_fill(late_BV.scatter(-1, places_BV, late_BV), -math.inf)
    return scores_BV
