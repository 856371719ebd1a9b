"""fieldlens study: many runs, one command."""

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.console import Console
from rich.live import Live

from fieldlens.machine import Machine

if TYPE_CHECKING:
    from fieldlens.study.plan import Study
    from fieldlens.study.state import Places

EVERY = 10.0


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
    executor: Literal["local", "ray"] = "local",
    workers: int | None = None,
    nice: int = 0,
    time_limit: float = 1800.0,
    address: str | None = None,
    cpus: float = 1.0,
    gpus: float = 0.0,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Train, evaluate and measure every model of a study, and end in one report. The same command goes on after a stop.

    Example: fieldlens study demo

    Parameters
    ----------
    which
        A study file (TOML), or a built-in study: demo.
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
    as_json
        Print JSON.
    """
    from fieldlens.errors import BadInput
    from fieldlens.study.conduct import forgive
    from fieldlens.study.forecast import forecast
    from fieldlens.study.plan import read_study
    from fieldlens.study.state import Places
    from fieldlens.study.view import overview, table

    for what, value in (("workers", workers), ("time_limit", time_limit), ("cpus", cpus)):
        if value is not None and value <= 0:
            raise BadInput(f"{what} is {value}: more than 0 is needed")
    found = read_study(which).only(only)
    places = Places(out or Path("results") / found.name, runs or Path("runs") / found.name)
    count = workers or max(1, (os.cpu_count() or 1) // (machine.threads or 1))
    console = Console(highlight=False)
    if not dry_run and not status and not report:
        if retry:
            forgive(found, places)
        _conduct(found, places, corpora, executor, count, nice, time_limit, address, cpus, gpus, machine, as_json)
    if report:
        _write_report(places)
    rows = overview(found, places, forecast(found, places))
    if as_json:
        print(json.dumps({"study": found.name, "jobs": rows}))
    elif dry_run or status:
        console.print(table(found, rows, count).text())
    else:
        _conclude(places, console)
    _end(rows, dry_run or status)


def _conduct(
    found: "Study",
    places: "Places",
    corpora: Path | None,
    executor: str,
    workers: int,
    nice: int,
    time_limit: float,
    address: str | None,
    cpus: float,
    gpus: float,
    machine: Machine,
    quiet: bool,
) -> None:
    import dataclasses

    from fieldlens.study.conduct import Controller
    from fieldlens.study.executors import Executor, Local, Ray

    machine = machine if machine.threads else dataclasses.replace(machine, threads=max(1, int(cpus)))
    watcher = Watcher(found, places, workers, quiet)
    with watcher:
        chosen: Executor = Ray(address, cpus, gpus, nice) if executor == "ray" else Local(workers, nice)
        Controller(found, places, chosen, machine, corpora, time_limit, watcher.watch).run()


def _conclude(places: "Places", console: Console) -> None:
    """The tables, and where the report lies, in the last line."""
    from fieldlens.study.page import read_results, summary

    _, results = read_results(places.results)
    if results:
        for sheet in summary(results):
            console.print(sheet.text())
            for note in sheet.notes:
                console.print(note, style="dim", markup=False)
    console.print(f"report: {_write_report(places)}", soft_wrap=True, markup=False)


def _write_report(places: "Places") -> Path:
    from fieldlens.checkpoint import replace_file
    from fieldlens.study.page import page

    path, text = places.results / "report.html", page(places.results).encode()
    if not path.exists() or path.read_bytes() != text:
        replace_file(path, text)
    return path


def _end(rows: list[dict[str, Any]], only_asked: bool) -> None:
    from fieldlens.errors import FieldlensError

    lost = [row["name"] for row in rows if row["state"] == "failed"]
    if lost and not only_asked:
        raise FieldlensError(f"{len(lost)} of {len(rows)} runs failed ({', '.join(lost)}): --retry tries again")


class Watcher:
    """A live table on a terminal; elsewhere a line when a state changes, and a line for the whole now and then."""

    def __init__(self, found: "Study", places: "Places", workers: int, quiet: bool) -> None:
        from fieldlens.study.forecast import forecast

        self.study, self.places, self.workers, self.quiet = found, places, workers, quiet
        self.console = Console(stderr=True, highlight=False)
        self.live = Live(console=self.console, auto_refresh=False, transient=True)
        self.shown = not quiet and self.console.is_terminal
        self.states: dict[str, str] = {}
        self.forecast, self.told, self.looked = forecast(found, places), time.monotonic(), 0.0

    def __enter__(self) -> "Watcher":
        if self.shown:
            self.live.__enter__()
        self.watch()
        return self

    def __exit__(self, *details: Any) -> None:
        from fieldlens.study.view import headline, overview

        if self.shown:
            self.live.__exit__(*details)
        if not self.quiet:
            rows = overview(self.study, self.places, self.forecast)
            self.console.print(headline(self.study, rows, self.workers), markup=False, soft_wrap=True)

    def watch(self) -> None:
        from fieldlens.study.forecast import forecast
        from fieldlens.study.view import headline, line, overview, table

        now = time.monotonic()
        if self.quiet or now - self.looked < 1:
            return
        self.looked = now
        rows = overview(self.study, self.places, self.forecast)
        states = {row["name"]: row["state"] for row in rows}
        changed = [row for row in rows if self.states.get(row["name"]) != row["state"]]
        if any(row["state"] == "done" for row in changed):
            self.forecast = forecast(self.study, self.places)
        if self.shown:
            self.live.update(table(self.study, rows, self.workers).text(), refresh=True)
        elif changed or now - self.told > EVERY:
            for row in changed if self.states else []:
                self.console.print(line(row), markup=False, soft_wrap=True)
            if now - self.told > EVERY or not self.states:
                self.told = now
                self.console.print(headline(self.study, rows, self.workers), markup=False, soft_wrap=True)
        self.states = states
