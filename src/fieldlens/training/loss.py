"""Cross-entropy of a head on hidden states, in chunks: no tensor of tokens × vocabulary is ever kept."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

LARGEST = 700.0
"""Losses above this overflow as a perplexity."""

ROWS = 512
"""Minimum tokens per chunk: each chunk reads all of the head's weights and its gradient."""

CHUNK = 2**20
"""Maximum logits per chunk, if that is more tokens than ROWS; best of 2^16 … 2^22."""


def cross_entropy(states_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Mean negative log-likelihood of targets under softmax(states · weightᵀ), in nats."""
    return _Chunked.apply(states_ND, weight_VD, targets_N)


class _Chunked(torch.autograd.Function):
    """The gradient is computed in forward, chunk by chunk; backward only scales it."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        needs_grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        total = torch.zeros((), dtype=wide, device=states.device)
        d_states, d_weight = (torch.empty_like(states), torch.empty_like(weight)) if needs_grad else (None, None)
        rows = max(ROWS, CHUNK // weight.shape[0])
        for start in range(0, len(states), rows):
            x, target = states[start : start + rows], targets[start : start + rows, None]
            logits = (x @ weight.T.to(x.dtype)).to(wide)
            correct, largest = logits.gather(1, target), logits.amax(-1, keepdim=True)
            weights = torch.softmax(logits, -1)
            # The largest weight is 1 / Σ exp(logit - largest) and at least 1 / V: its logarithm cannot overflow.
            total += (largest - weights.amax(-1, keepdim=True).log() - correct).sum()
            if d_states is not None and d_weight is not None:
                weights.scatter_add_(1, target, torch.full_like(correct, -1))
                d_logits = weights.to(x.dtype)
                d_states[start : start + rows] = (d_logits @ weight.to(x.dtype)).div_(len(states))
                d_weight.addmm_(
                    d_logits.T.to(weight.dtype), x.to(weight.dtype), beta=1 if start else 0, alpha=1 / len(states)
                )
        if d_states is not None and d_weight is not None:
            ctx.save_for_backward(d_states, d_weight)
        return total / len(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        d_states, d_weight = ctx.saved_tensors
        if d_loss.device.type == "cpu" and float(d_loss) == 1.0:  # avoid a copy of the head's gradient, which is large
            return d_states, d_weight, None
        return d_states * d_loss, d_weight * d_loss, None
