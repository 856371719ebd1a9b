"""What the study tests and the campaign share: small studies, schemes that fail, and results without their timings."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import short_training as training

from fieldlens.study.plan import Study, read_study
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

class Hang(Scheme):
    """Hangs at the first sequence that ever comes."""
    name, label, source = "hang", "Hang", "a test"
    def angles(self, positions):
        mark = Path(os.environ["HANG_MARK"])
        if positions.shape[-1] > 8 and not mark.exists():
            mark.touch()
            time.sleep(3600)
'''


def write_study(folder: Path, models: Sequence[str], seeds: Sequence[int] = (1,), steps: int = 20, **more: Any) -> Path:
    """A study of smoke runs on random words."""
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
    return read_study(str(file)), StudyPaths(file.parent / out, file.parent / runs)


def settings(folder: Path) -> dict[str, str]:
    """The environment of a study: a cache of its own, and the schemes that fail."""
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
    places = ["--out", str(folder / out), "--runs", str(folder / runs)]
    return [sys.executable, "-m", "fieldlens", "study", str(file), *places, *more]


def study(file: Path, *more: str, out: str = "results", runs: str = "runs") -> subprocess.CompletedProcess[str]:
    """Run a study to its end, whatever end that is."""
    return subprocess.run(
        command(file, *more, out=out, runs=runs),
        env={**os.environ, **settings(file.parent)},
        capture_output=True,
        text=True,
        check=False,
    )


def contents(folder: Path) -> dict[str, str]:
    """The hash of every file of a results folder but the timings, the failures and the report, which shows them."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name not in ("timings.json", "report.html", "failed.json")
    }


def steps_once(file: Path, runs: str = "runs") -> bool:
    """Whether every step of every run that was finished was logged once, in order."""
    for metrics in (file.parent / runs).glob("*/metrics.jsonl"):
        steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
        if steps != list(range(1, len(steps) + 1)):
            return False
    return True
