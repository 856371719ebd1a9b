"""Kill a command, fill the disk or fail it at every change to the disk; resumed, it ends as if nothing had happened."""

import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from campaign.piece import RIGHT, Outcome, Piece, forked, wrong
from campaign.worlds import FREE, VERBS, World, build, difference, output
from fieldlens.storage.atomic import FAILPOINT
from fieldlens.storage.checkpoints import newest_checkpoint

FAULTS = ("kill", "ENOSPC", "EIO")


class Baseline(NamedTuple):
    """A world, and for each verb the undisturbed output and its number of changes to the disk."""

    world: World
    outputs: dict[str, dict[str, Any]]
    changes: dict[str, int]


def prepare(folder: Path) -> Baseline:
    world, outputs, changes = build(folder), {}, {}
    for verb in VERBS:
        for name in (f"warm-{verb}", f"whole-{verb}"):  # the first fills the cache
            ended = forked(world.words(verb), folder / name, FREE, **world.settings)
            assert ended.code == 0, ended.err
        outputs[verb], changes[verb] = output(verb, folder / f"whole-{verb}"), ended.changes
    return Baseline(world, outputs, changes)


def cases(baseline: Baseline) -> Sequence[str]:
    return [f"{verb}:{f}:{n}" for verb, last in baseline.changes.items() for f in FAULTS for n in range(1, last + 1)]


def run(baseline: Baseline, case: str) -> Outcome:
    world, (verb, fault, number) = baseline.world, case.split(":")
    folder = world.folder / case.replace(":", "-")
    words = world.words(verb)
    try:
        struck = forked(words, folder, FREE, **world.settings, **{FAILPOINT: f"{number}:{fault}"})
        expected = -signal.SIGKILL if fault == "kill" else 4
        if struck.code != expected or (fault != "kill" and not struck.documented):
            return wrong(f"exit {struck.code}: {struck.err}")
        if verb == "train" and (newest := newest_checkpoint(folder / "out" / "checkpoints")) and newest[2]:
            return wrong(f"a damaged checkpoint was left: {newest[2]}")
        resumed = forked([*words, *(["--resume"] if verb == "train" else [])], folder, FREE, **world.settings)
        if resumed.code != 0:
            return wrong(f"resumed: exit {resumed.code}: {resumed.err}")
        differing = difference(output(verb, folder), baseline.outputs[verb])
        return RIGHT if not differing else wrong(f"resumed: these differ: {differing}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


PIECE = Piece(
    "disk",
    "training, evaluation and measurement that are killed, or meet ENOSPC or EIO, at any change to the disk end with "
    "exit code 4 (kill: the signal), and resumed with bit-identical output",
    prepare,
    cases,
    run,
)
