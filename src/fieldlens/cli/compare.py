"""fieldlens compare: significance tests between evaluations."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fieldlens.cli.console import console, show
from fieldlens.core.device import Machine

if TYPE_CHECKING:
    from fieldlens.evaluation.compare import Comparison


def compare(
    *results: Path,
    by: Literal["documents", "tokens"] = "documents",
    style: Annotated[Literal["text", "markdown", "latex", "csv"], Parameter(name="--format")] = "text",
    out: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Test whether differences between evaluations are significant.

    Example: fieldlens compare evaluations/sandwich-*.json evaluations/alibi-*.json

    Evaluations are grouped by everything except the seed, and each group is compared with the first one: over seeds by
    a paired t-test, as in the paper; within a seed by resampling documents. † means that the first group is
    significantly better, * that it is significantly worse.

    Parameters
    ----------
    results
        Result files of fieldlens evaluate, or folders of them.
    by
        Unit that is resampled within a seed. Tokens of one document are not independent, so resampling tokens
        overstates the evidence.
    style
        Format of the output: text, markdown, latex or csv.
    out
        Output folder; writes all formats and a plot.
    as_json
        Print JSON.
    """
    from fieldlens.core.errors import BadInput
    from fieldlens.evaluation.compare import compare as compare_evaluations
    from fieldlens.evaluation.result import read_evaluation
    from fieldlens.reporting.table import records_csv
    from fieldlens.storage.writable import check_folder

    machine.start()
    if out is not None:
        check_folder(out)
    if not results:
        raise BadInput("nothing to compare: give result files of fieldlens evaluate")
    files = [file for path in results for file in (_results_in(path) if path.is_dir() else [path])]
    comparison = compare_evaluations([read_evaluation(file) for file in files], by)
    tables = [comparison.sheet(), *comparison.tests()]
    texts = {
        "markdown": "\n".join(table.markdown() for table in tables),
        "latex": "\n".join(table.latex() for table in tables),
        "csv": records_csv(comparison.cells),
        "tests": records_csv(comparison.within),
        "json": json.dumps(comparison.to_json(), indent=1, ensure_ascii=False) + "\n",
    }
    if out is not None:
        _write(out, texts, comparison)
    if as_json or style != "text":
        print(texts["json" if as_json else style], end="")
        return
    screen = console()
    for table in tables:
        show(screen, table)


def _results_in(folder: Path) -> list[Path]:
    """Result files of evaluations in a folder; other JSON files are skipped."""
    from fieldlens.core.errors import BadInput
    from fieldlens.evaluation.result import KIND
    from fieldlens.storage.sealed import read_json

    files = [file for file in sorted(folder.glob("*.json")) if read_json(file).get("kind") == KIND]
    if not files and (folder / "study.json").is_file():
        raise BadInput(f"{folder} contains the results of a study: compare them with fieldlens study {folder} --report")
    return files


def _write(out: Path, texts: dict[str, str], comparison: "Comparison") -> None:
    from fieldlens.reporting import plots
    from fieldlens.storage.atomic import replace_text

    out.mkdir(parents=True, exist_ok=True)
    for name, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv"), ("json", "json")):
        replace_text(out / f"comparison.{ending}", texts[name])
    replace_text(out / "comparison-tests.csv", texts["tests"])
    panel = plots.perplexity_lines(comparison.lines(), comparison.quantity)
    for ending in ("png", "svg"):
        plots.save(plots.figure_of(panel), out / f"comparison.{ending}")
