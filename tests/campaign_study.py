"""The long tests of studies: workers and the controller killed, poisoned and hanging jobs, a cluster's node killed.

Example: python tests/campaign_study.py
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cyclopts
import small_studies
from test_ray import ALONE, can_be_alone

MODELS = ["alibi", "sandwich", "none:window=4", "rotary", "kerple", "hang"]
STEPS = 150


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


def disturbed(file: Path, kills: int) -> tuple[int, int]:
    """Run a study through kills of workers and one of the controller: (workers killed, exit code)."""
    chance, killed = random.Random(0), set[int]()
    controller, restarted = start(file, out="disturbed", runs="disturbed-runs"), False
    while controller.poll() is None or not restarted:
        time.sleep(chance.uniform(0.5, 3.0))
        alive = [pid for pid in pids(file.parent / "disturbed-runs").values() if pid not in killed]
        if len(killed) < kills and alive:
            victim = chance.choice(alive)
            killed.add(victim)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                killed.discard(victim)
        elif not restarted and (len(killed) >= kills // 2 or controller.poll() is not None):
            controller.kill()
            controller.wait()
            restarted = True
            controller = start(file, out="disturbed", runs="disturbed-runs")
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


def main(kills: int = 4) -> None:
    """Run the campaign; print its figures.

    Parameters
    ----------
    kills
        Workers to kill.
    """
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = small_studies.write_study(folder, [*MODELS[:-1]], seeds=[1, 2], steps=STEPS)
        begin = time.monotonic()
        assert small_studies.study(file, "--workers", "1", out="one", runs="one-runs").returncode == 0
        middle = time.monotonic()
        (folder / "hung").touch()  # nothing hangs in the study that nobody disturbs
        assert small_studies.study(file, "--workers", "2").returncode == 0
        two = time.monotonic() - middle
        print(
            f"two workers against one: {two:.0f} s / {middle - begin:.0f} s = {two / (middle - begin):.2f}", flush=True
        )
        wrong += compare(folder, "one", "results")

        small_studies.write_study(folder, [*MODELS, "poison"], seeds=[1, 2], steps=STEPS)
        text = file.read_text().replace('"hang"', '{ scheme = "hang", seeds = [1] }')
        file.write_text(text.replace('"poison"', '{ scheme = "poison", seeds = [1] }'))
        small_studies.study(file, "--workers", "2")  # the jobs that were added
        (folder / "hung").unlink()
        killed, code = disturbed(file, kills)
        found = states(file, "disturbed", "disturbed-runs")
        differing = compare(folder, "results", "disturbed")
        once = small_studies.steps_once(file, "disturbed-runs")
        hung = (folder / "hung").exists()
        print(
            f"12 runs, {killed} workers killed, the controller once, one job hangs ({hung}), one is poisoned: {found}, "
            f"exit {code}, files that differ from an undisturbed study: {differing}, steps logged once: {once}",
            flush=True,
        )
        wrong += differing + (found != {"done": 11, "failed": 1}) + (not once) + (not hung) + (killed != kills)

        if can_be_alone():
            small_studies.write_study(folder, MODELS[:-1], seeds=[1], steps=STEPS)
            code = node_killed(file)
            found = states(file, "ray", "ray-runs")
            names = {path.name for path in (folder / "ray").iterdir() if path.is_dir()}
            ours, theirs = (small_studies.contents(folder / one) for one in ("ray", "results"))
            differing = sum(ours[key] != theirs.get(key) for key in ours if key.split("/")[0] in names)
            print(f"Ray, two nodes, one killed: {found}, exit {code}, files that differ: {differing}", flush=True)
            wrong += code + differing + (found != {"done": 5})
        else:
            print("Ray: no network namespace here, not run")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    cyclopts.run(main)
