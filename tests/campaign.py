"""The long tests: kill a run at random moments and at every change to the disk, fill the disk at each, flip bits.

Example: python tests/campaign.py --kills 20
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import cyclopts
import short_training as training
import torch
from rich.progress import track

import fieldlens.models.hf_export
import fieldlens.training.loop  # noqa: F401 - both loaded before the forks, which then start at once
from fieldlens import cli
from fieldlens.storage.atomic import FAILPOINT
from fieldlens.storage.checkpoints import checkpoints_in, newest_checkpoint


def same_end(corpus: Path, out: Path, whole: Path, processes: int = 1) -> bool:
    """Resume, and compare with the run that nobody disturbed."""
    done = training.train(corpus, out, "--resume", processes=processes)
    steps = [row["step"] for row in training.logged(out)]
    return done.returncode == 0 and training.ending(out) == training.ending(whole) and steps == list(range(1, 13))


def kills(corpus: Path, folder: Path, whole: Path, count: int, processes: int) -> int:
    """SIGKILL at random moments, some runs more than once; how many ended otherwise than undisturbed."""
    chance, wrong = random.Random(processes), 0
    for number in track(range(count), description=f"kills, {processes} process(es)"):
        out = folder / f"kill-{processes}-{number}"
        for _ in range(1 + number % 2):
            process = training.start(corpus, out, *(["--resume"] if out.exists() else []), processes=processes)
            time.sleep(chance.uniform(0.5, 9.0 if processes == 1 else 14.0))
            training.kill(process)
        wrong += not same_end(corpus, out, whole, processes)
    return wrong


def forked(corpus: Path, out: Path, *more: str, failpoint: str = "") -> int:
    """Train in a forked child, perhaps struck at one change to the disk; its exit code, negative for a signal."""
    child = os.fork()
    if child == 0:
        sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
        os.environ[FAILPOINT] = failpoint
        code = 0
        try:
            cli.main(training.command(corpus, out, *more)[3:])
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            code = 99
        os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def failpoints(corpus: Path, folder: Path, whole: Path, how: str) -> tuple[int, int]:
    """Strike at every change to the disk in turn: (how many there are, how many went wrong)."""
    wrong = 0
    for when in range(1, 1000):
        out = folder / f"{how}-{when}"
        code = forked(corpus, out, failpoint=f"{when}:{how}")
        if code == 0:
            return when - 1, wrong
        found = newest_checkpoint(out / "checkpoints")
        bad = code != (-signal.SIGKILL if how == "kill" else 4) or (found is not None and bool(found[2]))
        resumed = forked(corpus, out, "--resume")
        steps = [row["step"] for row in training.logged(out)]
        right = (
            not bad and resumed == 0 and training.ending(out) == training.ending(whole) and steps == list(range(1, 13))
        )
        if not right:
            print(f"{how} at change {when}: exit {code}, resumed {resumed}", flush=True)
        wrong += not right
        shutil.rmtree(out)
    raise AssertionError("a run never got through")


def flips(checkpoint: Path, count: int) -> int:
    """Flip random bits of a checkpoint's files, one at a time; how many went unnoticed."""
    chance, missed = random.Random(0), 0
    files = sorted(checkpoint.iterdir())
    for _ in track(range(count), description="bit flips"):
        path = chance.choice(files)
        missed += training.flip_passes(path, chance.randrange(path.stat().st_size * 8))
    return missed


def main(kill: int = 20, flip: int = 2000) -> None:
    """Run the campaign; print its figures.

    Parameters
    ----------
    kill
        Kills at random moments, with one process; half as many with two. Every failpoint is tried in any case.
    flip
        Bits to flip.
    """
    torch.set_num_threads(1)  # children are forked: no other thread may be alive
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["FIELDLENS_CACHE"] = str(folder / "cache")
        corpus = training.write_corpus(folder / "corpus")
        whole, whole_of_two = folder / "whole", folder / "whole-2"
        assert training.train(corpus, whole).returncode == 0
        assert training.train(corpus, whole_of_two, processes=2).returncode == 0
        wrong = kills(corpus, folder, whole, kill, 1)
        print(f"kills at random moments: {kill}, ended otherwise than undisturbed: {wrong}", flush=True)
        wrong_of_two = kills(corpus, folder, whole_of_two, kill // 2, 2)
        print(f"the same with two processes: {kill // 2}, otherwise: {wrong_of_two}", flush=True)
        wrong += wrong_of_two
        for how in ("kill", "ENOSPC", "EIO"):
            points, bad = failpoints(corpus, folder, whole, how)
            print(f"{how} at each of {points} changes to the disk: {bad} wrong", flush=True)
            wrong += bad
        missed = flips(checkpoints_in(whole / "checkpoints")[-1], flip)
        print(f"bit flips: {flip}, unnoticed: {missed}", flush=True)
    sys.exit(1 if wrong or missed else 0)


if __name__ == "__main__":
    cyclopts.run(main)
