"""Controls of the rules: the paper's own printed numbers, on which each must be able to hold, and shuffled lengths.

The paper prints means. What it does not print is assumed, as it describes its models: every model uses its context
below L_tr, longer training gains, documents and seeds differ a little, and receptive fields have the ERFs of the text.
"""

import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation
from fieldlens.paper.printed import cells, receptive_fields
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.receptive.field import ReceptiveField
from fieldlens.schemes.spec import parse
from fieldlens.storage.records import EvaluationRecord
from fieldlens.study.plan import Study

DOCUMENTS, TARGETS_EACH, SEGMENTS = 20, 2, 3
CONTEXT = 0.08
"""Assumed loss of halving a context within the training length, and half the gain of training on twice the length."""
DOCUMENT_NOISE, SEED_NOISE = 0.003, 0.002
Law = Callable[[str, str, float, float, dict[str, Any]], float]
"""Loss of a model on a corpus, trained on a multiple of L_tr, at a multiple of L_tr, for criteria of an evaluation."""
Spread = Callable[[str, str, int, int, int], np.ndarray]
"""Gradient shares of a model with its spec, its training length, the length measured, and the number of layers."""
EFFICIENT, MAIN, LONGER = "tab:efficient_inference", "tab:openweb-github-arxiv", "tab:extended_training_length"


def mean_loss(model: str, corpus: str, trained: float, multiple: float, criteria: dict[str, Any]) -> float:
    """The loss of a model at a multiple of L_tr: as printed, or as assumed where the paper prints nothing."""
    if multiple < trained:
        return mean_loss(model, corpus, trained, trained, criteria) + CONTEXT * math.log2(trained / multiple)
    if criteria.get("protocol") == "non-overlapping":
        return 3.0 - 0.05 * math.log2(multiple)
    if criteria.get("window"):
        return _printed(EFFICIENT, model, corpus, multiple)
    if model.startswith("sandwich:"):
        return mean_loss("sandwich", corpus, trained, multiple, criteria) + 0.02
    return _usual(model, corpus, multiple) if trained == 1 else _other_length(model, corpus, trained, multiple)


def _usual(model: str, corpus: str, multiple: float) -> float:
    """The loss of a model trained on L_tr."""
    experiments = _of_experiments(corpus)
    if (corpus, model, TRAINED) in cells(MAIN):
        return _printed(MAIN, model, corpus, min(multiple, 16))
    return _printed(f"tab:{experiments}", model, experiments, min(multiple, 16))


def _other_length(model: str, corpus: str, trained: float, multiple: float) -> float:
    """The loss of a model trained on another length."""
    experiments = _of_experiments(corpus)
    if (experiments, model, 4 * TRAINED) in cells(LONGER):
        return _printed(LONGER, model, experiments, max(multiple, 4))
    usual = _usual(model, corpus, 1)
    return usual - 2 * CONTEXT * math.log2(trained) if trained > 1 else usual + CONTEXT * (multiple > trained)


def _of_experiments(corpus: str) -> str:
    """The corpus whose three experiments are printed: there are none of GitHub."""
    return "openwebtext2" if corpus == "openwebtext2" else "arxiv"


def _printed(table: str, model: str, corpus: str, multiple: float) -> float:
    return math.log(float(cells(table)[corpus, model, round(TRAINED * multiple)].value))


