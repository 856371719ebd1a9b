"""Runs a model past its training length: stock, a crop and methods on the same targets, with gradients and a task."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.core.errors import BadInput
from fieldlens.core.events import Note, Stage, Watch, ignore
from fieldlens.core.format import slug
from fieldlens.data.text import Text
from fieldlens.evaluation.evaluate import draw_anchors
from fieldlens.evaluation.evaluate_models import Sample, stored_evaluation
from fieldlens.evaluation.extension_verdict import judge_methods
from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.retrieval import SHORTEST, Trial, make_trials
from fieldlens.extension.attach import configuration
from fieldlens.extension.discovery import build
from fieldlens.extension.load import with_method
from fieldlens.models.loading import Model, load
from fieldlens.models.origin import find_model
from fieldlens.models.texts import read_texts
from fieldlens.receptive.extend_evidence import Evidence
from fieldlens.receptive.extend_request import CROP, STOCK, ExtendRequest, usual_methods
from fieldlens.receptive.extension_result import ExtensionResult, perplexity
from fieldlens.storage.provenance import provenance
from fieldlens.storage.records import EvaluationRecord
from fieldlens.storage.sealed import digest
from fieldlens.storage.writable import check_folder


@dataclass
class _Session:
    """What the methods of one command share."""

    model: Model
    text: Text
    request: ExtendRequest
    out: Path
    watch: Watch
    anchors: list[Anchor]
    train_length: int
    trials: dict[int, list[Trial]] = field(default_factory=dict)

    @property
    def longest(self) -> int:
        return max(self.request.lengths)

    def row(self, anchor: Anchor, length: int) -> torch.Tensor:
        """Context and target of an anchor, after a BOS: (1, T + 1)."""
        ids_T = self.text.documents[anchor.document][anchor.offset - length : anchor.offset + 1].astype(np.int64)
        bos = [] if self.text.bos is None else [self.text.bos]
        return torch.from_numpy(np.concatenate([np.array(bos, np.int64), ids_T]))[None]

    def evidence(self, model: Model, total: int) -> Evidence:
        """The values of a model with a method, as far as an earlier command has computed them."""
        decides = {name: model.about.get(name) for name in ("weights", "configuration", "dtype", "method")}
        targets = [self.longest, self.train_length, self.request.target_seed, self.anchors]
        key = digest({"model": decides, "text": self.text.about, "bos": self.text.bos, "targets": targets})
        path = self.out / f"{slug(model.about['name'])}-evidence-{key[:8]}.journal"
        return Evidence(model.adapter, path, key, total, self.watch)


def extend_model(
    name: str, request: ExtendRequest, *, out: Path, device: torch.device, dtype: torch.dtype, watch: Watch = ignore
) -> ExtensionResult:
    """Compare stock, a crop to the training length and methods at lengths past the training length."""
    origin = find_model(name)
    if origin.diverged:
        raise BadInput(f"{origin.text} diverged during training: there is no model to extend")
    check_folder(out)
    text = read_texts([origin], request.text, request.corpus, request.split)[origin.tokenizer]
    watch(Stage(origin.name))
    model = load(origin, device, dtype, request.train_length, on_note=lambda note: watch(Note(note)))
    trained = model.adapter.train_length
    if trained is None:
        raise BadInput(f"the training length of {origin.name} is not known: give --train-length")
    beyond = sorted({length for length in request.lengths if length > trained})
    if not beyond:
        raise BadInput(f"no length in --lengths is past the training length {trained}")
    if request.k > (room := beyond[0] - trained + 1):
        raise BadInput(
            f"k must be at most {room}, got {request.k}: each of the last k targets of {beyond[0]} tokens needs the "
            f"training length, {trained}, before it"
        )
    specs, refused = _accepted(model, request, beyond, text.bos)
    plan = request.plan((trained, *beyond), text.bos)
    session = _Session(model, text, request, out, watch, draw_anchors(text.documents, plan), trained)
    if request.trials:
        session.trials = {
            length: make_trials(text.documents, length, trained, request.trials, request.target_seed, text.bos)
            for length in (trained, *beyond)
            if length >= SHORTEST
        }
    return ExtensionResult({**_compare(session, [trained, *beyond], specs), "refused": refused})


def _accepted(model: Model, request: ExtendRequest, beyond: list[int], bos: int | None) -> tuple[list[str], list[str]]:
    """The methods that the model takes, and why not others; BadInput for a requested one. Nothing is computed yet."""
    adapter, trained, has_bos = model.adapter, model.adapter.train_length, bos is not None
    assert trained is not None
    if adapter.limit is not None and trained + has_bos > adapter.limit:
        raise BadInput(
            f"{adapter.name} has {adapter.limit} positions, and BOS takes one: "
            f"give --train-length {adapter.limit - 1} or less"
        )
    specs, refused = [], []
    for spec in request.methods or usual_methods(trained, beyond[-1]):
        try:
            with ExitStack() as stack:
                limit = with_method(model, spec, stack, bos).adapter.limit
            if limit is not None and beyond[-1] + has_bos > limit:
                raise BadInput(
                    f"{spec} does not raise the limit of {adapter.name}, {limit} positions, to {beyond[-1]} tokens"
                )
            specs.append(spec)
        except BadInput as error:
            if request.methods:
                raise
            refused.append(str(error))
    if not specs and adapter.limit is not None and beyond[0] + has_bos > adapter.limit:
        raise BadInput(f"{adapter.name} has {adapter.limit} positions: only a crop can read {beyond[0]} tokens")
    return specs, refused


def _compare(session: _Session, lengths: list[int], specs: list[str]) -> dict[str, Any]:
    """Evaluate stock and every method, and judge them against the crop."""
    request, limit = session.request, session.model.adapter.limit
    has_bos = session.text.bos is not None
    possible = [length for length in lengths if limit is None or length + has_bos <= limit]
    evaluations = {STOCK: _evaluate(session, session.model, possible)}
    records = {STOCK: _record(session, session.model, STOCK, len(possible) == len(lengths))}
    for spec in (CROP, *specs):
        with ExitStack() as stack:
            extended = with_method(session.model, spec, stack, session.text.bos)
            session.watch(Stage(extended.about["name"]))
            if spec != CROP:
                evaluations[spec] = _evaluate(session, extended, lengths)
            elif request.k > 1:  # every target is predicted from its own last tokens, whatever the length
                evaluations[spec] = _evaluate(session, extended, lengths[1:2])
            records[spec] = _record(session, extended, spec, True)
    return _judged(session, evaluations, records)


def _judged(session: _Session, evaluations: dict[str, Evaluation], records: dict[str, Any]) -> dict[str, Any]:
    """The record of the result: rows, costs, and how they were made."""
    stock = evaluations[STOCK]
    trained = session.train_length
    cropped = evaluations.pop(CROP, None)
    # A single target has the same context in a crop as at the training length.
    crop_N = stock.quantities(trained) if cropped is None else cropped.quantities(max(cropped.losses))
    units_N, unit = stock.units()
    losses = {
        name: {length: evaluation.quantities(length) for length in evaluation.losses if length > trained}
        for name, evaluation in evaluations.items()
    }
    rows = judge_methods(losses, crop_N, units_N, session.request.margin)
    for row in rows:
        row["perplexity"] = perplexity(float(losses[row["method"]][row["length"]].mean()))
    for name, record in records.items():
        at_trained = crop_N if name == CROP else evaluations[name].quantities(trained)
        record["trained"] = perplexity(float(at_trained.mean()))
    return {
        "model": session.model.about,
        **session.text.about,
        "train_length": trained,
        "limit": session.model.adapter.limit,
        "margin": session.request.margin,
        "target_seed": session.request.target_seed,
        "k": session.request.k,
        "targets": len(stock.targets),
        "documents": len(set(stock.documents.tolist())),
        "resampled": unit,
        "crop": {"perplexity": perplexity(float(crop_N.mean())), "nll": float(crop_N.mean())},
        "results": rows,
        "methods": records,
        **provenance(session.model.adapter.device, session.model.adapter.kernel()),
    }


def _evaluate(session: _Session, model: Model, lengths: Sequence[int]) -> Evaluation:
    request = session.request
    plan = request.plan(lengths, session.text.bos)
    about: EvaluationRecord = {**session.text.about, "align": "tokens", "model": model.about, "margin": request.margin}
    if plan.longest < session.longest:  # the targets depend on lengths that are not in this plan
        about["drawn"] = digest(session.anchors)[:16]
    sample = Sample(session.anchors, None)
    return stored_evaluation(
        model.adapter, session.text, plan, about, sample, session.out, request.batch, session.watch
    )[1]


def _record(session: _Session, model: Model, spec: str, reaches: bool) -> dict[str, Any]:
    """What a method costs at the longest length, the share of gradient past the training length, and retrieval."""
    adapter, request = model.adapter, session.request
    method = None if spec == STOCK else build(spec, session.train_length)
    length = session.longest if reaches else session.train_length
    trials = {n: trials for n, trials in session.trials.items() if reaches or n <= length}
    differentiable = reaches and spec != CROP and adapter.dtype.itemsize >= 4
    rows = [session.row(anchor, length) for anchor in session.anchors[: request.gradients * differentiable]]
    evidence = session.evidence(model, 1 + len(rows) + sum(map(len, trials.values())))
    return {
        "method": None if method is None else method.about(),
        "seconds": evidence.seconds(session.row(session.anchors[0], length)) if reaches else None,
        "cache_bytes": adapter.cache_size(length) if reaches else None,
        "gradient_beyond": 0.0 if spec == CROP else evidence.gradient_beyond(rows, session.train_length),
        "retrieval": {str(n): evidence.retrieval(n, trials).to_json() for n, trials in trials.items()},
        "configuration": None if method is None else configuration(session.model.adapter, method),
    }
