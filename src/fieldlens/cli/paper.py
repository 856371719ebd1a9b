"""fieldlens paper: every table, figure and claim of the paper, from the results that are there."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fieldlens.cli.console import console, show
from fieldlens.cli.study import WorkerOptions, complain, conduct
from fieldlens.core.device import Machine

if TYPE_CHECKING:
    from fieldlens.paper.artifact import Artifact
    from fieldlens.paper.results import PaperResults
    from fieldlens.study.plan import Study
    from fieldlens.study.state import StudyPaths


def paper(
    name: Annotated[str | None, Parameter(name="NAME")] = None,
    /,
    *,
    out: Path = Path("paper"),
    results: Path | None = None,
    which: Annotated[str, Parameter(name="--study")] = "paper",
    run: bool = False,
    retry: bool = False,
    runs: Path | None = None,
    corpora: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    worker_options: Annotated[WorkerOptions, Parameter(name="*")] = WorkerOptions(),  # noqa: B008
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Redraw the paper's tables and figures, and judge its claims.

    Example: fieldlens paper openweb-github-arxiv --out paper

    Parameters
    ----------
    name
        An artifact, named as in the paper's source; all; or claims. Without one, all are listed with their states.
    out
        Folder to draw into.
    results
        Results of the study; results/STUDY unless given.
    which
        The study they come from: paper, or paper-full at the paper's own size, or a file.
    run
        First run what the artifact needs and is not there, as fieldlens study would.
    retry
        With --run: try failed runs again.
    runs
        Folder for run folders; runs/STUDY unless given.
    corpora
        Folder in which the study's corpora lie.
    as_json
        Print JSON.
    """
    from fieldlens.core.errors import BadInput
    from fieldlens.paper.artifact import find, registry
    from fieldlens.paper.results import PaperResults
    from fieldlens.study.plan import read_study
    from fieldlens.study.state import StudyPaths

    study = read_study(which)
    folder = results or Path("results") / study.name
    chosen = [] if name in (None, "claims") else list(registry().values()) if name == "all" else [find(str(name))]
    ran = None
    if run:
        if name is None or name == "claims":
            raise BadInput("--run needs the name of an artifact, or all")
        worker_options.check()
        ran = _run(
            chosen,
            PaperResults(study, folder),
            StudyPaths(folder, runs or Path("runs") / study.name),
            corpora,
            worker_options,
            machine,
            retry,
        )
    if results is not None and not results.is_dir():
        raise BadInput(f"--results {results} is no folder")
    shelf = PaperResults(study, folder)
    if name is None:
        _list(shelf, out, as_json)
    elif name == "claims":
        _claims(shelf, out, as_json)
    else:
        _draw(chosen, shelf, out, as_json, skip=name == "all")
    if ran is not None:
        complain(*ran)


def _run(
    chosen: "list[Artifact]",
    shelf: "PaperResults",
    places: "StudyPaths",
    corpora: Path | None,
    worker_options: WorkerOptions,
    machine: Machine,
    retry: bool,
) -> "tuple[Study, StudyPaths] | None":
    """Hand what artifacts need to the study's controller; returns what that was."""
    from fieldlens.study.controller import clear_failures

    wanted = None
    names = dict.fromkeys(job.name for one in chosen for job in one.jobs(shelf))
    if names:
        wanted = shelf.study.only(tuple(names))
        if retry:
            clear_failures(wanted, places)
        conduct(wanted, places, corpora, worker_options, machine)
    machine.start()
    os.nice(worker_options.nice)
    for one in chosen:
        one.run(shelf, worker_options.count(machine), machine)
    return None if wanted is None else (wanted, places)


def _list(shelf: "PaperResults", out: Path, as_json: bool) -> None:
    from fieldlens.paper.artifact import registry, state
    from fieldlens.reporting.table import Table

    found = [state(one, shelf, out) for one in registry().values()]
    if as_json:
        print(json.dumps({"study": shelf.study.name, "artifacts": found}))
        return
    rows = [[row["name"], row["state"], _where(row)] for row in found]
    sheet = Table(["artifact", "state", "runs"], rows, shelf.study.title)
    screen = console()
    screen.print(sheet)
    if shelf.absent:
        screen.print(shelf.absent, markup=False)


def _where(row: dict[str, Any]) -> str:
    if row["why"]:
        return row["why"]
    return f"{row['runs']['needed']} runs" if row["runs"]["needed"] else "needs no run"


def _draw(chosen: "list[Artifact]", shelf: "PaperResults", out: Path, as_json: bool, skip: bool) -> None:
    """Draw some artifacts; of all, those that have no result yet are left out, and what is damaged is said last."""
    from fieldlens.core.errors import BadInput
    from fieldlens.paper.artifact import notes_of, redraw, state

    screen, report, damaged = console(), [], None
    for one in chosen:
        try:
            drawn, written = redraw(one, shelf, out)
        except BadInput as error:
            how = state(one, shelf, out)
            if not skip:
                raise
            report.append({"name": one.name, "files": []})
            if how["runs"]["done"]:
                damaged = damaged or error
            elif not as_json:
                screen.print(f"{one.name}: {how['state']}, {how['why']}", style="dim", markup=False)
            continue
        report.append({"name": one.name, "files": [str(path) for path in written]})
        if as_json:
            continue
        for sheet in drawn.sheets if not skip else ():
            show(screen, sheet)
        for note in notes_of(one, shelf) if not skip else ():
            screen.print(note, style="dim", markup=False)
        screen.print(f"drawn: {', '.join(str(path) for path in written)}", soft_wrap=True, markup=False)
    if as_json:
        print(json.dumps({"study": shelf.study.name, "drawn": report}))
    if damaged is not None:
        raise damaged


def _claims(shelf: "PaperResults", out: Path, as_json: bool) -> None:
    from fieldlens.paper.claims import judged
    from fieldlens.paper.page import sheet_of, write_pages

    found = judged(shelf)
    written = write_pages(shelf, found, out)
    if as_json:
        print(json.dumps({"study": shelf.study.name, "claims": [one.to_json() for one in found]}))
        return
    screen = console()
    screen.print(sheet_of(found))
    if shelf.absent:
        screen.print(shelf.absent, markup=False)
    screen.print(f"written: {', '.join(str(path) for path in written)}", soft_wrap=True, markup=False)
