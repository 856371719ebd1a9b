"""The tables that `fieldlens evaluate` prints: perplexities with their intervals, and the verdicts."""

from collections.abc import Sequence
from typing import Any

from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.verdict import describe, evidence_text
from fieldlens.reporting.table import Table, figure


def summary(evaluations: Sequence[Evaluation]) -> list[Table]:
    """Tables that the command prints: perplexities with their intervals, and the verdict on each model."""
    alive = [evaluation for evaluation in evaluations if evaluation.losses]
    diverged = [
        [_display_name(evaluation, evaluations), "diverged"] for evaluation in evaluations if not evaluation.losses
    ]
    tables = [Table(["model", "state"], diverged)] if diverged else []
    if alive:
        verdicts = [_verdict_row(evaluation, alive) for evaluation in alive]
        notes = [f"{_display_name(evaluation, alive)}: {_context_use_text(evaluation)}" for evaluation in alive]
        tables = [_scores(alive), Table(["model", "verdict", "evidence"], verdicts, "", notes), *tables]
    return tables


def _scores(alive: Sequence[Evaluation]) -> Table:
    lengths = sorted({length for evaluation in alive for length in evaluation.losses})
    rows = []
    for evaluation in alive:
        by_length = {row["length"]: row for row in evaluation.rows()}
        scores = [figure(evaluation.score(n), 4) if n in by_length else "" for n in lengths]
        rows.append([_display_name(evaluation, alive), *scores])
        rows.append(["  95%", *(_interval(by_length[n]) if n in by_length else "" for n in lengths)])
    first = alive[0].about
    text = first["data"]
    title = [f"{alive[0].quantity} by context length: {text['corpus']}"]
    title += [f"{text['split']} split"] if text["split"] else []
    title += [first["protocol"]["name"], f"{alive[0].counts_text}; intervals over {alive[0].units()[1]}"]
    return Table(["model", *map(str, lengths)], rows, ", ".join(title))


def _interval(row: dict[str, Any]) -> str:
    low, high = (figure(value, 3) if value is not None else "–" for value in (row["low"], row["high"]))
    return f"{low}–{high}"


def _display_name(evaluation: Evaluation, evaluations: Sequence[Evaluation]) -> str:
    """Name of a model, with its folder if another model has the same name."""
    model = evaluation.about["model"]
    namesakes = [other for other in evaluations if other.about["model"]["name"] == model["name"]]
    return f"{model['name']} ({model['folder']})" if len(namesakes) > 1 and "folder" in model else str(model["name"])


def _context_use_text(evaluation: Evaluation) -> str:
    use = evaluation.context_use
    return str(use) if use else "context use not measured: no length below the training length was evaluated"


def _verdict_row(evaluation: Evaluation, evaluations: Sequence[Evaluation]) -> list[str]:
    name, verdict = _display_name(evaluation, evaluations), evaluation.verdict
    if verdict["verdict"] is None:
        return [name, "no verdict", verdict["reason"]]
    return [name, describe(verdict), evidence_text(verdict)]
