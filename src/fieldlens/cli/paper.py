"""fieldlens paper: reproduces the tables, figures and claims of the paper from the results of a study."""

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
    study: Annotated[str, Parameter(name="--study")] = "paper",
    run: bool = False,
    retry: bool = False,
    runs: Path | None = None,
    corpora: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    worker_options: Annotated[WorkerOptions, Parameter(name="*")] = WorkerOptions(),  # noqa: B008
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Reproduce the paper's tables and figures, and test its claims.

    Example: fieldlens paper openweb-github-arxiv --out paper

    Parameters
    ----------
    name
        Table or figure to draw, named by its label in the paper's LaTeX source; `all` draws everything, `claims` tests
        the claims. Default: list all tables and figures with their states.
    out
        Output folder for tables and figures.
    results
        Folder with the results of the study. Default: results/STUDY.
    study
        Study to take results from: paper, paper-first (its first edition), paper-full (the paper's full size), or a
        study file.
    run
        First run the missing jobs that the artifact needs, as fieldlens study does.
    retry
        With --run: run failed jobs again.
    runs
        Folder for run folders. Default: runs/STUDY.
    corpora
        Folder with the corpora of the study.
    as_json
        Print JSON.
    """
    from fieldlens.core.errors import BadInput
    from fieldlens.paper.artifact import find, registry
    from fieldlens.paper.results import PaperResults
    from fieldlens.storage.writable import check_folder
    from fieldlens.study.plan import read_study
    from fieldlens.study.state import StudyPaths

    if name is not None:
        check_folder(out)
    plan = read_study(study)
    folder = results or Path("results") / plan.name
    artifacts = [] if name in (None, "claims") else list(registry().values()) if name == "all" else [find(str(name))]
    ran = None
    if run:
        if name is None or name == "claims":
            raise BadInput("--run needs the name of an artifact, or all")
        worker_options.check()
        ran = _run(
            artifacts,
            PaperResults(plan, folder),
            StudyPaths(folder, runs or Path("runs") / plan.name),
            corpora=corpora,
            worker_options=worker_options,
            machine=machine,
            retry=retry,
        )
    if results is not None and not results.is_dir():
        raise BadInput(f"--results {results} is not a folder")
    paper_results = PaperResults(plan, folder)
    if name is None:
        _list(paper_results, out, as_json)
    elif name == "claims":
        _claims(paper_results, out, as_json)
    else:
        _draw(artifacts, paper_results, out, as_json, skip=name == "all")
    if ran is not None:
        complain(*ran)


def _run(
    artifacts: "list[Artifact]",
    results: "PaperResults",
    paths: "StudyPaths",
    *,
    corpora: Path | None,
    worker_options: WorkerOptions,
    machine: Machine,
    retry: bool,
) -> "tuple[Study, StudyPaths] | None":
    """Run the missing jobs of the artifacts; return the study of these jobs, or None if there are none."""
    from fieldlens.study.controller import clear_failures

    needed = None
    names = dict.fromkeys(job.name for artifact in artifacts for job in artifact.jobs(results))
    if names:
        needed = results.study.only(tuple(names))
        if retry:
            clear_failures(needed, paths)
        conduct(needed, paths, corpora, worker_options, machine)
    machine.start()
    os.nice(worker_options.nice)
    for artifact in artifacts:
        artifact.run(results, paths.runs, worker_options.count(machine), machine)
    return None if needed is None else (needed, paths)


def _list(results: "PaperResults", out: Path, as_json: bool) -> None:
    from fieldlens.paper.artifact import registry, state
    from fieldlens.reporting.table import Table

    states = [state(artifact, results, out) for artifact in registry().values()]
    if as_json:
        print(json.dumps({"study": results.study.name, "artifacts": states}))
        return
    rows = [[row["name"], row["state"], _needed_runs(row)] for row in states]
    screen = console()
    screen.print(Table(["artifact", "state", "runs"], rows, results.study.title))
    if results.absent:
        screen.print(results.absent, markup=False)


def _needed_runs(row: dict[str, Any]) -> str:
    if row["why"]:
        return row["why"]
    return f"{row['runs']['needed']} runs" if row["runs"]["needed"] else "needs no run"


def _draw(artifacts: "list[Artifact]", results: "PaperResults", out: Path, as_json: bool, skip: bool) -> None:
    """Draw artifacts; with `skip`, also those without results, and damaged results are reported last."""
    from fieldlens.core.errors import BadInput
    from fieldlens.paper.artifact import notes_of, redraw, state

    screen, report, damaged = console(), [], None
    for artifact in artifacts:
        try:
            drawn, written = redraw(artifact, results, out, without_results=skip and not results.absent)
        except BadInput as error:
            row = state(artifact, results, out)
            if not skip:
                raise
            report.append({"name": artifact.name, "files": []})
            if row["runs"]["done"]:
                damaged = damaged or error
            elif not as_json:
                screen.print(f"{artifact.name}: {row['state']}, {row['why']}", style="dim", markup=False)
            continue
        report.append({"name": artifact.name, "files": [str(path) for path in written]})
        if as_json:
            continue
        for table in drawn.sheets if not skip else ():
            show(screen, table)
        for note in notes_of(artifact, results) if not skip else ():
            screen.print(note, style="dim", markup=False)
        screen.print(f"written: {', '.join(str(path) for path in written)}", soft_wrap=True, markup=False)
    if as_json:
        print(json.dumps({"study": results.study.name, "drawn": report}))
    if damaged is not None:
        raise damaged


def _claims(results: "PaperResults", out: Path, as_json: bool) -> None:
    from fieldlens.paper.judge import judged
    from fieldlens.paper.page import table_of, write_pages
    from fieldlens.paper.registration import read_registration, summary

    verdicts = judged(results)
    written = write_pages(results, verdicts, out)
    if as_json:
        print(json.dumps({"study": results.study.name, "claims": [verdict.to_json() for verdict in verdicts]}))
        return
    screen = console()
    screen.print(table_of(verdicts))
    screen.print(summary(read_registration(results.folder), results), markup=False)
    if results.absent:
        screen.print(results.absent, markup=False)
    screen.print(f"written: {', '.join(str(path) for path in written)}", soft_wrap=True, markup=False)
