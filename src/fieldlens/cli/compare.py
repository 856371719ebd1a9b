"""fieldlens compare: are the differences real?"""

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
    """Say whether the differences between evaluations are real.

    Example: fieldlens compare evaluations/sandwich-*.json evaluations/alibi-*.json

    Evaluations are grouped by everything but the seed, and each group is compared with the first:
    over seeds by the paper's paired t-test; within a seed by resampling documents. † means that the first group is
    significantly better, * that it is significantly worse.

    Parameters
    ----------
    results
        Result files of fieldlens evaluate, or folders of them.
    by
        What is resampled within a seed; tokens only if you must: those of one document are not independent.
    style
        text, markdown, latex or csv.
    out
        Write all formats and the plot into this folder.
    as_json
        Print JSON.
    """
    from fieldlens.core.errors import BadInput
    from fieldlens.evaluation.compare import compare as compare_evaluations
    from fieldlens.evaluation.result import read_evaluation
    from fieldlens.reporting.table import records_csv

    machine.start()
    if not results:
        raise BadInput("nothing to compare: give result files of fieldlens evaluate")
    files = [file for path in results for file in (_inside(path) if path.is_dir() else [path])]
    found = compare_evaluations([read_evaluation(file) for file in files], by)
    sheets = [found.sheet(), *found.tests()]
    texts = {
        "markdown": "\n".join(sheet.markdown() for sheet in sheets),
        "latex": "\n".join(sheet.latex() for sheet in sheets),
        "csv": records_csv(found.cells),
        "tests": records_csv(found.within),
        "json": json.dumps(found.to_json(), indent=1, ensure_ascii=False) + "\n",
    }
    if out is not None:
        _write(out, texts, found)
    if as_json or style != "text":
        print(texts["json" if as_json else style], end="")
        return
    screen = console()
    for sheet in sheets:
        show(screen, sheet)


def _inside(folder: Path) -> list[Path]:
    """The results of evaluations in a folder; other JSON may lie there too."""
    from fieldlens.core.errors import BadInput
    from fieldlens.evaluation.result import KIND
    from fieldlens.storage.results import read_json

    found = [file for file in sorted(folder.glob("*.json")) if read_json(file).get("kind") == KIND]
    if not found and (folder / "study.json").is_file():
        raise BadInput(f"{folder} holds the results of a study: fieldlens study {folder} --report compares them")
    return found


def _write(out: Path, texts: dict[str, str], found: "Comparison") -> None:
    from fieldlens.reporting import plots as draw
    from fieldlens.storage.atomic import replace_file

    out.mkdir(parents=True, exist_ok=True)
    for name, ending in (("markdown", "md"), ("latex", "tex"), ("csv", "csv"), ("json", "json")):
        replace_file(out / f"comparison.{ending}", texts[name].encode())
    replace_file(out / "comparison-tests.csv", texts["tests"].encode())
    figure = draw.perplexity_lines(found.lines(), found.quantity)
    for ending in ("png", "svg"):
        draw.save(figure, out / f"comparison.{ending}")
