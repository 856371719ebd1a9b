"""Verdicts: what is better, worse or unchanged past the training length, and what stays undecided."""

import math

import numpy as np
import pytest
import torch

from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import bootstrap_mean, holm, sign_flip
from fieldlens.evaluation.verdict import describe, evidence_text, judge


def losses_of(shifts: dict[int, float], noise: float = 0.05) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Losses of 40 documents with 10 targets each, shifted by length."""
    rng = np.random.default_rng(1)
    base = rng.gamma(2, 1, 400)
    return {n: base + shift + noise * rng.normal(size=400) * (n != 128) for n, shift in shifts.items()}, np.repeat(
        np.arange(40), 10
    )


@pytest.mark.parametrize(
    ("shifts", "verdict", "first"),
    [
        ({64: 1.0, 128: 0, 256: -0.05, 512: -0.1}, "improves", 256),
        ({64: 1.0, 128: 0, 256: 0, 512: 0}, "holds", None),
        ({128: 0, 256: -0.05, 512: 0.1}, "drifts", 512),
        ({128: 0, 256: 0.01, 512: 0.3, 1024: 0.5}, "explodes", 1024),
        ({128: 0, 256: 2.0, 512: 0.0}, "explodes", 256),
    ],
)
def test_verdicts(shifts: dict[int, float], verdict: str, first: int | None) -> None:
    losses, documents = losses_of(shifts)
    result = judge(losses, documents, "documents", 128)
    assert (result["verdict"], result["first"]) == (verdict, first)
    assert result["resampled"] == "documents"
    assert [row["length"] for row in result["evidence"]] == [n for n in shifts if n > 128]
    assert [row["p_holm"] for row in result["evidence"]] == holm([row["p"] for row in result["evidence"]])
    last = result["evidence"][-1]
    flipped = sign_flip(losses[last["length"]] - losses[128], documents)
    assert (last["p"], last["difference"]) == (flipped.p, flipped.difference)


@pytest.mark.parametrize(
    ("shifts", "words"),
    [
        ({128: 0, 1024: 0.104, 2048: 0.7}, "drifts from 1024, explodes from 2048"),
        ({128: 0, 256: 0.0, 512: 0.7}, "explodes from 512"),
        ({128: 0, 256: 0.05, 512: 0.1}, "drifts from 256"),
        ({128: 0, 256: 0, 512: 0}, "holds"),
    ],
)
def test_the_first_bad_length_is_named(shifts: dict[int, float], words: str) -> None:
    losses, documents = losses_of(shifts)
    verdict = judge(losses, documents, "documents", 128)
    assert describe(verdict) == words
    assert verdict["stages"][-1] == {"verdict": verdict["verdict"], "first": verdict["first"]}


def noisy(difference: float, error: float, documents: int = 40) -> tuple[dict[int, np.ndarray], np.ndarray]:
    """Losses at 128 and 256 of ten targets per document; documents differ by `error` times the root of their number."""
    effects = np.random.default_rng(5).standard_normal(documents)
    effects = (effects - effects.mean()) / effects.std() * error * math.sqrt(documents)
    reference_N = np.full(10 * documents, 3.0)
    return {128: reference_N, 256: reference_N + difference + np.repeat(effects, 10)}, np.repeat(
        np.arange(documents), 10
    )


@pytest.mark.parametrize(
    ("difference", "error", "words"),
    [
        (0.307, 0.17, "undecided from 256 (up to × 1.9"),  # "holds" before: × 1.36, not significant
        (0.6, 0.5, "undecided from 256 (up to × "),  # "explodes" before, from noise
        (0.0, 0.05, "undecided from 256 (up to × 1.1"),
        (-0.05, 0.02, "improves from 256"),
        (0.005, 0.001, "holds"),  # significant, but within the margin
        (0.03, 0.004, "drifts from 256"),
        (0.6, 0.05, "explodes from 256"),
    ],
)
def test_a_verdict_is_no_guess(difference: float, error: float, words: str) -> None:
    verdict = judge(*noisy(difference, error), "documents", 128)
    assert describe(verdict).startswith(words)
    if verdict["verdict"] == "undecided":
        needed = verdict["evidence"][0]["targets_needed"]
        assert needed > 400
        assert evidence_text(verdict).endswith(f"; about {needed:,} targets are needed to decide")


def test_the_margin_decides_what_holds() -> None:
    losses, documents = noisy(0.03, 0.004)
    assert judge(losses, documents, "documents", 128, margin=0.05)["verdict"] == "holds"
    assert judge(losses, documents, "documents", 128, margin=0.01)["verdict"] == "drifts"


def test_improving_first_and_unknown_later_is_both() -> None:
    losses, documents = noisy(-0.1, 0.01)
    losses[512] = losses[128] + noisy(0.0, 0.1)[0][256] - 3
    verdict = judge(losses, documents, "documents", 128)
    assert describe(verdict).startswith("improves from 256, undecided from 512 (up to × 1.2")
    assert verdict["verdict"] == "undecided"


def test_a_perplexity_interval_does_not_reach_below_one() -> None:
    """No loss is below 0: where the interval of the mean would be, there are too few documents for one."""
    losses = torch.tensor([0.01, 0.02, 0.01, 3.0, 0.02, 0.01, 0.03, 0.01, 0.02, 0.01, 0.01, 0.02])
    about = {"model": {"name": "x", "train_length": 8}, "protocol": {"name": "last-token"}, "segments": 12}
    evaluation = Evaluation(about, {8: losses}, [Anchor(n, 0) for n in range(12)])
    assert bootstrap_mean(losses.double().numpy(), np.arange(12)).low < 0
    (row,) = evaluation.rows()
    assert (row["low"], row["high"]) == (None, None)


def test_a_verdict_needs_a_training_length_and_something_beyond() -> None:
    losses, documents = losses_of({128: 0, 256: 1})
    assert "not known" in judge(losses, documents, "documents", None)["reason"]
    assert "training length 64 itself was not evaluated" in judge(losses, documents, "documents", 64)["reason"]
    for length in (256, 4096):
        assert (
            f"no length past the training length {length} " in judge(losses, documents, "documents", length)["reason"]
        )


def test_documents_that_are_too_few_for_any_test_give_no_verdict() -> None:
    losses, documents = losses_of({128: 0, 256: 0.1, 512: 0.1})
    five_N = documents < 5
    result = judge({n: v[five_N] for n, v in losses.items()}, documents[five_N], "documents", 128)
    assert (result["verdict"], result["resampled"]) == (None, "documents")
    assert result["reason"] == "no difference can be significant with 5 documents: use more --segments"
    single_N = documents < 1
    assert (
        "with 1 document:"
        in judge({n: v[single_N] for n, v in losses.items()}, documents[single_N], "documents", 128)["reason"]
    )
    much, _ = losses_of({128: 0, 256: 3.0, 512: 0.1})
    assert judge({n: v[five_N] for n, v in much.items()}, documents[five_N], "documents", 128)["verdict"] == "explodes"
    same = {128: losses[128][five_N], 256: losses[128][five_N]}
    assert judge(same, documents[five_N], "documents", 128)["verdict"] == "holds"


def test_identical_losses_hold() -> None:
    losses, documents = losses_of({128: 0, 256: 0}, noise=0)
    assert judge(losses, documents, "documents", 128)["verdict"] == "holds"
