"""Kill a study's controller or worker, or fail the disk, at every change to the disk; run again, nothing differs."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import small_studies

from campaign.disk import FAULTS
from campaign.piece import RIGHT, Ended, Outcome, Piece, forked, wrong
from campaign.worlds import FREE, World, difference
from fieldlens import cli
from fieldlens.storage.atomic import FAILPOINT
from fieldlens.study import executors, job

WORKERS = "CAMPAIGN_WORKERS_FAILPOINT"


class Baseline(NamedTuple):
    """The study, its undisturbed results, and the number of changes to the disk of its controller and of its worker."""

    file: Path
    results: dict[str, str]
    changes: dict[str, int]

    @property
    def settings(self) -> dict[str, str]:
        return World(self.file.parent).settings


def work(words: list[str]) -> None:
    """The worker's command, in this process; its standard input stays open, as that of a controller that lives."""
    reading, _ = os.pipe()
    os.dup2(reading, 0)
    sys.argv = ["job", *words, "0"]
    job.main()


def control(words: list[str]) -> None:
    """The study's command: the fault strikes the controller alone, or with WORKERS every worker alone."""
    start, fault = subprocess.Popen, os.environ.pop(WORKERS, None)

    def started(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
        environment = {key: value for key, value in options["env"].items() if key != FAILPOINT}
        return start(*arguments, **options | {"env": environment | ({FAILPOINT: fault} if fault else {})})

    setattr(executors.subprocess, "Popen", started)  # noqa: B010 - a type checker objects to assignments
    cli.main(words)


def carry_out(baseline: Baseline, part: str, folder: Path, **fault: str) -> Ended:
    """The study, or its worker alone, with results and runs below this folder."""
    settings = baseline.settings | fault
    if part != "worker":
        places = ["--out", str(folder / "results"), "--runs", str(folder / "runs")]
        return forked(
            ["study", str(baseline.file), "--workers", "1", *places], folder / "here", FREE, entry=control, **settings
        )
    (order_file,) = (baseline.file.parent / "whole" / "runs").glob("*/job.json")
    order = json.loads(order_file.read_text())
    order["places"] = {"results": str(folder / "results"), "runs": str(folder / "runs")}
    (folder / "results").mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps(order))
    return forked([str(folder / "job.json")], folder / "here", FREE, entry=work, **settings)


def contents(folder: Path) -> dict[str, str]:
    """The hashes of the results of all jobs; a kill may leave a hidden temporary file, which no reader looks at."""
    hashes = small_studies.contents(folder / "results")
    return {name: value for name, value in hashes.items() if "/" in name and not Path(name).name.startswith(".")}


def prepare(folder: Path) -> Baseline:
    baseline = Baseline(small_studies.write_study(folder, ["alibi"], steps=4), {}, {})
    for name, part in (("warm", "controller"), ("whole", "controller"), ("alone", "worker")):
        ended = carry_out(baseline, part, folder / name)
        assert ended.code == 0, ended.err
        baseline.changes[part] = ended.changes
    baseline.results.update(contents(folder / "whole"))
    assert contents(folder / "alone") == baseline.results
    return baseline


def cases(baseline: Baseline) -> Sequence[str]:
    names = [f"{part}:{f}:{n}" for part, last in baseline.changes.items() for f in FAULTS for n in range(1, last + 1)]
    last = baseline.changes["worker"]
    return [*names, *(f"every worker:{f}:{n}" for f in FAULTS[1:] for n in (1, last // 4, last // 2, last))]


def run(baseline: Baseline, case: str) -> Outcome:
    part, fault, number = case.split(":")
    folder = baseline.file.parent / case.replace(":", "-").replace(" ", "-")
    try:
        variable = WORKERS if part == "every worker" else FAILPOINT
        struck = carry_out(baseline, part, folder, **{variable: f"{number}:{fault}"})
        expected = (-signal.SIGKILL,) if fault == "kill" else (4,)
        if part == "every worker":  # one that resumes has fewer changes to make, and may reach the end
            expected = (0, 4)
        if struck.code not in expected or (fault != "kill" and not struck.documented):
            return wrong(f"exit {struck.code}: {struck.err}")
        again = carry_out(baseline, part, folder)
        if again.code != 0:
            return wrong(f"run again: exit {again.code}: {again.err}")
        differing = difference(contents(folder), baseline.results)
        return RIGHT if not differing else wrong(f"run again: these differ: {differing}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


PIECE = Piece(
    "study_disk",
    "a study whose controller or worker is killed, or meets ENOSPC or EIO, at any change to the disk ends with exit "
    "code 4 (kill: the signal) and has, run again, the results of an undisturbed one",
    prepare,
    cases,
    run,
)
