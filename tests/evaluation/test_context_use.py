"""Context use, against the losses themselves."""

import math

import numpy as np
import pytest
import torch

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.context_use import context_use
from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation


def evaluation(shift: float) -> Evaluation:
    """Forty documents of ten targets, whose losses fall by a shift from 32 to 64 tokens."""
    rng = np.random.default_rng(0)
    losses = rng.gamma(2, 1, 400)
    later = losses - shift + rng.normal(0, 0.1, 400)
    targets = [Anchor(document, offset) for document in range(40) for offset in range(10)]
    about = {"model": {"name": "x", "train_length": 64}, "segments": 400, "protocol": {"name": "last-token"}}
    return Evaluation(about, {32: torch.from_numpy(losses), 64: torch.from_numpy(later)}, targets)


@pytest.mark.parametrize("shift", [0.2, 0.0, -0.1])
def test_the_fall_is_that_of_the_losses(shift: float) -> None:
    use = context_use(evaluation(shift), 32, 64)
    assert use.difference == pytest.approx(-shift, abs=0.02)
    assert use.low < -shift < use.high
    assert use.fall == pytest.approx(1 - math.exp(use.difference))
    assert use.to_json()["fall"] == use.fall


def test_a_length_that_was_not_evaluated_is_refused() -> None:
    with pytest.raises(BadInput, match="length 16 was not evaluated; lengths: 32, 64"):
        context_use(evaluation(0.1), 16, 64)
