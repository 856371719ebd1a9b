"""The gate of the pilot: which recipe uses its context, and is there anything to gain past its training length?

A recipe passes if Sandwich's perplexity falls by at least 2 % from L_tr/2 to L_tr. The headroom is the fall from L_tr
to 4 L_tr of a model that was trained at 4 L_tr: without it no scheme can improve past L_tr.
"""

import math
from collections.abc import Sequence
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.context_use import ContextUse, context_use
from fieldlens.reporting.table import Table
from fieldlens.study.results import Result
from fieldlens.study.view import called

GATE = 0.02
MULTIPLES = (0.25, 0.5, 1, 2, 4, 8, 16)


def gate(result: Result) -> ContextUse | None:
    """The fall from L_tr/2 to L_tr; None for a run that diverged or was not evaluated there."""
    trained = result.recipe["length"]
    for evaluation in result.evaluations:
        try:
            return context_use(evaluation, trained // 2, trained)
        except BadInput:
            continue
    return None


def headroom(results: Sequence[Result], length: int) -> ContextUse | None:
    """The fall from a length to four times it, of Sandwich trained at four times it."""
    for result in results:
        if result.recipe["length"] == 4 * length and result.recipe["scheme"] == "sandwich" and not result.diverged:
            return context_use(result.evaluations[0], length, 4 * length)
    return None


def gate_table(results: Sequence[Result]) -> Table:
    """One row for each model: perplexity relative to L_tr by length, and the gate."""
    names = called([result.recipe for result in results])
    lengths = [f"{multiple:g} L_tr" for multiple in MULTIPLES]
    columns = ["model", "L_tr", "perplexity at L_tr", *lengths, "L_tr/2 → L_tr"]
    rows = [_row(name, result) for name, result in zip(names, results, strict=True)]
    splits = sorted({str(evaluation.about["data"]["split"]) for result in results for evaluation in result.evaluations})
    notes = [
        f"Perplexities by length are relative to L_tr, for the same targets of the {' and '.join(splits)} split. The "
        "last column is the fall from L_tr/2 to L_tr with its 95 % interval over documents; the gate asks Sandwich for "
        "2 %."
    ]
    for length in sorted({result.recipe["length"] for result in results}):
        if (room := headroom(results, length)) is not None:
            notes.append(
                f"Headroom: Sandwich trained at {4 * length} falls by {room.fall:.1%} from {length} to {4 * length}."
            )
    return Table(columns, rows, "", notes)


def _row(name: str, result: Result) -> list[str]:
    trained = result.recipe["length"]
    if result.diverged:
        return [name, str(trained), "diverged"]
    evaluation, use = result.evaluations[0], gate(result)
    own = evaluation.table.get(trained)
    ratios = [_ratio(evaluation.table.get(round(trained * multiple)), own) for multiple in MULTIPLES]
    return [name, str(trained), "–" if own is None else f"{own:.2f}", *ratios, _interval(use)]


def _ratio(value: float | None, own: float | None) -> str:
    return "–" if value is None or own is None else f"× {value / own:.3f}"


def _interval(use: ContextUse | None) -> str:
    if use is None:
        return "–"
    low, high = (1 - math.exp(bound) for bound in (use.high, use.low))
    return f"{use.fall:.1%} ({low:.1%} to {high:.1%})"


def gate_records(results: Sequence[Result]) -> list[dict[str, Any]]:
    """The gate of each model as JSON records."""
    records = []
    for name, result in zip(called([result.recipe for result in results]), results, strict=True):
        use = gate(result)
        record = {"model": name, "train_length": result.recipe["length"], "gate": use.to_json() if use else None}
        records.append(record | {"passes": use is not None and use.fall >= GATE})
    return records
