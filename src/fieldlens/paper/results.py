"""The shelf: a study's results, found by the paper's own names for models, corpora and lengths."""

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
"""What stands for each of the paper's corpora where they are not at hand."""

MOST = ("arxiv", "openwebtext2")
ALL = tuple(CORPORA)


class PaperResults:
    """Results of one study that are there, whole, and what the study asks for; all others are as if they were not."""

    def __init__(self, study: Study, folder: Path) -> None:
        self.study, self.folder = study, folder
        self._read: dict[str, Result] = {}
        found = [job.recipe.length for job in study.whole if job.recipe.scheme == "sandwich"]
        if not found:
            raise BadInput(f"study '{study.name}' trains no sandwich: it is not the paper's")
        self.trained = found[0]

    @property
    def absent(self) -> str:
        """What to do where there is no folder of results at all, as outside the repository; empty if there is one."""
        if self.folder.is_dir():
            return ""
        has = "go to a clone of the repository, which has it," if self.study.name == "paper" else "run the study,"
        return f"{self.folder} is not here: {has} or give --results FOLDER"

    @property
    def factor(self) -> float:
        """How many times shorter than the paper's training length ours is."""
        return TRAINED / self.trained

    @cached_property
    def states(self) -> dict[str, str]:
        """done, stale, or missing, of every job by its name; told from recorded addresses and pinned hashes alone."""
        places = StudyPaths(self.folder, self.folder)
        found = {job.name: state_of(job, places, self.study.pins, locks=False) for job in self.study.whole}
        trained_otherwise = {
            _of(path.parent.name) for path in self.folder.glob("*/result.json") if path.parent.name not in found
        }
        return {
            name: state if state in ("done", "stale") else "stale" if _of(name) in trained_otherwise else "missing"
            for name, state in found.items()
        }

    def corpus(self, name: str) -> str:
        """The corpus of this study that stands for one of the paper's."""
        there = {job.recipe.corpus for job in self.study.whole}
        return name if name in there else STAND_INS[name]

    def corpus_label(self, name: str) -> str:
        """Both names."""
        ours = self.corpus(name)
        return CORPORA[name] if ours == name else f"{CORPORA[name]} | {ours}"

    def length(self, paper: int) -> int:
        """A length of the paper's in ours."""
        return round(paper / self.factor)

    def spec(self, model: str, control: bool = False) -> str:
        """The spec of one of the paper's models here: scaled, or with the paper's own distances as a control."""
        own = spec_of(model)
        return unscaled(own, self.trained) if control else scaled(own, self.factor)

    def label(self, model: str) -> str:
        """A model as a reader of the paper knows it; the paper's distance and ours where they differ: Δ 2 | 0."""
        there, here = spec_of(model), self.spec(model)
        if model in registry():
            return model  # the paper knows one of each
        return option(there) if there == here else heading(there, here)

    def jobs(
        self, models: Sequence[str], corpora: Sequence[str], trained: int = TRAINED, control: bool = False
    ) -> list[Job]:
        """The jobs of some of the paper's models; with the same training length in the paper's units."""
        wanted = {self.spec(model, control) for model in models}
        here = {self.corpus(name) for name in corpora}
        length = self.length(trained)
        return [
            job
            for job in self.study.whole
            if job.recipe.scheme in wanted and job.recipe.corpus in here and job.recipe.length == length
        ]

    def result(self, job: Job) -> Result | None:
        """A job's result; nothing unless it is what the study asks for."""
        if self.states[job.name] != "done":
            return None
        if job.name not in self._read:
            self._read[job.name] = read_result(self.folder / job.name)
        return self._read[job.name]

    def has(self, corpus: str) -> bool:
        """Whether any result from one of the paper's corpora is there."""
        here = self.corpus(corpus)
        return any(job.recipe.corpus == here and self.states[job.name] == "done" for job in self.study.whole)

    def diverged(self) -> list[str]:
        """The runs that diverged."""
        found = [(job.name, self.result(job)) for job in self.study.whole]
        return [name for name, one in found if one is not None and one.diverged]

    def results(self, model: str, corpus: str, trained: int = TRAINED, control: bool = False) -> dict[int, Result]:
        """The results of one model by seed."""
        found = [(job, self.result(job)) for job in self.jobs([model], [corpus], trained, control)]
        return {job.recipe.seed: one for job, one in found if one is not None}

    def evaluations(
        self, model: str, corpus: str, trained: int = TRAINED, control: bool = False, **asked: Any
    ) -> dict[int, Evaluation]:
        """Its evaluations by seed: the first by the paper's protocol, or the one with these answers."""
        found = {}
        for seed, one in self.results(model, corpus, trained, control).items():
            questions = zip(one.about["evaluations"], one.evaluations, strict=True)
            fitting = [each for question, each in questions if _fits(question, asked)]
            if fitting:
                found[seed] = fitting[0]
        return found

    def pooled(self, model: str, corpus: str, trained: int = TRAINED) -> Evaluation | None:
        """One evaluation for all seeds that did not diverge: the mean loss of each target."""
        alive = [one for one in self.evaluations(model, corpus, trained).values() if one.losses]
        if not alive:
            return None
        lengths = sorted(set.intersection(*(set(one.losses) for one in alive)))
        losses = {n: torch.stack([one.losses[n].double() for one in alive]).mean(0) for n in lengths}
        return dataclasses.replace(alive[0], losses=losses)

    def fields(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, ReceptiveField]:
        """Its receptive fields by seed, where they are defined."""
        some = {seed: one.measurement for seed, one in self.results(model, corpus, trained).items()}
        return {seed: one.field for seed, one in some.items() if one is not None and not one.field.status}

    def field(self, model: str, corpus: str, trained: int = TRAINED) -> ReceptiveField | None:
        """One receptive field for all seeds: that of all their segments."""
        fields = list(self.fields(model, corpus, trained).values())
        if not fields:
            return None
        return dataclasses.replace(fields[0], norms_NT=np.concatenate([one.norms_NT for one in fields]))

    def seconds(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, float]:
        """How long training took, by seed; nothing where it was not noted, or the run diverged and so ended early.

        On a CPU its own time counts: that of the clock tells what else the machine was doing.
        """
        found = {}
        for seed, one in self.results(model, corpus, trained).items():
            if one.diverged:
                continue
            try:
                noted = json.loads((self.folder / one.name / "timings.json").read_bytes())
                found[seed] = float(noted["train_cpu" if _on_cpu(one) else "train"])
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return found


def _on_cpu(result: Result) -> bool:
    return result.about.get("machine", {}).get("device") == "cpu"


def _fits(question: dict[str, Any], asked: dict[str, Any]) -> bool:
    """Whether a question is the one meant; without a word of it, the first without a window by the paper's protocol."""
    wanted = {"protocol": "last-token", "window": None, **asked}
    given = {"protocol": "last-token", "window": None, **question}
    return all(given.get(key) == value for key, value in wanted.items())


def _of(name: str) -> str:
    """Scheme, corpus and seed of a job, without the address of how it is trained."""
    return name.rpartition("-")[0]