def shares(model: str, spec: str, trained: int, length: int, layers: int) -> np.ndarray:
    """Gradient shares over `length` tokens, oldest first, as the paper describes them."""
    back, erfs = np.arange(length)[::-1], receptive_fields()
    name, window = parse(spec)[0].name, parse(spec)[1].get("window")
    if window:
        covered = {"window:40": 0.6, "window:80": 0.8, "window:100": 0.95}.get(model)
        erf = trained * (covered or erfs["arxiv", model] / TRAINED)
        return np.exp(-back * math.log(100) / erf) * (back <= layers * (window - 1))
    if name == "alibi":
        steep = erfs.get(("arxiv", model), 4 * TRAINED) < 4 * TRAINED
        near = np.exp(-back * 6 / trained)
        tail = np.exp(-back * math.log(100) / (1.5 * trained)) if steep else np.full(length, 0.08 / length * near.sum())
        return near * (not steep) + tail
    spread = (1.0 + back) ** -0.63
    if name == "sinusoidal":
        spread[trained - 2 : trained + 1] += 0.6 * spread.sum()
    if name == "rotary":
        spread[: length // 2] += spread.sum() * 2 / length
        spread[[length // 4, length // 4 + 35]] += 0.4 * spread.sum()  # a wavelength of heads of 32 dimensions apart
    return spread


class PrintedResults(PaperResults):
    """The paper's printed numbers, as if they were the results of a study's runs."""

    def __init__(self, study: Study, law: Law = mean_loss, spread: Spread = shares, learned: float = 0.1) -> None:
        super().__init__(study, Path("printed"))
        self.law, self.spread, self.learned = law, spread, learned

    @cached_property
    def states(self) -> dict[str, str]:
        return {job.name: "done" for job in self.study.whole}

    def diverged(self) -> list[str]:
        return []

    def seeds(self, model: str, corpus: str, trained: int) -> list[int]:
        return [job.recipe.seed for job in self.jobs([model], [corpus], trained)]

    def evaluations(
        self, model: str, corpus: str, trained: int = TRAINED, control: bool = False, **criteria: Any
    ) -> dict[int, Evaluation]:
        return {
            seed: self._evaluation(model, corpus, trained, seed, criteria)
            for seed in self.seeds(model, corpus, trained)
        }

    def _evaluation(self, model: str, corpus: str, trained: int, seed: int, criteria: dict[str, Any]) -> Evaluation:
        lengths = criteria.get("lengths") or [round(self.trained * 2.0**n) for n in range(-2, 5)]
        key = [*f"{model} {corpus} {trained} {sorted(criteria.items())}".encode()]
        noise, by_seed = np.random.default_rng(key), np.random.default_rng([seed, *key])
        offset, losses = by_seed.normal(0, SEED_NOISE), {}
        for length in lengths:
            mean = self.law(model, corpus, trained / TRAINED, length / self.trained, criteria)
            documents_G = np.repeat(noise.normal(0, DOCUMENT_NOISE, DOCUMENTS), TARGETS_EACH)
            mean += offset + by_seed.normal(0, SEED_NOISE / 10)
            losses[length] = torch.from_numpy(mean + documents_G - documents_G.mean())
        targets = [Anchor(document, offset) for document in range(DOCUMENTS) for offset in range(TARGETS_EACH)]
        about: EvaluationRecord = {
            "model": {"name": model, "train_length": trained},
            "segments": len(targets),
            "protocol": {},
        }
        return Evaluation(about, losses, targets)

    def fields(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, ReceptiveField]:
        norms_T = self.spread(model, self.spec(model), self.length(trained), self.length(4 * TRAINED), self.layers)
        seeds = self.seeds(model, corpus, trained)
        return {
            seed: ReceptiveField(np.tile(norms_T, (SEGMENTS, 1)), train_length=self.length(trained)) for seed in seeds
        }

    def _cost(self, model: str) -> float:
        """Size and training time relative to Sandwich's."""
        return 1 + self.learned * (model in ("kerple", "t5"))

    def parameters(self, model: str, corpus: str) -> dict[int, int]:
        return dict.fromkeys(self.seeds(model, corpus, TRAINED), round(1000 * self._cost(model)))

    def seconds(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, float]:
        return dict.fromkeys(self.seeds(model, corpus, trained), 100 * self._cost(model))


class ShuffledLengths(PaperResults):
    """Results in which the lengths of each document, and the positions of each field, are shuffled."""

    def __init__(self, results: PaperResults, shuffle: int = 0) -> None:
        super().__init__(results.study, results.folder)
        self.source, self.shuffle = results, shuffle

    @cached_property
    def states(self) -> dict[str, str]:
        return self.source.states

    def evaluations(
        self, model: str, corpus: str, trained: int = TRAINED, control: bool = False, **criteria: Any
    ) -> dict[int, Evaluation]:
        by_seed = self.source.evaluations(model, corpus, trained, control, **criteria)
        return {
            seed: _shuffled(evaluation, [seed, self.shuffle, *model.encode()]) for seed, evaluation in by_seed.items()
        }

    def fields(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, ReceptiveField]:
        fields = self.source.fields(model, corpus, trained)
        return {
            seed: ReceptiveField(
                np.random.default_rng(seed).permuted(field.norms_NT, axis=1), train_length=field.train_length
            )
            for seed, field in fields.items()
        }

    def parameters(self, model: str, corpus: str) -> dict[int, int]:
        return self.source.parameters(model, corpus)

    def seconds(self, model: str, corpus: str, trained: int = TRAINED) -> dict[int, float]:
        return self.source.seconds(model, corpus, trained)


def _shuffled(evaluation: Evaluation, seed: list[int]) -> Evaluation:
    """An evaluation whose losses are shuffled over lengths, in the same way for all targets of a document."""
    if not evaluation.losses:
        return evaluation
    rng, units_N = np.random.default_rng(seed), evaluation.units()[0]
    losses_LN = torch.stack([losses.double() for losses in evaluation.losses.values()]).numpy().copy()
    for unit in np.unique(units_N):
        (columns,) = np.nonzero(units_N == unit)
        losses_LN[:, columns] = losses_LN[rng.permutation(len(losses_LN))][:, columns]
    losses = dict(zip(evaluation.losses, torch.from_numpy(losses_LN), strict=True))
    return Evaluation(evaluation.about, losses, evaluation.targets, evaluation.sizes)
