"""fieldlens study: many runs, one command."""

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
    """Who does the jobs.

    Parameters
    ----------
    executor
        local: child processes. ray: tasks on a Ray cluster.
    workers
        Jobs at a time on this machine, one thread each unless --threads says otherwise; one per core unless given.
    nice
        Priority of the workers: 10 leaves the machine to others.
    time_limit
        Seconds that a job may go without progress.
    address
        Of a Ray cluster; without one a local cluster is started.
    cpus
        CPUs that Ray gives to a job.
    gpus
        GPUs that Ray gives to a job.
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

        for what in ("workers", "time_limit", "cpus"):
            value = getattr(self, what)
            if value is not None and not value > 0:
                raise BadInput(f"{what} is {value}: more than 0 is needed")
        if self.gpus < 0:
            raise BadInput(f"gpus is {self.gpus}: at least 0 is needed")
        if self.address is not None and self.executor != "ray":
            raise BadInput("--address goes with --executor ray")

    def count(self, machine: Machine) -> int:
        """Jobs at a time, as far as that is known here."""
        ours = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return self.workers or max(1, ours // (machine.threads or 1))

    def gather(self, machine: Machine) -> "Executor":
        from fieldlens.study.executors import Local, Ray

        if self.executor == "ray":
            return Ray(self.address, self.cpus, self.gpus, self.nice)
        return Local(self.count(machine), self.nice)


def study(
    which: Annotated[str, Parameter(name="STUDY")],
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
    """Train, evaluate and measure many models; end in one report.

    Example: fieldlens study demo

    The same command goes on after a stop.

    Parameters
    ----------
    which
        A study file (TOML), a built-in study (demo, pilot, paper, paper-full), or for --report a results folder.
    out
        Folder for results, made to be committed; results/STUDY unless given.
    runs
        Folder for run folders; runs/STUDY unless given. On a cluster it lies where all nodes see it.
    corpora
        Folder in which the study's corpora lie, if not beside its file.
    only
        Only runs whose names are like this, as in --only '*-stdlib-1235-*'; may be given several times.
    dry_run
        Show runs, states and the time that is left; do nothing.
    status
        The same, while another process works on it.
    report
        Only write the report again, from the results that are there.
    retry
        Try again what failed.
    as_json
        Print JSON.
    """
    from fieldlens.study.controller import clear_failures
    from fieldlens.study.plan import read_study
    from fieldlens.study.state import StudyPaths

    worker_options.check()
    if report and (Path(which) / "study.json").is_file():
        _conclude(Path(which), as_json)
        return
    found = read_study(which).only(only)
    places = StudyPaths(out or Path("results") / found.name, runs or Path("runs") / found.name)
    if report:
        _conclude(places.results, as_json)
    elif dry_run or status:
        _show(found, places, corpora, worker_options.count(machine), as_json)
    else:
        if retry:
            clear_failures(found, places)
        conduct(found, places, corpora, worker_options, machine, quiet=as_json)
        _conclude(places.results, as_json)
        complain(found, places)


def conduct(
    found: "Study",
    places: "StudyPaths",
    corpora: Path | None,
    worker_options: WorkerOptions,
    machine: Machine,
    quiet: bool = False,
) -> None:
    """Do what is left of a study, and show how it goes."""
    from fieldlens.study.controller import Controller

    if worker_options.executor != "ray":
        machine.start()  # what it cannot do here is said now, not by every job
    workers = worker_options.count(machine)
    machine = machine if machine.threads else dataclasses.replace(machine, threads=max(1, int(worker_options.cpus)))
    watcher = Watcher(found, places, workers, quiet)
    controller = Controller(
        found,
        places,
        lambda: worker_options.gather(machine),
        machine,
        corpora,
        worker_options.time_limit,
        watcher.watch,
    )
    controller.prepare()
    with watcher:
        controller.run()


def _show(found: "Study", places: "StudyPaths", corpora: Path | None, workers: int, as_json: bool) -> None:
    from fieldlens.study.controller import texts_of
    from fieldlens.study.forecast import forecast
    from fieldlens.study.state import result_of
    from fieldlens.study.view import overview, table, time_left

    there = {job.recipe.corpus for job in found.jobs if result_of(job, places)}  # others can be of no other text
    rows = overview(found, places, forecast(found, places), texts_of(found, corpora, there - found.pins.keys()))
    absent = sorted({job.recipe.corpus for job in found.jobs if not found.has(job.recipe.corpus, corpora)})
    if as_json:
        left = time_left(rows, workers)
        print(json.dumps({"study": found.name, "seconds_left": left, "absent_corpora": absent, "jobs": rows}))
        return
    screen = console()
    screen.print(table(found, rows, workers))
    if absent and any(row["seconds_left"] for row in rows):
        screen.print(f"not here: {', '.join(absent)}; --corpora FOLDER says where they lie", markup=False)


def _conclude(folder: Path, as_json: bool) -> None:
    """The tables, and where the report lies, in the last line."""
    from fieldlens.study.page import summary
    from fieldlens.study.results import read_results

    path = _write_report(folder)
    study, results = read_results(folder)
    if as_json:
        rows = [{"name": one.name, "state": one.about["state"], "recipe": one.recipe} for one in results]
        print(json.dumps({"study": study["name"], "report": str(path), "results": rows}))
        return
    screen = console()
    for sheet in summary(results) if results else []:
        show(screen, sheet)
    screen.print(f"report: {path}", soft_wrap=True, markup=False)


def _write_report(folder: Path) -> Path:
    from fieldlens.storage.atomic import replace_file
    from fieldlens.study.page import page

    path, text = folder / "report.html", page(folder).encode()
    if not path.exists() or path.read_bytes() != text:
        replace_file(path, text)
    return path


def complain(found: "Study", places: "StudyPaths") -> None:
    from fieldlens.core.errors import FieldlensError
    from fieldlens.study.state import job_states

    lost = [name for name, state in job_states(found, places).items() if state == "failed"]
    if lost:
        where = places.results / lost[0] / "failed.json"
        raise FieldlensError(f"{len(lost)} of {len(found.jobs)} runs failed, see {where}: --retry tries again")


class Watcher:
    """A live table on a terminal; elsewhere a line when a state changes, and a line for the whole now and then."""

    def __init__(self, found: "Study", places: "StudyPaths", workers: int, quiet: bool) -> None:
        from fieldlens.study.forecast import forecast

        self.study, self.places, self.workers, self.quiet = found, places, workers, quiet
        self.console = console(stderr=True)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.shown = not quiet and self.console.is_terminal
        self.states: dict[str, str] = {}
        self.forecast, self.told, self.looked = forecast(found, places), time.monotonic(), 0.0

    def __enter__(self) -> "Watcher":
        if self.shown:
            self.live.__enter__()
        self.watch()
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: Any) -> None:
        from fieldlens.core.errors import BadInput
        from fieldlens.study.view import headline, overview

        if self.shown:
            self.live.update("", refresh=True)
            self.live.__exit__(kind, *details)
        refused = kind is not None and issubclass(kind, BadInput)  # nothing was begun
        if not self.quiet and not refused:
            rows = overview(self.study, self.places, self.forecast)
            self.console.print(headline(self.study, rows, self.workers), markup=False, soft_wrap=True)

    def watch(self) -> None:
        """Look at the files, at most once a second, and show what they say."""
        from fieldlens.study.forecast import forecast
        from fieldlens.study.view import overview, table

        now = time.monotonic()
        if self.quiet or now - self.looked < 1:
            return
        self.looked = now
        rows = overview(self.study, self.places, self.forecast)
        changed = [row for row in rows if self.states.get(row["name"]) != row["state"]]
        if self.states and any(row["state"] == "done" for row in changed):
            self.forecast = forecast(self.study, self.places)
        if self.shown:
            sheet = table(self.study, rows, self.workers, max(3, self.console.height - 6))
            self.live.update(sheet, refresh=True)
        else:
            self._tell(rows, changed if self.states else [], now)
        self.states = {row["name"]: row["state"] for row in rows}

    def _tell(self, rows: list[dict[str, Any]], changed: list[dict[str, Any]], now: float) -> None:
        from fieldlens.study.view import headline, line

        for row in changed:
            self.console.print(line(row), markup=False, soft_wrap=True)
        unfinished = any(row["seconds_left"] for row in rows)
        if unfinished and (now - self.told > EVERY or not self.states):
            self.told = now
            self.console.print(headline(self.study, rows, self.workers), markup=False, soft_wrap=True)
