"""One update of the weights from their gradients, by which every model of the project is trained."""

import math
from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from fieldlens.core.errors import FieldlensError
from fieldlens.models.decoder import Decoder
from fieldlens.training.optimisers import step_all


class Diverged(FieldlensError):
    """The loss or its gradient became NaN or inf."""

    exit_code = 3


def update(
    decoder: Decoder, optimisers: Sequence[Optimizer], *, step: int, loss: float, rate: float, clip: float
) -> float:
    """Clip the gradients, step the optimisers, project the scheme, and return the gradient norm.

    Raises Diverged, without an update, if the loss or the norm is not finite.
    """
    norm = float(nn.utils.clip_grad_norm_(decoder.parameters(), clip))
    if not math.isfinite(norm) or not math.isfinite(loss):
        raise Diverged(f"step {step}: loss {loss}, gradient norm {norm}: diverged, nothing was updated")
    step_all(optimisers, rate)
    decoder.scheme.project()
    return norm
