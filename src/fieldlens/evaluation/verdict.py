"""The verdict: how a model's loss changes past its training length L_tr, with the evidence.

d(L) is the mean over targets of NLL(L) - NLL(L_tr), tested by a sign-flip test over documents, Holm-corrected over the
lengths past L_tr.

improves: some d < 0 is significant, no d > 0 is. holds: no d is significant. drifts: some d > 0 is significant, and
e^d < 1.5 everywhere. explodes: e^d ≥ 1.5 somewhere. No verdict: some d is not 0, nothing explodes, and there are too
few documents for any difference to be significant.
"""

import math
from typing import Any

import numpy as np

from fieldlens.evaluation.statistics import bootstrap_difference, differences, finite, holm, sign_flip, smallest_p
from fieldlens.training.loss import LARGEST

ALPHA = 0.05
EXPLOSION = 1.5


def judge(losses: dict[int, np.ndarray], units_N: np.ndarray, unit: str, train_length: int | None) -> dict[str, Any]:
    """Return the verdict on losses by length.

    Targets with the same label in `units_N` are resampled together; `unit` names these clusters, such as "documents".
    """
    if train_length is None:
        return {"verdict": None, "reason": "the training length is not known: give --train-length"}
    beyond = [length for length in sorted(losses) if length > train_length]
    if not beyond:
        return {"verdict": None, "reason": f"no length past the training length {train_length} was evaluated"}
    if train_length not in losses:
        return {"verdict": None, "reason": f"the training length {train_length} itself was not evaluated"}
    evidence = []
    for length in beyond:
        differences_N = differences(losses[length], losses[train_length])
        interval, _ = bootstrap_difference(differences_N, units_N)
        test = sign_flip(differences_N, units_N)
        low, high = map(finite, interval)
        ratio = math.exp(min(test.difference, LARGEST))
        evidence.append(
            {"length": length, "difference": test.difference, "low": low, "high": high, "ratio": ratio, "p": test.p}
        )
    for row, corrected in zip(evidence, holm([row["p"] for row in evidence]), strict=True):
        row["p_holm"] = corrected
    verdict, first = _classify(evidence)
    count = len(set(units_N.tolist()))
    powerless = smallest_p(count) * len(beyond) >= ALPHA and any(row["difference"] for row in evidence)
    counted = f"{count} {unit if count > 1 else unit.removesuffix('s')}"
    reason = f"no difference can be significant with {counted}: use more --segments"
    return {
        **({"verdict": None, "reason": reason} if powerless and verdict != "explodes" else {"verdict": verdict}),
        "first": first,
        "train_length": train_length,
        "resampled": unit,
        "smallest_p": smallest_p(count),
        "evidence": evidence,
    }


def _classify(evidence: list[dict[str, Any]]) -> tuple[str, int | None]:
    """Return the verdict and the first length that shows it."""
    significant = [row for row in evidence if row["p_holm"] is not None and row["p_holm"] < ALPHA]
    exploded = [row["length"] for row in evidence if row["ratio"] >= EXPLOSION]
    worse = [row["length"] for row in significant if row["difference"] > 0]
    better = [row["length"] for row in significant if row["difference"] < 0]
    for name, lengths in (("explodes", exploded), ("drifts", worse), ("improves", better)):
        if lengths:
            return name, lengths[0]
    return "holds", None
