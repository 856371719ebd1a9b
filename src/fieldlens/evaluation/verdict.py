"""The verdict: how a model's loss changes past its training length L_tr, with the evidence.

d(L) is the mean over targets of NLL(L) - NLL(L_tr), tested by a sign-flip test over documents, Holm-corrected over the
lengths past L_tr.

improves: some d < 0 is significant, no d > 0 is. holds: no d is significant. drifts: some d > 0 is significant, and
e^d < 1.5 everywhere. explodes: e^d ≥ 1.5 somewhere. No verdict: some d is not 0, nothing explodes, and there are too
few documents for any difference to be significant. A model that explodes may drift before: `describe` names both.
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
    stages = _classify(evidence)
    verdict, first = stages[-1]
    count = len(set(units_N.tolist()))
    powerless = smallest_p(count) * len(beyond) >= ALPHA and any(row["difference"] for row in evidence)
    counted = f"{count} {unit if count > 1 else unit.removesuffix('s')}"
    reason = f"no difference can be significant with {counted}: use more --segments"
    return {
        **({"verdict": None, "reason": reason} if powerless and verdict != "explodes" else {"verdict": verdict}),
        "first": first,
        "stages": [{"verdict": name, "first": length} for name, length in stages],
        "train_length": train_length,
        "resampled": unit,
        "smallest_p": smallest_p(count),
        "evidence": evidence,
    }


def describe(verdict: dict[str, Any], form: str = " from {}") -> str:
    """A verdict in words, with the first length of each stage: "drifts from 1024, explodes from 2048"."""
    stages = verdict["stages"]
    return ", ".join(stage["verdict"] + (form.format(stage["first"]) if stage["first"] else "") for stage in stages)


def _classify(evidence: list[dict[str, Any]]) -> list[tuple[str, int | None]]:
    """The stages of the loss past L_tr, each with the first length that shows it; the last one is the verdict."""
    significant = [row for row in evidence if row["p_holm"] is not None and row["p_holm"] < ALPHA]
    exploded = [row["length"] for row in evidence if row["ratio"] >= EXPLOSION]
    worse = [row["length"] for row in significant if row["difference"] > 0]
    better = [row["length"] for row in significant if row["difference"] < 0]
    if exploded:
        before = [length for length in worse if length < exploded[0]]
        return [*([("drifts", before[0])] if before else []), ("explodes", exploded[0])]
    if worse:
        return [("drifts", worse[0])]
    return [("improves", better[0])] if better else [("holds", None)]
