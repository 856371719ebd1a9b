"""Studies under faults: workers and the controller killed, poisoned and hanging jobs, a cluster's node killed."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import small_studies

from campaign.piece import RIGHT, SEED, Outcome, Piece, skipped, wrong
from fieldlens.study.controller import ATTEMPTS

sys.path.insert(0, str(Path(__file__).parents[1] / "study"))
from test_ray import ALONE, can_be_alone

MODELS = ["alibi", "sandwich", "none:window=4", "rotary", "kerple", "hang"]
STEPS = 150
DISTURBED, KILLS = 3, 4
"""Disturbed studies, and workers killed in each."""


def pids(folder: Path) -> dict[str, int]:
    """The workers that are at work, by job."""
    found = {}
    for path in folder.glob("*/progress.json"):
        try:
            found[path.parent.name] = json.loads(path.read_text())["pid"]
        except (OSError, ValueError, KeyError):
            continue
    return found


def start(file: Path, *more: str, out: str, runs: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        small_studies.command(file, "--workers", "2", "--time-limit", "30", *more, out=out, runs=runs),
        env={**os.environ, **small_studies.settings(file.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def disturbed(file: Path, kills: int, out: str) -> tuple[int, int]:
    """Run a study through kills of workers and one of the controller: (workers killed, exit code)."""
    chance, killed, times = random.Random(f"{SEED} {out}"), set[int](), Counter[str]()
    controller, restarted = start(file, out=out, runs=f"{out}-runs"), False
    while controller.poll() is None or not restarted:
        time.sleep(chance.uniform(0.5, 3.0))
        alive = [
            (name, pid)
            for name, pid in pids(file.parent / f"{out}-runs").items()
            if pid not in killed and times[name] < ATTEMPTS - 1  # a job that dies more often has failed
        ]
        if len(killed) < kills and alive:
            name, victim = chance.choice(alive)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            killed.add(victim)
            times[name] += 1
        elif not restarted and (len(killed) >= kills // 2 or controller.poll() is not None):
            controller.kill()
            controller.wait()
            restarted = True
            controller = start(file, out=out, runs=f"{out}-runs")
    return len(killed), controller.returncode


def compare(folder: Path, a: str, b: str, poison: str = "poison") -> int:
    """How many files of two results folders differ, the failed job's left out."""
    ours, theirs = (
        {name: content for name, content in small_studies.contents(folder / one).items() if not name.startswith(poison)}
        for one in (a, b)
    )
    return sum(ours.get(name) != theirs.get(name) for name in ours.keys() | theirs.keys())


def states(file: Path, out: str, runs: str) -> dict[str, int]:
    rows = json.loads(small_studies.study(file, "--status", "--json", out=out, runs=runs).stdout)["jobs"]
    found = [row["state"] for row in rows]
    return {state: found.count(state) for state in sorted(set(found))}


CLUSTER = """
import subprocess, sys, time
from pathlib import Path
from ray.cluster_utils import Cluster
runs, command = Path(sys.argv[1]), sys.argv[2:]
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
second = cluster.add_node(num_cpus=1)
study = subprocess.Popen([*command, "--address", cluster.address])
while len(list(runs.glob("*/progress.json"))) < 2 and study.poll() is None:
    time.sleep(0.2)
time.sleep(1)
cluster.remove_node(second, allow_graceful=False)
code = study.wait()
cluster.shutdown()
sys.exit(code)
"""


def node_killed(file: Path) -> int:
    """The study on a cluster of two nodes, of which one is killed in the middle; its exit code."""
    command = small_studies.command(file, "--executor", "ray", out="ray", runs="ray-runs")
    environment = {**os.environ, **small_studies.settings(file.parent)}
    runs = str(file.parent / "ray-runs")
    return subprocess.run(
        [*ALONE, sys.executable, "-c", CLUSTER, runs, *command], env=environment, capture_output=True, check=False
    ).returncode


def prepare(folder: Path) -> Path:
    """A study without faults, and its results with one worker and with two; returns its file."""
    file = small_studies.write_study(folder, MODELS[:-1], seeds=[1, 2], steps=STEPS)
    for workers, out in (("1", "one"), ("2", "results")):
        (folder / "hung").touch()  # nothing hangs in the study that nobody disturbs
        done = small_studies.study(file, "--workers", workers, out=out, runs=f"{out}-runs" if out == "one" else "runs")
        assert done.returncode == 0, done.stderr
    return file


def cases(_: Path) -> Sequence[str]:
    return ["one worker and two", *(f"disturbed {number}" for number in range(DISTURBED)), "a node of Ray killed"]


def run(file: Path, case: str) -> Outcome:
    folder = file.parent
    if case == "one worker and two":
        differing = compare(folder, "one", "results")
        return RIGHT if not differing else wrong(f"{differing} files differ")
    if case.startswith("disturbed"):
        return _disturbed_study(file, case.replace(" ", "-"))
    if not can_be_alone():
        return skipped("no network namespace here")
    try:
        importlib.import_module("ray")
    except ImportError:
        return skipped("needs the extra ray")
    small_studies.write_study(folder, MODELS[:-1], seeds=[1], steps=STEPS)
    code = node_killed(file)
    found = states(file, "ray", "ray-runs")
    names = {path.name for path in (folder / "ray").iterdir() if path.is_dir()}
    ours, theirs = (small_studies.contents(folder / out) for out in ("ray", "results"))
    differing = sum(ours[key] != theirs.get(key) for key in ours if key.split("/")[0] in names)
    return (
        RIGHT if (code, differing, found) == (0, 0, {"done": 5}) else wrong(f"exit {code}, {differing} differ, {found}")
    )


def _disturbed_study(file: Path, name: str) -> Outcome:
    """Workers and the controller killed, one job that hangs, one that always fails; the others as undisturbed."""
    folder = file.parent
    small_studies.write_study(folder, [*MODELS, "poison"], seeds=[1, 2], steps=STEPS)
    text = file.read_text().replace('"hang"', '{ scheme = "hang", seeds = [1] }')
    file.write_text(text.replace('"poison"', '{ scheme = "poison", seeds = [1] }'))
    (folder / "hung").touch()
    small_studies.study(file, "--workers", "2")  # the jobs that were added
    (folder / "hung").unlink()
    killed, code = disturbed(file, KILLS, name)
    found, differing = states(file, name, f"{name}-runs"), compare(folder, "results", name)
    once, hung = small_studies.steps_once(file, f"{name}-runs"), (folder / "hung").exists()
    facts = f"{killed} workers killed, exit {code}, {found}, {differing} files differ, steps once: {once}, hung: {hung}"
    expected = found == {"done": 11, "failed": 1} and not differing and once and hung and killed == KILLS
    return RIGHT if expected else wrong(facts)


PIECE = Piece(
    "studies",
    "a study whose workers, controller or cluster node are killed, with a job that hangs and one that always fails, "
    "has the results of an undisturbed one",
    prepare,
    cases,
    run,
)
