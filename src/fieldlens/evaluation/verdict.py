"""The verdict: how a model's loss changes past its training length L_tr, with the evidence.

d(L) is the mean over targets of NLL(L) - NLL(L_tr), with a 95 % bootstrap interval over documents, and tested by a
sign-flip test over documents, Holm-corrected over the lengths past L_tr. At one length:

holds: the interval of d lies inside ± log(1 + margin). explodes: e^d ≥ 1.5, and the interval excludes 0. drifts,
improves: d > 0 or d < 0 is significant, and the interval excludes 0. undecided: none of these.

The verdict is explodes if some length explodes, else drifts if some length drifts; undecided if some length is
undecided and may be worse by more than the margin; else improves if some length improves, else holds. No verdict: there
are too few documents for any difference to be significant. `describe` names the first length of every stage.
"""

from typing import Any, NotRequired, TypedDict

import numpy as np

from fieldlens.evaluation.equivalence import MARGIN, Contrast, ContrastRecord, contrast, ratio
from fieldlens.evaluation.statistics import differences, holm, sign_flip, smallest_p

ALPHA = 0.05
EXPLOSION = 1.5


class Evidence(ContrastRecord):
    """One length past the training length: its losses against those at the training length, and what they show."""

    length: int
    p: float | None
    p_holm: float | None
    outcome: str
    not_worse: bool
    targets_needed: int | None


class Stage(TypedDict):
    """A part of the verdict, and the first length that shows it."""

    verdict: str
    first: int | None


class Verdict(TypedDict):
    """The verdict, or None with the reason; the rest is there if the losses could be compared."""

    verdict: str | None
    reason: NotRequired[str]
    first: NotRequired[int | None]
    stages: NotRequired[list[Stage]]
    train_length: NotRequired[int]
    margin: NotRequired[float]
    resampled: NotRequired[str]
    smallest_p: NotRequired[float]
    evidence: NotRequired[list[Evidence]]
    context_use: NotRequired[dict[str, Any] | None]


def judge(
    losses: dict[int, np.ndarray],
    units_N: np.ndarray,
    unit: str,
    train_length: int | None,
    margin: float = MARGIN,
) -> Verdict:
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
    evidence = _evidence(losses, units_N, train_length, beyond, margin)
    stages = _classify(evidence)
    verdict, first = stages[-1]
    count = len(set(units_N.tolist()))
    powerless = verdict == "undecided" and smallest_p(count) * len(beyond) >= ALPHA
    counted = f"{count} {unit if count > 1 else unit.removesuffix('s')}"
    reason = f"no difference can be significant with {counted}: use more --segments"
    judged: Verdict = {"verdict": None, "reason": reason} if powerless else {"verdict": verdict}
    return {
        **judged,
        "first": first,
        "stages": [{"verdict": name, "first": length} for name, length in stages],
        "train_length": train_length,
        "margin": margin,
        "resampled": unit,
        "smallest_p": smallest_p(count),
        "evidence": evidence,
    }


def _evidence(
    losses: dict[int, np.ndarray], units_N: np.ndarray, train_length: int, beyond: list[int], margin: float
) -> list[Evidence]:
    """One row per length past the training length: difference, interval, test, and what they show."""
    contrasts = [contrast(losses[length], losses[train_length], units_N, margin) for length in beyond]
    ps = [sign_flip(differences(losses[length], losses[train_length]), units_N).p for length in beyond]
    return [
        {
            "length": length,
            **row.to_json(),
            "p": p,
            "p_holm": corrected,
            "outcome": _outcome(row, corrected),
            "not_worse": row.not_worse,
            "targets_needed": row.targets_needed,
        }
        for length, row, p, corrected in zip(beyond, contrasts, ps, holm(ps), strict=True)
    ]


def _outcome(row: Contrast, p: float | None) -> str:
    """What one length shows: holds, explodes, drifts, improves or undecided."""
    if row.equivalent:
        return "holds"
    if row.ratio >= EXPLOSION and row.low > 0:
        return "explodes"
    if p is not None and p < ALPHA and (row.low > 0 or row.high < 0):
        return "drifts" if row.difference > 0 else "improves"
    return "undecided"


def _classify(evidence: list[Evidence]) -> list[tuple[str, int | None]]:
    """The stages of the loss past L_tr, each with the first length that shows it; the last one is the verdict."""
    first: dict[str, int] = {}
    for row in evidence:
        first.setdefault(row["outcome"], row["length"])
        if row["outcome"] == "undecided" and not row["not_worse"]:
            first.setdefault("risky", row["length"])
    drifts, improves = first.get("drifts"), first.get("improves")
    if "explodes" in first:
        before = drifts is not None and drifts < first["explodes"]
        return [*([("drifts", drifts)] if before else []), ("explodes", first["explodes"])]
    if drifts is not None:
        return [("drifts", drifts)]
    if "risky" in first:
        before = improves is not None and improves < first["risky"]
        return [*([("improves", improves)] if before else []), ("undecided", first["risky"])]
    if improves is not None:
        return [("improves", improves)]
    return [("undecided", first["undecided"])] if "undecided" in first else [("holds", None)]


def describe(verdict: Verdict, form: str = " from {}") -> str:
    """A verdict in words, with the first length of each stage: "drifts from 1024, explodes from 2048"."""
    stages = []
    for stage in verdict["stages"]:
        words = stage["verdict"] + (form.format(stage["first"]) if stage["first"] else "")
        stages.append(words + (f" ({_upper_bound(verdict)})" if stage["verdict"] == "undecided" else ""))
    return ", ".join(stages)


def _upper_bound(verdict: Verdict) -> str:
    """The largest ratio that the undecided lengths allow."""
    rows = [row for row in verdict["evidence"] if row["outcome"] == "undecided"]
    highs = [row["high"] for row in rows if row["high"] is not None]
    return f"up to × {ratio(max(highs)):.3g}" if len(highs) == len(rows) else "no upper bound"


def deciding_row(verdict: Verdict) -> Evidence:
    """The evidence that a verdict rests on: its first length, or the length with the largest difference."""
    if verdict["verdict"] == "undecided":
        undecided = [row for row in verdict["evidence"] if row["outcome"] == "undecided"]
        return max(undecided, key=lambda row: float("inf") if row["high"] is None else row["high"])
    largest = max(verdict["evidence"], key=lambda row: abs(row["difference"]))
    return next((row for row in verdict["evidence"] if row["length"] == verdict["first"]), largest)


def evidence_text(verdict: Verdict) -> str:
    """The evidence of a verdict in one line."""
    row = deciding_row(verdict)
    text = f"× {row['ratio']:.3g} at {row['length']} against {verdict['train_length']}"
    if row["low"] is not None and row["high"] is not None:
        text += f", 95% interval {ratio(row['low']):.3g} to {ratio(row['high']):.3g}"
    if verdict["verdict"] == "undecided":
        needed = row["targets_needed"]
        return text + (
            "; more documents are needed to decide"
            if needed is None
            else f"; about {needed:,} targets are needed to decide"
        )
    if verdict["verdict"] != "holds" and row["p_holm"] is not None:
        text += f", p = {row['p_holm']:.2g} (sign-flip test over {verdict['resampled']}, Holm)"
    return text
