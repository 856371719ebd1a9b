"""The results of a study: read from their folder, verified, and grouped where they can be compared."""

import dataclasses
import itertools
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.compare import ALIKE, Comparison, compare
from fieldlens.evaluation.protocols import options as protocol_options
from fieldlens.evaluation.result import Evaluation, read_evaluation
from fieldlens.receptive.result import Measurement, read_measurement
from fieldlens.storage.records import EvaluationRecord, ModelRecord
from fieldlens.storage.sealed import read_json
from fieldlens.storage.shape import check_shape, positive
from fieldlens.study.result_folder import RECORD, read_record
from fieldlens.training.recipe import recipe_from

REQUEST = {
    "lengths": [positive], "segments?": positive, "protocol?": str, "split?": str, "method?": (str, None),
    **dict.fromkeys(("k?", "stride?", "window?"), (positive, None)), "target_seed?": int,
}  # fmt: skip
"""The shape of an evaluation request."""

SHAPE = {
    "state": str, "reason?": str, "recipe": {"scheme": str, "corpus": str, "seed": int},
    "evaluations": [REQUEST], "addresses": {"evaluations": [str], "measurement": (str, None)},
    "versions": {"fieldlens": str}, "machine?": dict, "validation?": list, "data": str,
}  # fmt: skip
"""The shape of a job's record."""


@dataclass(frozen=True)
class Result:
    """The result of one job: its record, evaluations and measurement."""

    name: str
    about: dict[str, Any]
    evaluations: list[Evaluation]
    measurement: Measurement | None

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The recipe, with the fields that were added after the result was written."""
        return dataclasses.asdict(recipe_from(self.about["recipe"]))

    @property
    def diverged(self) -> bool:
        return self.about["state"] == "diverged"


def read_result(folder: Path) -> Result:
    """A result folder, verified."""
    record = read_record(folder)
    try:
        check_shape(record, SHAPE)
        recipe_from(record["recipe"])
        names = [f"evaluation-{config_hash[:8]}.json" for config_hash in record["addresses"]["evaluations"]]
        if record["state"] == "diverged":
            return Result(folder.name, record, [_diverged(record, request) for request in record["evaluations"]], None)
        if len(names) != len(record["evaluations"]) or not set(names) <= set(record["files"]):
            raise KeyError("an evaluation is not listed")
        evaluations = [read_evaluation(folder / name) for name in names]
        for evaluation in evaluations:
            check_shape(evaluation.about, {"asked": REQUEST})
        measured = record["addresses"]["measurement"]
        measurement = read_measurement(folder / "measurement.json") if measured else None
        return Result(folder.name, record, evaluations, measurement)
    except BadInput:
        raise
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise BadInput(f"{folder} is not a complete result ({type(error).__name__}: {error})") from None


def _diverged(record: dict[str, Any], request: dict[str, Any]) -> Evaluation:
    """An evaluation without losses, for a run that diverged."""
    recipe = record["recipe"]
    model: ModelRecord = {
        "name": recipe["scheme"], "scheme": recipe["scheme"], "recipe": recipe, "data": record["data"],
        "train_length": None,
    }  # fmt: skip
    about: EvaluationRecord = {"state": "diverged", "model": model, "window": request.get("window"), "asked": request}
    return Evaluation(about, {}, [])


def read_results(folder: Path) -> tuple[dict[str, Any], list[Result]]:
    """The study file of a results folder, and its valid results in the study's order."""
    study, results = _study(folder), []
    for job in study["jobs"]:
        with suppress(BadInput):
            results.append(read_result(folder / job["name"]))
    return study, results


def rejected_results(folder: Path) -> dict[str, str]:
    """The results that exist but are not valid, by name, with the reason."""
    reasons = {}
    for job in _study(folder)["jobs"]:
        if (folder / job["name"] / RECORD).exists():
            try:
                read_result(folder / job["name"])
            except BadInput as error:
                reasons[job["name"]] = str(error)
    return reasons


def _study(folder: Path) -> dict[str, Any]:
    study = read_json(folder / "study.json")
    try:
        names = [job["name"] for job in study["jobs"]]
        valid = study["kind"] == "fieldlens study" and all(
            isinstance(name, str) and name == Path(name).name for name in names
        )
        valid = valid and all(isinstance(study[key], str) for key in ("name", "title"))
    except (KeyError, TypeError):
        valid = False
    if not valid:
        raise BadInput(f"{folder} is not the results folder of a study: its study.json is not valid")
    return study


@dataclass(frozen=True)
class ComparisonKey:
    """What a group of comparable evaluations has in common: the corpus and a description of the request."""

    corpus: str
    words: str

    @property
    def title(self) -> str:
        return f"{self.corpus}: {self.words}"


def comparisons(results: Sequence[Result]) -> dict[ComparisonKey, Comparison]:
    """The evaluations that can be compared: of the same corpus, request and targets."""
    groups: dict[str, list[tuple[Result, Evaluation]]] = {}
    for result in results:
        for request, evaluation in zip(result.about["evaluations"], result.evaluations, strict=True):
            key = repr((result.recipe["corpus"], sorted(request.items())))
            groups.setdefault(key, []).append((result, evaluation))
    compared: dict[ComparisonKey, Comparison] = {}
    for pairs in groups.values():
        for evaluations in _comparable([evaluation for _, evaluation in pairs]):
            if any(evaluation.losses for evaluation in evaluations):
                first = next(result for result, evaluation in pairs if evaluation is evaluations[0])
                request = next(evaluation.about["asked"] for evaluation in evaluations if evaluation.losses)
                label = ComparisonKey(first.recipe["corpus"], _description(request))
                compared[_unused(label, compared)] = compare(evaluations)
    return compared


def _comparable(evaluations: Sequence[Evaluation]) -> list[list[Evaluation]]:
    """Groups of evaluations with the same targets and tokens; diverged runs are added to the first group."""
    by_targets: dict[str, list[Evaluation]] = {}
    diverged = []
    for evaluation in evaluations:
        if not evaluation.losses:
            diverged.append(evaluation)
            continue
        about = [evaluation.about.get(key) for key in ALIKE]
        about += [evaluation.about["model"].get("dtype"), max(evaluation.losses)]
        by_targets.setdefault(repr(about), []).append(evaluation)
    groups = list(by_targets.values())
    if groups:
        first = {id(evaluation) for evaluation in (*diverged, *groups[0])}
        groups[0] = [evaluation for evaluation in evaluations if id(evaluation) in first]
    return groups


def _description(request: dict[str, Any]) -> str:
    """An evaluation request in words: last-token, up to 4,096 tokens, 1,000 targets."""
    words = [request.get("protocol", "last-token")]
    options = (*protocol_options(), "window", "method", "target_seed")
    words += [f"{key} {request[key]}" for key in options if request.get(key) is not None]
    words += [f"{request['split']} split"] if request.get("split", "test") != "test" else []
    longest, count = max(request["lengths"]), request.get("segments", 1000)
    return ", ".join([*words, f"up to {longest:,} tokens", f"{count:,} targets"]).replace("_", " ")


def _unused(key: ComparisonKey, taken: Collection[ComparisonKey]) -> ComparisonKey:
    """The key, with a number if it is taken."""
    numbers = itertools.count(2)
    unused = key
    while unused in taken:
        unused = dataclasses.replace(key, words=f"{key.words} ({next(numbers)})")
    return unused
