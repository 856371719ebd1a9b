"""Helpers of the study tests and the campaign: small studies, faulty schemes, and results without their timings."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import short_training as training

from fieldlens.storage.atomic import hash_of
from fieldlens.storage.sealed import digest, read_sealed, write_sealed
from fieldlens.study.plan import Study, read_study
from fieldlens.study.result_folder import RECORD
from fieldlens.study.state import StudyPaths

FAULTY = '''
import os, time
from pathlib import Path
from fieldlens.schemes import Scheme

class Poison(Scheme):
    """Fails at the first sequence."""
    name, label, source = "poison", "Poison", "a test"
    def angles(self, positions):
        if positions.shape[-1] > 8:
            raise RuntimeError("poisoned")
    def bias(self, distances):
        return -distances.double()[None]

class Hang(Scheme):
    """Hangs at the very first sequence."""
    name, label, source = "hang", "Hang", "a test"
    def angles(self, positions):
        mark = Path(os.environ["HANG_MARK"])
        if positions.shape[-1] > 8 and not mark.exists():
            mark.touch()
            time.sleep(3600)
    def bias(self, distances):
        return -distances.double()[None]
'''


def write_study(folder: Path, models: Sequence[str], seeds: Sequence[int] = (1,), steps: int = 20, **more: Any) -> Path:
    """Write a study of smoke runs on random words; return its file."""
    if not (folder / "words").exists():
        training.write_corpus(folder / "words")
    lengths = more.get("lengths", [16, 32, 64])
    (folder / "small.toml").write_text(
        f'title = "A small study"\npreset = "smoke"\ncorpora = ["words"]\nseeds = {list(seeds)}\n'
        f"models = {json.dumps(list(models))}\n[recipe]\nsteps = {steps}\nbpe = 300\n"
        f"[evaluate]\nlengths = {lengths}\nsegments = 12\n[measure]\nlength = 48\nsegments = 3\n"
    )
    return folder / "small.toml"


def opened(file: Path, out: str = "results", runs: str = "runs") -> tuple[Study, StudyPaths]:
    """The study of a file, and its folders."""
    return read_study(str(file)), StudyPaths(file.parent / out, file.parent / runs)


def settings(folder: Path) -> dict[str, str]:
    """The environment of a study: its own cache, and the faulty schemes."""
    plugin = folder / "faulty.py"
    plugin.write_text(FAULTY)
    return {
        "FIELDLENS_CACHE": str(folder / "cache"),
        "FIELDLENS_PLUGINS": str(plugin),
        "HANG_MARK": str(folder / "hung"),
        "OMP_NUM_THREADS": "1",
    }


def command(file: Path, *more: str, out: str = "results", runs: str = "runs") -> list[str]:
    folder = file.parent
    paths = ["--out", str(folder / out), "--runs", str(folder / runs)]
    return [sys.executable, "-m", "fieldlens", "study", str(file), *paths, *more]


def study(file: Path, *more: str, out: str = "results", runs: str = "runs") -> subprocess.CompletedProcess[str]:
    """Run the study command and wait for it."""
    return subprocess.run(
        command(file, *more, out=out, runs=runs),
        env={**os.environ, **settings(file.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file of a results folder, without what may differ: timings, failures and the report."""
    return {
        str(path.relative_to(folder)): _untimed_record(path) if path.name == RECORD else hash_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timings.json", "report.html", "failed.json")
    }


def _untimed_record(path: Path) -> str:
    """The hash of a record without the hash of the timings."""
    record = read_sealed(path)
    return digest(
        record | {"files": {name: value for name, value in record["files"].items() if name != "timings.json"}}
    )


def rewrite_record(folder: Path, **changes: Any) -> None:
    """Write the record of a result again, with changes, its seal and the hashes that its files have now."""
    record = read_sealed(folder / RECORD) | changes
    files = {name: hash_of(folder / name) for name in record["files"]}
    write_sealed(folder / RECORD, record | {"files": files})


def steps_once(file: Path, runs: str = "runs") -> bool:
    """Whether every run logged every step once, in order."""
    for metrics in (file.parent / runs).glob("*/metrics.jsonl"):
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        if steps != list(range(1, len(steps) + 1)):
            return False
    return True
