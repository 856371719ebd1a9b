"""Flip bits of every kind of file that decides a number, one at a time; none may change a value unnoticed."""

import dataclasses
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import small_studies

from campaign.piece import SEED, Outcome, Piece, forked
from campaign.worlds import FREE, World, build
from fieldlens.core.errors import FieldlensError
from fieldlens.evaluation.result import read_evaluation
from fieldlens.models.model_folder import verify_model_folder
from fieldlens.receptive.result import read_measurement
from fieldlens.storage.checkpoints import checkpoints_in
from fieldlens.storage.folders import read_folder, verified_manifest
from fieldlens.storage.journal import Journal
from fieldlens.storage.results import read_arrays, read_result
from fieldlens.storage.run_dir import Run
from fieldlens.study.results import read_result as read_study_result

BLOCK = 500
"""Bits of one case."""
WHOLE = 4000
"""Files of up to so many bytes are flipped bit by bit; of larger ones as many bits are drawn."""


class Kind(NamedTuple):
    """A kind of file, one of them, and what a reader gets from it: a value, or an error that it is damaged."""

    name: str
    file: Path
    read: Callable[[], Any]


def prepare(folder: Path) -> dict[str, Kind]:
    world = build(folder)
    for verb in ("evaluate", "measure"):
        ended = forked(world.words(verb), folder / verb, FREE, **world.settings)
        assert ended.code == 0, ended.err
    study = small_studies.write_study(folder, ["alibi"], steps=4)
    words = ["study", str(study), "--workers", "1", "--out", str(folder / "results"), "--runs", str(folder / "runs")]
    ended = forked(words, folder / "study", FREE, **world.settings)
    assert ended.code == 0, ended.err
    journal = Journal(folder / "segments.part")
    for number in range(3):
        journal.append(bytes(range(256)) * (number + 1))
    return {kind.name: kind for kind in kinds(world)}


def kinds(world: World) -> Iterator[Kind]:
    """Every kind of file, with the reader that the commands use."""
    run = Run(world.folder / "run" / "out")
    checkpoint = checkpoints_in(run.checkpoints)[-1]
    for file in sorted(checkpoint.iterdir()):
        yield Kind(f"checkpoint, {file.name}", file, lambda: read_folder(checkpoint))
    for file in sorted(run.model.iterdir()):
        yield Kind(f"model folder, {file.name}", file, lambda: verify_model_folder(run.model))
    for name in ("config", "data", "status"):
        path = getattr(run, name)
        yield Kind(f"run, {path.name}", path, lambda path=path: run.read(path))
    yield Kind("run, metrics.jsonl", run.metrics, lambda: _whole(run.history(), 12))
    for part in ("tokens", "tokenizers"):
        folders = sorted(path for path in (world.folder / "cache" / part).iterdir() if path.is_dir())
        for number, cached in enumerate(folders, 1):
            for file in sorted(cached.iterdir()):
                name = f"cache, {part} {number}, {file.name}"
                yield Kind(name, file, lambda cached=cached: _intact(verified_manifest(cached)))
    (evaluation,) = (world.folder / "evaluate" / "out").glob("*.json")
    for file in (evaluation, evaluation.with_suffix(".npz")):
        yield Kind(f"evaluation, *{file.suffix}", file, lambda: _evaluation(evaluation))
    field = world.folder / "measure" / "out" / "receptive-field.json"
    for file in (field, field.with_suffix(".npz")):
        yield Kind(f"measure, {file.name}", file, lambda: _arrays(read_result(field)))
    yield Kind(
        "journal of a measurement", (path := world.folder / "segments.part"), lambda: _whole(Journal(path).read(), 3)
    )
    (result,) = (path for path in (world.folder / "results").iterdir() if path.is_dir())
    for file in sorted(path for path in result.iterdir() if path.is_file()):
        name = "evaluation" + file.suffix if file.name.startswith("evaluation-") else file.name
        yield Kind(f"study result, {name}", file, lambda: _study_result(result))


def _whole(records: list[Any], count: int) -> list[Any]:
    """All records; fewer mean that a reader has noticed the damage and computes the rest again."""
    if len(records) < count:
        raise FieldlensError("records are missing")
    return records


def _intact(manifest: dict[str, Any] | None) -> dict[str, Any]:
    """The manifest of the cache; without one the folder is built again."""
    if manifest is None:
        raise FieldlensError("the folder is built again")
    return manifest


def _arrays(result: tuple[dict[str, Any], dict[str, Any]]) -> Any:
    return result[0], {name: array.tobytes() for name, array in result[1].items()}


def _evaluation(path: Path) -> Any:
    result = read_evaluation(path)
    return result.about, {length: losses.numpy().tobytes() for length, losses in result.losses.items()}, result.targets


def _study_result(folder: Path) -> Any:
    result = read_study_result(folder)
    measurement = read_measurement(folder / "measurement.json")
    arrays = {path.name: _arrays(({}, read_arrays(path))) for path in sorted(folder.glob("*.npz"))}
    return result.about, arrays, measurement.about


def cases(by_name: dict[str, Kind]) -> Sequence[str]:
    return [f"{kind.name}:{block}" for kind in by_name.values() for block in range(-(-len(_bits(kind)) // BLOCK))]


def _bits(kind: Kind) -> Sequence[int]:
    size = 8 * kind.file.stat().st_size
    if size <= 8 * WHOLE:
        return range(size)
    return random.Random(f"{SEED} {kind.name}").sample(range(size), WHOLE)


def run(by_name: dict[str, Kind], case: str) -> Outcome:
    name, _, block = case.rpartition(":")
    kind = by_name[name]
    whole, value = kind.file.read_bytes(), kind.read()
    counts = {"right": 0, "harmless": 0, "wrong": 0}
    notes = set()
    for bit in _bits(kind)[int(block) * BLOCK : (int(block) + 1) * BLOCK]:
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        kind.file.write_bytes(altered)
        try:
            came_out = "harmless" if kind.read() == value else "wrong"
        except FieldlensError:
            came_out = "right"
        counts[came_out] += 1
        if came_out != "right":
            notes.add(
                f"{came_out} in {name}: {whole[max(0, bit // 8 - 12) : bit // 8 + 12]!r}"
                if came_out == "wrong"
                else f"same values, other white space or number format: {name}"
            )
    kind.file.write_bytes(whole)
    return dataclasses.replace(Outcome(notes=sorted(notes)[:5]), **counts)


PIECE = Piece(
    "flips",
    "no flipped bit in a checkpoint, run, model folder, cache, result or journal changes a number unnoticed",
    prepare,
    cases,
    run,
)
