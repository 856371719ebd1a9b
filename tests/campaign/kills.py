"""Kill training, evaluation and measurement at random moments, some of them more than once."""

import random
import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import short_training as training

from campaign.piece import RIGHT, SEED, Outcome, Piece, forked, wrong
from campaign.worlds import FREE, VERBS, World, build, difference, output

COUNTS = {"train": 40, "evaluate": 40, "measure": 40, "train with two processes": 10}


class Baseline(NamedTuple):
    """A world, and for each kind of run the undisturbed output and its seconds."""

    world: World
    outputs: dict[str, dict[str, Any]]
    seconds: dict[str, float]


def prepare(folder: Path) -> Baseline:
    world, outputs, seconds = build(folder), {}, {}
    for verb in VERBS:
        start = time.monotonic()
        ended = forked(world.words(verb), folder / f"whole-{verb}", FREE, **world.settings)
        assert ended.code == 0, ended.err
        outputs[verb], seconds[verb] = output(verb, folder / f"whole-{verb}"), time.monotonic() - start
    two = folder / "whole-two" / "out"
    start = time.monotonic()
    assert training.train(folder / "corpus", two, processes=2).returncode == 0
    outputs["train with two processes"] = output("train", two.parent)
    seconds["train with two processes"] = time.monotonic() - start
    return Baseline(world, outputs, seconds)


def cases(_: Baseline) -> Sequence[str]:
    return [f"{kind}:{number}" for kind, count in COUNTS.items() for number in range(count)]


def run(baseline: Baseline, case: str) -> Outcome:
    kind, chance = case.split(":", maxsplit=1)[0], random.Random(f"{SEED} {case}")
    folder = baseline.world.folder / case.replace(":", "-").replace(" ", "-")
    kills = chance.choice((1, 1, 2, 3))
    try:
        if kind == "train with two processes":
            ended = _two_processes(baseline, folder, chance, kills)
        else:
            ended = _one_process(baseline, kind, folder, chance, kills)
        if ended:
            return wrong(ended)
        verb = "train" if kind.startswith("train") else kind
        differing = difference(output(verb, folder), baseline.outputs[kind])
        return RIGHT if not differing else wrong(f"resumed: these differ: {differing}")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _one_process(baseline: Baseline, verb: str, folder: Path, chance: random.Random, kills: int) -> str:
    words, settings = baseline.world.words(verb), baseline.world.settings
    resume = ["--resume"] if verb == "train" else []
    for _ in range(kills):
        after = chance.uniform(0, baseline.seconds[verb])
        forked([*words, *(resume if (folder / "out").exists() else [])], folder, FREE, kill_after=after, **settings)
    ended = forked([*words, *resume], folder, FREE, **settings)
    return "" if ended.code == 0 else f"resumed: exit {ended.code}: {ended.err}"


def _two_processes(baseline: Baseline, folder: Path, chance: random.Random, kills: int) -> str:
    corpus, out = baseline.world.folder / "corpus", folder / "out"
    for _ in range(kills):
        process = training.start(corpus, out, *(["--resume"] if out.exists() else []), processes=2)
        time.sleep(chance.uniform(0.5, baseline.seconds["train with two processes"]))
        training.kill(process)
    done = training.train(corpus, out, "--resume", processes=2)
    return "" if done.returncode == 0 else f"resumed: exit {done.returncode}: {done.stderr}"


PIECE = Piece(
    "kills", "commands that are killed at random moments end, resumed, with bit-identical output", prepare, cases, run
)
