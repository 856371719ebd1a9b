"""Values that are not finite: weights and logits."""

import torch
from torch import Tensor, nn


def not_finite(module: nn.Module) -> list[str]:
    """Names of the parameters with a NaN or an infinite value."""
    return [name for name, weight in module.named_parameters() if not is_finite(weight.detach())]


def is_finite(values: Tensor) -> bool:
    """Whether every value is finite.

    A sum takes a sixth of the time of looking at each value, and is finite only if every value is. The reverse is not
    true, as a sum can overflow: then each value is looked at.
    """
    total = values.sum(dtype=torch.promote_types(values.dtype, torch.float32))
    return bool(total.isfinite()) or bool(values.isfinite().all())
