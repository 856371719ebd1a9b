"""Receptive fields and evaluations with chosen numbers, for the advice and the decision of a measurement."""

import numpy as np
import torch

from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation
from fieldlens.receptive.advice import advise
from fieldlens.receptive.check import Check
from fieldlens.receptive.field import ReceptiveField


def field(shares: list[float], train_length: int | None = None) -> ReceptiveField:
    return ReceptiveField(np.array([shares]), name="x", train_length=train_length)


def evaluation(losses: dict[int, float], documents: int = 12, noise: float = 1e-4, trained: int = 64) -> Evaluation:
    rng = np.random.default_rng(0)
    noise_N = rng.normal(0, noise, documents * 5)
    noise_N -= noise_N.mean()
    targets = [Anchor(d, o) for d in range(documents) for o in range(5)]
    about = {"model": {"name": "x", "train_length": trained}, "protocol": {"same_targets": True}, "segments": 60}
    return Evaluation(about, {n: torch.from_numpy(3 + loss + noise_N * n) for n, loss in losses.items()}, targets)


def sentences(check: Check) -> str:
    return " ".join(advise(field([0.0] * 50 + [1.0] * 50, 60), None, check))
