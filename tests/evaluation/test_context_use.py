"""Context use, against the losses themselves."""

import dataclasses
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


def test_the_usual_lengths_are_a_quarter_and_the_whole_of_the_training_length() -> None:
    losses = {length: torch.full((400,), 3.0 - 0.01 * length / 16) for length in (8, 16, 32, 64, 128)}
    measured = evaluation(0.0)
    for lengths, expected in [((8, 16, 32, 64, 128), (16, 64)), ((32, 64, 128), (32, 64)), ((8, 32), (8, 32))]:
        chosen = dataclasses.replace(measured, losses={length: losses[length] for length in lengths})
        use = chosen.context_use
        assert use is not None
        assert (use.short, use.long) == expected
    assert dataclasses.replace(measured, losses={64: losses[64], 128: losses[128]}).context_use is None


def test_the_line_says_whether_the_fall_is_shown() -> None:
    use = context_use(evaluation(0.2), 32, 64)
    assert str(use).startswith("uses context: loss from 32 to 64 tokens falls by 10")
    assert f"(perplexity {-use.fall:+.1%}, 95% interval" in str(use)
    assert use.loss_fall == pytest.approx(0.2 / 2.0, rel=0.1)  # a mean loss of 2 nats
    assert str(context_use(evaluation(0.0), 32, 64)).startswith("context use not shown: loss from 32 to 64 tokens")
    assert " rises by " in str(context_use(evaluation(-0.1), 32, 64))
