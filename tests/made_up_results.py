"""Made-up results of the paper's study, from a given loss and gradient share per job: in memory, or as files."""

import dataclasses
import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.request import EvalRequest
from fieldlens.evaluation.result import KIND, Evaluation
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.result import KIND as MEASUREMENT
from fieldlens.receptive.result import Measurement
from fieldlens.storage import results
from fieldlens.storage.atomic import hash_of
from fieldlens.storage.sealed import write_sealed
from fieldlens.study.plan import Job, Study, request_fields
from fieldlens.study.result_folder import RECORD
from fieldlens.study.results import Result

DOCUMENTS, TARGETS_EACH = 12, 3

Law = Callable[[Job, int, dict[str, Any]], float]
"""Mean loss of a job at a length, for an evaluation request."""
Spread = Callable[[Job, int], np.ndarray]
"""Gradient shares of a job over `length` tokens, oldest first."""


def flat(job: Job, length: int, request: dict[str, Any]) -> float:
    """The same loss everywhere."""
    return 3.0


def near(job: Job, length: int) -> np.ndarray:
    """Shares that fall off with distance, in proportion to the training length."""
    return np.exp(-np.arange(length)[::-1] * 8 / job.recipe.length)


def about_model(job: Job) -> dict[str, Any]:
    return {
        "name": job.recipe.scheme, "scheme": job.recipe.scheme, "recipe": dataclasses.asdict(job.recipe), "data": "d",
        "train_length": job.recipe.length, "dtype": "float32",
    }  # fmt: skip


def about_result(job: Job, study: Study) -> dict[str, Any]:
    return {
        "kind": "fieldlens result", "state": "done", "reason": "", "addresses": job.config_hashes, **job.to_json(),
        "text": study.pins.get(job.recipe.corpus, ""), "data": "d", "parameters": parameters(job),
        "unigram_perplexity": 500.0, "validation": [], "versions": {"fieldlens": "0"}, "machine": {},
    }  # fmt: skip


def parameters(job: Job) -> int:
    return 3_500_000 + 100 * job.recipe.scheme.startswith(("t5", "kerple"))


def made_up_evaluation(
    job: Job, request: dict[str, Any], model: dict[str, Any], law: Law, noise: float = 0.01
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The metadata and the arrays of an evaluation: mean losses by the law, varied over documents, plus noise."""
    plan = EvalRequest(None, **request_fields(request)).plan(request["lengths"], None)
    generator = np.random.default_rng([job.recipe.seed, plan.window or 0, *job.recipe.scheme.encode()])
    base = np.random.default_rng(0).normal(0, 0.3, DOCUMENTS * TARGETS_EACH)
    count = len(base)
    rows = [
        law(job, length, request) + base - base.mean() + generator.normal(0, noise, count) for length in plan.lengths
    ]
    targets = [[document, 5000 + offset] for document in range(DOCUMENTS) for offset in range(TARGETS_EACH)]
    about = {"kind": KIND, "model": model, **plan.about(), "data": {"text": "t"}, "align": "tokens", "tokenizer": "t"}
    arrays = {"losses": np.stack(rows).astype(np.float32), "targets": np.array(targets, np.int32)}
    return {**about, "segments": count}, arrays


def made_up_norms(job: Job, spread: Spread) -> np.ndarray:
    """Gradient norms of three segments."""
    assert job.measurement is not None
    shares = spread(job, job.measurement["length"])
    return np.stack([shares * (1 + 0.01 * n) for n in range(3)]).astype(np.float32)


def write_result(job: Job, study: Study, folder: Path, law: Law = flat, spread: Spread = near) -> Path:
    """Write the result of a job as the study does, without intervals, which are not read back."""
    job_folder, model = folder / job.name, about_model(job)
    for request, config_hash in zip(job.evaluations, job.config_hashes["evaluations"], strict=True):
        about, arrays = made_up_evaluation(job, request, model, law)
        counts = {"targets": DOCUMENTS * TARGETS_EACH, "documents": DOCUMENTS, "results": [], "verdict": {}}
        path = job_folder / f"evaluation-{config_hash[:8]}.json"
        results.write_result(path, {**about, **counts, "asked": request}, arrays)
    norms_NT = made_up_norms(job, spread)
    field = {"segments": len(norms_NT), "length": norms_NT.shape[1], "average": "shares", "name": model["name"]}
    field |= {"train_length": job.recipe.length, "undefined_reason": ""}
    about = {"kind": MEASUREMENT, "model": model, "theoretical": None, "probe": None, "versions": {"fieldlens": "0"}}
    about |= {"data": {"corpus": job.recipe.corpus}}
    about |= {"asked": {"length": norms_NT.shape[1], "target": "loss", "bos": None, "segments": len(norms_NT)}}
    results.write_result(job_folder / "measurement.json", {**about, "receptive_field": field}, {"norms": norms_NT})
    timings = {"train": 60.0, "evaluate": 1.0, "measure": 1.0, "train_cpu": 50.0}
    (job_folder / "timings.json").write_text(json.dumps(timings))
    hashes = {path.name: hash_of(path) for path in job_folder.iterdir() if path.name != RECORD}
    write_sealed(job_folder / RECORD, about_result(job, study) | {"files": hashes})
    return job_folder


class MadeUpResults(PaperResults):
    """Results in memory with made-up numbers, for the jobs that are `available`."""

    def __init__(
        self,
        study: Study,
        law: Law = flat,
        spread: Spread = near,
        available: Callable[[Job], bool] = lambda job: True,
        train: Callable[[Job], float] = lambda job: 100.0,
        noise: float = 0.01,
    ) -> None:
        super().__init__(study, Path("nowhere"))
        self.law, self.spread, self.available, self.train, self.noise = law, spread, available, train, noise

    @cached_property
    def states(self) -> dict[str, str]:
        return {job.name: "done" if self.available(job) else "missing" for job in self.study.whole}

    def result(self, job: Job) -> Result | None:
        if self.states[job.name] == "done" and job.name not in self._read:
            about, model = about_result(job, self.study), about_model(job)
            evaluations = []
            for request in job.evaluations:
                metadata, arrays = made_up_evaluation(job, request, model, self.law, self.noise)
                losses = dict(zip(metadata["lengths"], torch.from_numpy(arrays["losses"]), strict=True))
                targets = [Anchor(*row) for row in arrays["targets"].tolist()]
                evaluations.append(Evaluation(metadata, losses, targets))
            assert job.measurement is not None
            norms_NT = made_up_norms(job, self.spread).astype(np.float64)
            field = ReceptiveField(norms_NT, train_length=job.recipe.length, name=job.recipe.scheme)
            self._read[job.name] = Result(job.name, about, evaluations, Measurement({"model": model}, field, {}))
        return self._read.get(job.name)

    def seconds(self, model: str, corpus: str, trained: int = TRAINED, stage: str = "train") -> dict[int, float]:
        done = [job for job in self.jobs([model], [corpus], trained) if self.states[job.name] == "done"]
        return {job.recipe.seed: self.train(job) for job in done}
