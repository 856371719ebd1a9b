"""fieldlens runs: lists runs with their state and progress."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fieldlens.cli.console import console
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput


def runs(
    folder: Path = Path("runs"),
    *,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """List the runs below a folder, with state, step and loss.

    Example: fieldlens runs runs

    Parameters
    ----------
    folder
        Folder to search, including its subfolders.
    as_json
        Print JSON.
    """
    from fieldlens.reporting.table import Table
    from fieldlens.storage.run_dir import runs_below

    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder: create runs with fieldlens train --out FOLDER/NAME")
    rows = [_row(run) for run in runs_below(folder)]
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        console().print(f"no runs below {folder}: create one with fieldlens train --out {folder}/NAME", markup=False)
        return
    columns = ["run", "state", "step", "loss", "validation", "scheme", "corpus", "seed"]
    console().print(Table(columns, [_cells(row) for row in rows]))


def _cells(row: dict[str, Any]) -> list[str]:
    loss = "" if row["loss"] is None else f"{row['loss']:.3f}"
    perplexity = "" if row["validation_perplexity"] is None else f"{row['validation_perplexity']:.2f}"
    steps = f"{row['step']}/{row['steps']}"
    return [row["run"], row["state"], steps, loss, perplexity, *(str(row[key]) for key in ("scheme", "corpus", "seed"))]


def _row(run: Any) -> dict[str, Any]:
    try:
        status, recipe = run.read_status(), run.read(run.config).get("recipe", {})
    except BadInput:  # damaged or foreign files: list the other runs nevertheless
        status, recipe = {"state": "unreadable"}, {}
    history = run.history()
    last = history[-1] if history else {}
    validations = [row["validation_perplexity"] for row in history if row.get("validation_perplexity") is not None]
    state = status.get("state", "unknown")
    return {
        "run": str(run.folder),
        "state": "interrupted" if state == "running" and not run.is_owned else state,
        "step": last.get("step", 0),
        "steps": recipe.get("steps"),
        "loss": last.get("loss"),
        "validation_perplexity": validations[-1] if validations else None,
        "scheme": recipe.get("scheme"),
        "corpus": recipe.get("corpus"),
        "seed": recipe.get("seed"),
    }
