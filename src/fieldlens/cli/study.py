"""fieldlens study: trains, evaluates and measures many models with one command."""

import dataclasses
import json
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.live import Live

from fieldlens.cli.console import console, show
from fieldlens.core.device import Machine

if TYPE_CHECKING:
    from fieldlens.study.executors import Executor
    from fieldlens.study.plan import Study
    from fieldlens.study.state import StudyPaths

EVERY = 10.0


@dataclass(frozen=True)
class WorkerOptions:
    """Options for the workers that run the jobs of a study.

    Parameters
    ----------
    executor
        How jobs are run: as child processes (local) or as tasks on a Ray cluster (ray).
    workers
        Maximum number of concurrent jobs on this machine, each with --threads threads. Default: the number of cores
        divided by --threads.
    nice
        Niceness of the workers; 10 gives other processes priority.
    time_limit
        Maximum number of seconds that a job may run without progress.
    address
        Address of a Ray cluster. Default: start a local cluster.
    cpus
        Number of CPUs per job on Ray.
    gpus
        Number of GPUs per job on Ray.
    """

    executor: Literal["local", "ray"] = "local"
    workers: int | None = None
    nice: int = 0
    time_limit: float = 1800.0
    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0

    def check(self) -> None:
        from fieldlens.core.errors import BadInput

        for name in ("workers", "time_limit", "cpus"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise BadInput(f"--{name.replace('_', '-')} must be greater than 0, got {value}")
        if self.gpus < 0:
            raise BadInput(f"--gpus must be at least 0, got {self.gpus}")
        if self.address is not None and self.executor != "ray":
            raise BadInput("--address needs --executor ray")

    def count(self, machine: Machine) -> int:
        """Number of concurrent jobs, from the cores of this machine unless it is set."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.workers or max(1, cores // (machine.threads or 1))

    def gather(self, machine: Machine) -> "Executor":
        from fieldlens.study.executors import Local, Ray

        if self.executor == "ray":
            return Ray(self.address, self.cpus, self.gpus, self.nice)
        return Local(self.count(machine), self.nice)


def study(
    name: Annotated[str, Parameter(name="STUDY")],
    /,
    *,
    out: Path | None = None,
    runs: Path | None = None,
    corpora: Path | None = None,
    only: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    dry_run: bool = False,
    status: bool = False,
    report: bool = False,
    retry: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    worker_options: Annotated[WorkerOptions, Parameter(name="*")] = WorkerOptions(),  # noqa: B008
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Train, evaluate and measure many models, and write one report.

    Example: fieldlens study demo

    After an interruption, the same command resumes the study.

    Parameters
    ----------
    name
        Study file (TOML), built-in study (demo, pilot, paper, paper-first, paper-full, modern), or with --report a
        results folder.
    out
        Output folder for results, which are small enough to commit. Default: results/STUDY.
    runs
        Folder for run folders. Default: runs/STUDY. On a cluster, all nodes must be able to access it.
    corpora
        Folder with the corpora of the study. Default: the folder of the study file.
    only
        Run only jobs whose names match this pattern, such as '*-stdlib-1235-*'; can be repeated.
    dry_run
        Print the jobs, their states and the estimated time left; run nothing.
    status
        Same as --dry-run; can be used while another process runs the study.
    report
        Only rewrite the report from the existing results.
    retry
        Run failed jobs again.
    as_json
        Print JSON.
    """
    from fieldlens.study.controller import clear_failures
    from fieldlens.study.plan import read_study
    from fieldlens.study.state import StudyPaths

    worker_options.check()
    if report and (Path(name) / "study.json").is_file():
        _print_report(Path(name), as_json)
        return
    plan = read_study(name).only(only)
    paths = StudyPaths(out or Path("results") / plan.name, runs or Path("runs") / plan.name)
    if report:
        _print_report(paths.results, as_json)
    elif dry_run or status:
        _print_status(plan, paths, corpora, worker_options.count(machine), as_json)
    else:
        if retry:
            clear_failures(plan, paths)
        conduct(plan, paths, corpora, worker_options, machine, quiet=as_json)
        _print_report(paths.results, as_json)
        complain(plan, paths)


def conduct(
    study: "Study",
    paths: "StudyPaths",
    corpora: Path | None,
    worker_options: WorkerOptions,
    machine: Machine,
    quiet: bool = False,
) -> None:
    """Run the remaining jobs of a study and print progress."""
    from fieldlens.storage.writable import check_folder
    from fieldlens.study.controller import Controller

    check_folder(paths.results)
    check_folder(paths.runs, "--runs")
    if worker_options.executor != "ray":
        machine.start()  # report an unusable device or dtype once, not in every job
    workers = worker_options.count(machine)
    machine = machine if machine.threads else dataclasses.replace(machine, threads=max(1, int(worker_options.cpus)))
    screen = StudyScreen(study, paths, workers, quiet)
    controller = Controller(
        study,
        paths,
        lambda: worker_options.gather(machine),
        machine,
        corpora=corpora,
        time_limit=worker_options.time_limit,
        refresh=screen.refresh,
    )
    controller.prepare()
    with screen:
        controller.run()


def _print_status(study: "Study", paths: "StudyPaths", corpora: Path | None, workers: int, as_json: bool) -> None:
    from fieldlens.study.controller import texts_of
    from fieldlens.study.forecast import forecast
    from fieldlens.study.state import record_of
    from fieldlens.study.view import overview, table, time_left

    # Only results can be stale, so only corpora with results are read.
    used = {job.recipe.corpus for job in study.jobs if record_of(job, paths)}
    rows = overview(study, paths, forecast(study, paths), texts_of(study, corpora, used - study.pins.keys()))
    absent = sorted({job.recipe.corpus for job in study.jobs if not study.has(job.recipe.corpus, corpora)})
    if as_json:
        left = time_left(rows, workers)
        print(json.dumps({"study": study.name, "seconds_left": left, "absent_corpora": absent, "jobs": rows}))
        return
    screen = console()
    screen.print(table(study, rows, workers))
    if absent and any(row["seconds_left"] for row in rows):
        screen.print(f"missing corpora: {', '.join(absent)}; give their folder with --corpora FOLDER", markup=False)


def _print_report(folder: Path, as_json: bool) -> None:
    """Write the report; print its tables, and its path in the last line."""
    from fieldlens.study.page import summary
    from fieldlens.study.results import read_results, rejected_results

    path = _write_report(folder)
    study, results = read_results(folder)
    rejected = rejected_results(folder)
    for name, reason in rejected.items():
        console(stderr=True).print(f"warning: {name} is left out: {reason}", soft_wrap=True, markup=False)
    if as_json:
        rows = [{"name": result.name, "state": result.about["state"], "recipe": result.recipe} for result in results]
        print(json.dumps({"study": study["name"], "report": str(path), "results": rows, "rejected": rejected}))
        return
    screen = console()
    for table in summary(results) if results else []:
        show(screen, table)
    screen.print(f"report: {path}", soft_wrap=True, markup=False)


def _write_report(folder: Path) -> Path:
    from fieldlens.storage.atomic import replace_file
    from fieldlens.study.page import page

    path, text = folder / "report.html", page(folder).encode(errors="backslashreplace")
    if not path.exists() or path.read_bytes() != text:
        replace_file(path, text)
    return path


def complain(study: "Study", paths: "StudyPaths") -> None:
    """Raise FieldlensError if a run of the study failed."""
    from fieldlens.core.errors import FieldlensError
    from fieldlens.study.state import job_states

    failed = [name for name, state in job_states(study, paths).items() if state == "failed"]
    if failed:
        path = paths.results / failed[0] / "failed.json"
        raise FieldlensError(f"{len(failed)} of {len(study.jobs)} runs failed, see {path}: re-run with --retry")


class StudyScreen:
    """Shows the jobs of a study: a live table on a terminal, otherwise a line per change of state and summaries."""

    def __init__(self, study: "Study", paths: "StudyPaths", workers: int, quiet: bool) -> None:
        from fieldlens.study.forecast import forecast

        self.study, self.paths, self.workers, self.quiet = study, paths, workers, quiet
        self.console = console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.is_live = not quiet and self.console.is_terminal
        self.states: dict[str, str] = {}
        self.summary = ""
        """The summary that was printed last."""
        self.forecast, self.summarised, self.updated = forecast(study, paths), time.monotonic(), 0.0

    def __enter__(self) -> "StudyScreen":
        if self.is_live:
            self.live.__enter__()
        self.refresh()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> None:
        from fieldlens.core.errors import BadInput
        from fieldlens.study.view import headline, overview

        if self.is_live:
            self.live.update("", refresh=True)
            self.live.__exit__(kind, *details)
        refused = kind is not None and issubclass(kind, BadInput)  # no job was started
        if not self.quiet and not refused:
            rows = overview(self.study, self.paths, self.forecast)
            self.console.print(headline(self.study, rows, self.workers), markup=False, soft_wrap=True)

    def refresh(self) -> None:
        """Read the states of the jobs and print them, at most once a second."""
        from fieldlens.study.forecast import forecast
        from fieldlens.study.view import overview, table

        now = time.monotonic()
        if self.quiet or now - self.updated < 1:
            return
        self.updated = now
        rows = overview(self.study, self.paths, self.forecast)
        changed = [row for row in rows if self.states.get(row["name"]) != row["state"]]
        if self.states and any(row["state"] == "done" for row in changed):
            self.forecast = forecast(self.study, self.paths)
        if self.is_live:
            live_table = table(self.study, rows, self.workers, max(3, self.console.height - 6))
            self.live.update(live_table, refresh=True)
        else:
            self._print_changes(rows, changed if self.states else [], now)
        self.states = {row["name"]: row["state"] for row in rows}

    def _print_changes(self, rows: list[dict[str, Any]], changed: list[dict[str, Any]], now: float) -> None:
        from fieldlens.study.view import headline, line

        for row in changed:
            self.console.print(line(row), markup=False, soft_wrap=True)
        unfinished = any(row["seconds_left"] for row in rows)
        text = headline(self.study, rows, self.workers)
        if unfinished and text != self.summary and (now - self.summarised > EVERY or not self.states):
            self.summarised, self.summary = now, text
            self.console.print(text, markup=False, soft_wrap=True)
