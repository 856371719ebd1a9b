"""Helpers of the training tests and the campaign: a small corpus, runs as processes, hashes of their final state."""

import hashlib
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from fieldlens.storage.checkpoints import checkpoints_in
from fieldlens.storage.folders import Damaged, read_folder
from fieldlens.training.loop import train as train_here
from fieldlens.training.recipe import recipe

SMOKE = ["--preset", "smoke", "--scheme", "kerple", "--steps", "12", "--threads", "1"]


def write_corpus(folder: Path, documents: int = 40) -> Path:
    """Documents of random words, enough for a smoke run."""
    generator = random.Random(0)
    folder.mkdir(parents=True)
    words = [bytes(generator.choices(b"abcdefgh", k=generator.randint(2, 6))).decode() for _ in range(60)]
    for number in range(documents):
        text = " ".join(generator.choices(words, k=400))
        (folder / f"{number:03d}.txt").write_text(text)
    return folder


def short_runs(folder: Path, specs: Sequence[str], documents: int = 60, steps: int = 4) -> Path:
    """Train runs of a few steps, named by their schemes, with their own corpus and cache; return the folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDLENS_CACHE", str(folder / "cache"))
        corpus = write_corpus(folder / "corpus", documents)
        for spec in specs:
            train_here(recipe("smoke", scheme=spec, corpus=str(corpus), steps=steps), folder / spec)
    return folder


def command(corpus: Path, out: Path, *more: str, processes: int = 1) -> list[str]:
    """The command line of a smoke run, by default with a checkpoint every three steps."""
    if "--save-every" not in more:
        more = ("--save-every", "3", *more)
    start = [sys.executable, "-m"]
    if processes > 1:
        start += ["torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), "-m"]
    return [*start, "fieldlens", "train", *SMOKE, "--corpus", str(corpus), "--out", str(out), *more]


def environment(cache: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "FIELDLENS_CACHE": str(cache), "OMP_NUM_THREADS": "1", **more}


def train(corpus: Path, out: Path, *more: str, processes: int = 1, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run the train command and wait for it."""
    return subprocess.run(
        command(corpus, out, *more, processes=processes),
        env=environment(corpus.parent / "cache", **settings),
        capture_output=True,
        text=True,
        check=False,
    )


def start(corpus: Path, out: Path, *more: str, processes: int = 1, **settings: str) -> subprocess.Popen[bytes]:
    """Start a run in its own process group, so that all of it can be killed."""
    return subprocess.Popen(
        command(corpus, out, *more, processes=processes),
        env=environment(corpus.parent / "cache", **settings),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a run and wait for it; the workers of torchrun are in their own sessions."""
    children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False)
    for leader in (process.pid, *map(int, children.stdout.split())):
        with suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
    process.wait()


def ending(out: Path) -> dict[str, str]:
    """Hashes of the files of the last checkpoint and of the model."""
    files = read_folder(checkpoints_in(out / "checkpoints")[-1]) | {
        f"model/{name}": data for name, data in read_folder(out / "model").items()
    }
    return {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}


def logged(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def flip_passes(path: Path, bit: int) -> bool:
    """Flip one bit of a file of a checkpoint, read it and restore the file: whether the flip was accepted."""
    data = path.read_bytes()
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    path.write_bytes(changed)
    try:
        read_folder(path.parent)
    except Damaged:
        return False
    else:
        return True
    finally:
        path.write_bytes(data)
