"""What a study has brought in: its results, read from their folder and set side by side where they can be compared."""

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.compare import ALIKE, Comparison, compare
from fieldlens.evaluation.result import Evaluation, read_evaluation
from fieldlens.receptive.result import Measurement, read_measurement
from fieldlens.storage.results import read_json


@dataclass(frozen=True)
class Result:
    """What is left of one run when its work is done."""

    name: str
    about: dict[str, Any]
    evaluations: list[Evaluation]
    measurement: Measurement | None

    @property
    def recipe(self) -> dict[str, Any]:
        return self.about["recipe"]

    @property
    def diverged(self) -> bool:
        return self.about["state"] == "diverged"


def read_result(folder: Path) -> Result:
    """A result folder."""
    about = read_json(folder / "result.json")
    try:
        files = [folder / f"evaluation-{address[:8]}.json" for address in about["addresses"]["evaluations"]]
        measured = folder / "measurement.json"
        if about["state"] == "diverged":
            return Result(folder.name, about, [_diverged(about, asked) for asked in about["evaluations"]], None)
        return Result(
            folder.name,
            about,
            [read_evaluation(file) for file in files],
            read_measurement(measured) if about["addresses"]["measurement"] else None,
        )
    except (KeyError, TypeError) as error:
        raise BadInput(f"{folder} is not a whole result ({type(error).__name__}: {error})") from None


def _diverged(about: dict[str, Any], asked: dict[str, Any]) -> Evaluation:
    """In place of an evaluation of a run that diverged."""
    recipe = about["recipe"]
    model = {
        "name": recipe["scheme"], "scheme": recipe["scheme"], "recipe": recipe, "data": about["data"],
        "train_length": None,
    }  # fmt: skip
    return Evaluation({"state": "diverged", "model": model, "window": asked.get("window"), "asked": asked}, {}, [])


def read_results(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """What a results folder says of its study, and the results that are there and whole, in the study's order."""
    study, found = read_json(folder / "study.json"), []
    if study.get("kind") != "fieldlens study":
        raise BadInput(f"{folder} is no results folder of a study: its study.json is not ours")
    for job in study["jobs"]:
        with suppress(BadInput):
            found.append(read_result(folder / job["name"]))
    return study, found


@dataclass(frozen=True)
class ComparisonKey:
    """What evaluations must have in common to be compared, in words."""

    corpus: str
    words: str

    @property
    def title(self) -> str:
        return f"{self.corpus}: {self.words}"


def comparisons(results: Sequence[Result]) -> dict[ComparisonKey, Comparison]:
    """The evaluations that can be compared: those of one corpus and one question."""
    found: dict[str, list[tuple[Result, Evaluation]]] = {}
    for result in results:
        for asked, one in zip(result.about["evaluations"], result.evaluations, strict=True):
            found.setdefault(repr((result.recipe["corpus"], sorted(asked.items()))), []).append((result, one))
    questions: dict[ComparisonKey, Comparison] = {}
    for pairs in found.values():
        for alike in _alike([one for _, one in pairs]):
            if any(one.losses for one in alike):
                first = next(result for result, one in pairs if one is alike[0])
                words = _words(next(one.about["asked"] for one in alike if one.losses))
                questions[_unused(ComparisonKey(first.recipe["corpus"], words), questions)] = compare(alike)
    return questions


def _alike(evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Those with the same targets and tokens together; runs that diverged go with the first."""
    groups: dict[str, list[Evaluation]] = {}
    lost = []
    for one in evaluations:
        if not one.losses:
            lost.append(one)
            continue
        about = [one.about.get(key) for key in ALIKE] + [one.about["model"].get("dtype"), max(one.losses)]
        groups.setdefault(repr(about), []).append(one)
    found = list(groups.values())
    if found:
        first = {id(one) for one in (*lost, *found[0])}
        found[0] = [one for one in evaluations if id(one) in first]
    return found


def _words(asked: dict[str, Any]) -> str:
    words = [asked.get("protocol", "last-token")]
    words += [f"{key} {asked[key]}" for key in ("k", "stride", "window", "target_seed") if asked.get(key) is not None]
    words += [f"{asked['split']} split"] if asked.get("split", "test") != "test" else []
    longest, count = max(asked["lengths"]), asked.get("segments", 1000)
    return ", ".join([*words, f"up to {longest:,} tokens", f"{count:,} targets"]).replace("_", " ")


def _unused(question: ComparisonKey, taken: Collection[ComparisonKey]) -> ComparisonKey:
    """The same words again get a number."""
    numbers = itertools.count(2)
    found = question
    while found in taken:
        found = dataclasses.replace(question, words=f"{question.words} ({next(numbers)})")
    return found
