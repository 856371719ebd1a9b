"""What the tests of the paper share: a results folder of the paper's study with made-up numbers that behave as told."""

import dataclasses
import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.evaluation.command import EvalRequest
from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import KIND, Evaluation, losses_file
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.result import KIND as MEASUREMENT
from fieldlens.receptive.result import Measurement
from fieldlens.storage.content_cache import hash_of
from fieldlens.study.plan import Job, Study, question
from fieldlens.study.results import Result

DOCUMENTS, EACH = 12, 3

Law = Callable[[Job, int, dict[str, Any]], float]
"""The mean loss of a job at a length, for a question."""
Spread = Callable[[Job, int], np.ndarray]
"""The shares of a job over so many tokens, oldest first."""


def flat(job: Job, length: int, asked: dict[str, Any]) -> float:
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


def told_evaluation(
    job: Job, asked: dict[str, Any], model: dict[str, Any], law: Law, noise: float = 0.01
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What an evaluation says of itself, and its losses: the law's, spread over documents, and a little noise."""
    plan = EvalRequest(None, **question(asked)).plan(asked["lengths"], None)
    chance = np.random.default_rng([job.recipe.seed, plan.window or 0, *job.recipe.scheme.encode()])
    base = np.random.default_rng(0).normal(0, 0.3, DOCUMENTS * EACH)
    count = len(base)
    rows = [law(job, length, asked) + base - base.mean() + chance.normal(0, noise, count) for length in plan.lengths]
    targets = [[document, 5000 + offset] for document in range(DOCUMENTS) for offset in range(EACH)]
    about = {"kind": KIND, "model": model, **plan.about(), "data": {"text": "t"}, "align": "tokens", "tokenizer": "t"}
    arrays = {"losses": np.stack(rows).astype(np.float32), "targets": np.array(targets, np.int32)}
    return {**about, "segments": count}, arrays


def told_norms(job: Job, spread: Spread) -> np.ndarray:
    """Gradient norms of three segments."""
    assert job.measurement is not None
    shares = spread(job, job.measurement["length"])
    return np.stack([shares * (1 + 0.01 * n) for n in range(3)]).astype(np.float32)


def write_result(job: Job, study: Study, folder: Path, law: Law = flat, spread: Spread = near) -> Path:
    """A whole result of a job, as the study would leave it; without intervals, which nobody reads back."""
    place, model = folder / job.name, about_model(job)
    place.mkdir(parents=True, exist_ok=True)
    for asked, address in zip(job.evaluations, job.config_hashes["evaluations"], strict=True):
        about, arrays = told_evaluation(job, asked, model, law)
        path = place / f"evaluation-{address[:8]}.json"
        counts = {"targets": DOCUMENTS * EACH, "documents": DOCUMENTS, "results": [], "verdict": {}}
        path.write_text(json.dumps({**about, **counts, "asked": asked}))
        np.savez(losses_file(path), **arrays)  # type: ignore[arg-type]
    norms_NT = told_norms(job, spread)
    field = {"segments": len(norms_NT), "length": norms_NT.shape[1], "average": "shares", "name": model["name"]}
    field |= {"train_length": job.recipe.length, "undefined_reason": ""}
    about = {"kind": MEASUREMENT, "model": model, "asked": {"bos": None}, "theoretical": None, "probe": None}
    (place / "measurement.json").write_text(json.dumps({**about, "receptive_field": field}))
    np.savez(place / "measurement.npz", norms=norms_NT)
    (place / "timings.json").write_text(json.dumps({"train": 60.0, "evaluate": 1.0, "measure": 1.0, "train_cpu": 50.0}))
    hashes = {path.name: hash_of(path) for path in place.iterdir() if path.name not in ("timings.json", "result.json")}
    (place / "result.json").write_text(json.dumps(about_result(job, study) | {"files": hashes}))
    return place


class Told(PaperResults):
    """A shelf whose results were never written: they behave as told, and only some are there."""

    def __init__(
        self,
        study: Study,
        law: Law = flat,
        spread: Spread = near,
        there: Callable[[Job], bool] = lambda job: True,
        train: Callable[[Job], float] = lambda job: 100.0,
        noise: float = 0.01,
    ) -> None:
        super().__init__(study, Path("nowhere"))
        self.law, self.spread, self.there, self.train, self.noise = law, spread, there, train, noise

    @cached_property
    def states(self) -> dict[str, str]:
        return {job.name: "done" if self.there(job) else "missing" for job in self.study.whole}

    def result(self, job: Job) -> Result | None:
        if self.states[job.name] == "done" and job.name not in self._read:
            about, model = about_result(job, self.study), about_model(job)
            evaluations = []
            for asked in job.evaluations:
                about_it, arrays = told_evaluation(job, asked, model, self.law, self.noise)
                losses = dict(zip(about_it["lengths"], torch.from_numpy(arrays["losses"]), strict=True))
                targets = [Anchor(*row) for row in arrays["targets"].tolist()]
                evaluations.append(Evaluation(about_it, losses, targets))
            assert job.measurement is not None
            norms_NT = told_norms(job, self.spread).astype(np.float64)
            field = ReceptiveField(norms_NT, train_length=job.recipe.length, name=job.recipe.scheme)
            self._read[job.name] = Result(job.name, about, evaluations, Measurement({"model": model}, field, {}))
        return self._read.get(job.name)

    def seconds(self, model: str, corpus: str, trained: int = TRAINED, stage: str = "train") -> dict[int, float]:
        found = [job for job in self.jobs([model], [corpus], trained) if self.states[job.name] == "done"]
        return {job.recipe.seed: self.train(job) for job in found}
