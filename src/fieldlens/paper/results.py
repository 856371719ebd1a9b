"""Results of a study, looked up by the paper's names for models, corpora and lengths."""

import dataclasses
import json
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.result import Evaluation
from fieldlens.paper.printed import CORPORA
from fieldlens.paper.scale import TRAINED, heading, option, scaled, spec_of, unscaled
from fieldlens.receptive.field import ReceptiveField
from fieldlens.schemes.discovery import registry
from fieldlens.study.plan import Job, Study
from fieldlens.study.results import Result, read_result
from fieldlens.study.state import StudyPaths, state_of

STAND_INS = {"arxiv": "latex", "openwebtext2": "prose", "github": "code"}
"""The corpora used in place of the paper's where those are not available."""

COMMITTED = ("paper", "paper-first")
"""Studies whose results are in the repository."""

TWO_CORPORA = ("arxiv", "openwebtext2")
ALL_CORPORA = tuple(CORPORA)


class PaperResults:
    """The complete and current results of one study, by the paper's names; stale results are treated as missing."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, folder
        self._read: dict[str, Result] = {}
        recipes = [job.recipe for job in study.whole if job.recipe.scheme == "sandwich"]
        if not recipes:
            raise BadInput(f"study '{study.name}' trains no sandwich model: it is not a study of the paper")
        self.trained, self.layers = recipes[0].length, recipes[0].layers
        first = next(job for job in study.whole if job.recipe.scheme == "sandwich")
        self.protocol: str = first.evaluations[0].get("protocol", "last-token") if first.evaluations else "last-token"

    @property
    def absent(self) -> str:
        """What to do if the results folder does not exist, as outside the repository; empty if it exists."""
        if self.folder.is_dir():
            return ""
        remedy = "run this in a clone of the repository" if self.study.name in COMMITTED else "run the study"
        return f"{self.folder} does not exist: {remedy}, or give --results FOLDER"

    @property
    def factor(self) -> float:
        """The paper's training length divided by ours."""
        return TRAINED / self.trained

    @cached_property
    def states(self) -> dict[str, str]:
        """The state of every job by name: done, stale or missing; from recorded addresses and pinned hashes alone."""
        paths = StudyPaths(self.folder, self.folder)
        states: dict[str, str] = {
            job.name: state_of(job, paths, self.study.pins, locks=False) for job in self.study.whole
        }
        trained_otherwise = {
            _without_address(path.parent.name)
            for path in self.folder.glob("*/result.json")
            if path.parent.name not in states
        }
        for name, state in states.items():
            if state not in ("done", "stale"):
                states[name] = "stale" if _without_address(name) in trained_otherwise else "missing"
        return states

    def corpus(self, name: str) -> str:
        """The corpus of this study that corresponds to one of the paper's."""
        corpora = {job.recipe.corpus for job in self.study.whole}
        return name if name in corpora else STAND_INS[name]

    @cached_property
    def corpora(self) -> tuple[str, ...]:
        """The paper's corpora, in the order in which the study runs them."""
        by_ours = {self.corpus(name): name for name in ALL_CORPORA}
        order = [by_ours[job.recipe.corpus] for job in self.study.whole if job.recipe.corpus in by_ours]
        return tuple(dict.fromkeys([*order, *ALL_CORPORA]))

    def corpora_beside(self, corpus: str) -> tuple[str, ...]:
        """The corpora to show where the paper has one: beside ArXiv also the corpus that the study runs first."""
        return tuple(dict.fromkeys((self.corpora[0], corpus))) if corpus == "arxiv" else (corpus,)

    @property
    def has_control(self) -> bool:
        """Whether the study also trains models with the paper's own distances."""
        return self.factor != 1 and bool(self.jobs(["t5"], ["arxiv"], control=True))

    def paper_label(self, corpus: str, printed: str) -> str:
        """What a cell contains: the paper's number, with its corpus if that is not the one of the row, and ours."""
        return "paper · ours" if corpus == printed else f"paper on {CORPORA[printed]} · ours"

    def corpus_label(self, name: str) -> str:
        """The paper's name of a corpus, and ours if it differs: ArXiv | latex."""
        our_name = self.corpus(name)
        return CORPORA[name] if our_name == name else f"{CORPORA[name]} | {our_name}"

    def length(self, paper: int) -> int:
        """Our length that corresponds to one of the paper's."""
        return round(paper / self.factor)

    def spec(self, model: str, control: bool = False) -> str:
        """Our spec of one of the paper's models: scaled, or with the paper's own distances as a control."""
        paper_spec = spec_of(model)
        return unscaled(paper_spec, self.trained) if control else scaled(paper_spec, self.factor, self.layers)

    def label(self, model: str) -> str:
        """A model's name in tables; with the paper's distance and ours where they differ: Δ 2 | 0."""
        paper_spec, our_spec = spec_of(model), self.spec(model)
        if model in registry():
            return model  # the paper has one model of each scheme
        return option(paper_spec) if paper_spec == our_spec else heading(paper_spec, our_spec)

    def jobs(
        self, models: Sequence[str], corpora: Sequence[str], trained: int = TRAINED, control: bool = False
    ) -> list[Job]:
        """The jobs of the given models and corpora of the paper; `trained` is a training length of the paper."""
        specs = {self.spec(model, control) for model in models}
        our_corpora = {self.corpus(name) for name in corpora}
        length = self.length(trained)
        return [
            job
            for job in self.study.whole
            if job.recipe.scheme in specs and job.recipe.corpus in our_corpora and job.recipe.length == length
        ]

    def result(self, job: Job) -> Result | None:
        """The result of a job; None unless it is done and current."""
        if self.states[job.name] != "done":
            return None
        if job.name not in self._read:
            self._read[job.name] = read_result(self.folder / job.name)
        return self._read[job.name]

    def has(self, corpus: str) -> bool:
        """Whether there is any result on one of the paper's corpora."""
        our_corpus = self.corpus(corpus)
        return any(job.recipe.corpus == our_corpus and self.states[job.name] == "done" for job in self.study.whole)

    def diverged(self) -> list[str]:
        """Names of the runs that diverged."""
        results = [(job.name, self.result(job)) for job in self.study.whole]
        return [name for name, result in results if result is not None and result.diverged]

    def results(self, model: str, corpus: str, trained: int = TRAINED, control: bool = False) -> dict[int, Result]:
        """The results of one model by seed."""
        results = [(job, self.result(job)) for job in self.jobs([model], [corpus], trained, control)]
        return {job.recipe.seed: result for job, result in results if result is not None}

    def evaluations(
        self, model: str, corpus: str, trained: int = TRAINED, control: bool = False, **criteria: Any
    ) -> dict[int, Evaluation]:
        """The first evaluation of each seed that matches the criteria; by default the study's protocol, no window."""
        evaluations = {}
        for seed, result in self.results(model, corpus, trained, control).items():
            pairs = zip(result.about["evaluations"], result.evaluations, strict=True)
            matching = [evaluation for request, evaluation in pairs if self._matches(request, criteria)]
            if matching:
                evaluations[seed] = matching[0]
        return evaluations

    def _matches(self, request: dict[str, Any], criteria: dict[str, Any]) -> bool:
        """Whether an evaluation request meets the criteria."""
        settings = {"protocol": "last-token", "window": None} | request
        defaults = {"protocol": self.protocol, "window": None}
        return all(settings.get(key) == value for key, value in (defaults | criteria).items())

    def pooled(self, model: str, corpus: str, trained: int = TRAINED) -> Evaluation | None:
        """The evaluations of all seeds that did not diverge, pooled: the mean loss of each target over seeds."""
        evaluations = [
            evaluation for evaluation in self.evaluations(model, corpus, trained).values() if evaluation.losses
        ]
        if not evaluations:
            return None
        lengths = sorted(set.intersection(*(set(evaluation.losses) for evaluation in evaluations)))
        losses = {
            length: torch.stack([evaluation.losses[length].double() for evaluation in evaluations]).mean(0)
            for length in lengths
        }
        return dataclasses.replace(evaluations[0], losses=losses)

    def fields(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, ReceptiveField]:
        """The receptive fields of a model by seed, where they are defined."""
        measurements = {seed: result.measurement for seed, result in self.results(model, corpus, trained).items()}
        return {
            seed: measurement.field
            for seed, measurement in measurements.items()
            if measurement is not None and not measurement.field.status
        }

    def field(self, model: str, corpus: str, trained: int = TRAINED) -> ReceptiveField | None:
        """The receptive field over the segments of all seeds."""
        fields = list(self.fields(model, corpus, trained).values())
        if not fields:
            return None
        return dataclasses.replace(fields[0], norms_NT=np.concatenate([field.norms_NT for field in fields]))

    def parameters(self, model: str, corpus: str) -> dict[int, int]:
        """Number of parameters by seed."""
        return {seed: result.about["parameters"] for seed, result in self.results(model, corpus).items()}

    def seconds(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, float]:
        """Training time by seed; without seeds whose time was not recorded or whose run diverged.

        On a CPU this is CPU time: wall-clock time depends on the other load of the machine.
        """
        seconds = {}
        for seed, result in self.results(model, corpus, trained).items():
            if result.diverged:
                continue
            try:
                timings = json.loads((self.folder / result.name / "timings.json").read_bytes())
                seconds[seed] = float(timings["train_cpu" if _on_cpu(result) else "train"])
            except (OSError, ValueError, KeyError, TypeError, RecursionError):
                continue
        return seconds


def _on_cpu(result: Result) -> bool:
    return result.about.get("machine", {}).get("device") == "cpu"


def _without_address(name: str) -> str:
    """Scheme, corpus and seed of a job's name, without the address of its training settings."""
    return name.rpartition("-")[0]
