"""Cross-entropy of a head on hidden states, in chunks: no tensor of tokens × vocabulary is ever kept."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 2**22
"""Logits held at once."""


def cross_entropy(states_ND: Tensor, weight_VD: Tensor, targets_N: Tensor) -> Tensor:
    """Mean negative log-likelihood of targets under softmax(states · weightᵀ), in nats."""
    return _Chunked.apply(states_ND, weight_VD, targets_N)


class _Chunked(torch.autograd.Function):
    """The gradient is computed in forward, while a chunk's logits are at hand; backward only scales it."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        wide = torch.promote_types(states.dtype, torch.float32)
        wanted = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        total = torch.zeros((), dtype=wide, device=states.device)
        d_states = torch.empty_like(states) if wanted else None
        d_weight = torch.zeros_like(weight, dtype=wide) if wanted else None
        rows = max(1, CHUNK // weight.shape[0])
        for start in range(0, len(states), rows):
            some, their = states[start : start + rows], targets[start : start + rows, None]
            logits = (some @ weight.T.to(some.dtype)).to(wide)
            normaliser = torch.logsumexp(logits, -1, keepdim=True)
            total += (normaliser - logits.gather(1, their)).sum()
            if d_states is not None and d_weight is not None:
                shares = logits.sub_(normaliser).exp_()
                shares.scatter_add_(1, their, torch.full_like(their, -1, dtype=wide)).div_(len(states))
                narrow = shares.to(some.dtype)
                d_states[start : start + rows] = narrow @ weight.to(some.dtype)
                d_weight.addmm_(narrow.T.to(wide), some.to(wide))
        if d_states is not None and d_weight is not None:
            ctx.save_for_backward(d_states, d_weight.to(weight.dtype))
        return total / len(states)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_loss: Tensor) -> tuple[Tensor | None, ...]:
        d_states, d_weight = ctx.saved_tensors
        return d_states * d_loss, d_weight * d_loss, None
