"""Evaluates models by name: loads models and texts, evaluates one after another and writes result files."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from fieldlens.core.errors import BadInput
from fieldlens.core.events import Note, Stage, Watch, ignore
from fieldlens.core.format import slug
from fieldlens.data.text import Text
from fieldlens.evaluation.evaluate import address, draw_anchors, evaluate, with_train_length
from fieldlens.evaluation.protocols import Anchor, Eligible, draw
from fieldlens.evaluation.request import EvalRequest
from fieldlens.evaluation.result import KIND, Evaluation, Plan, read_evaluation
from fieldlens.extension.load import for_good
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.loading import load
from fieldlens.models.origin import Origin, find_model, unique_endings, unique_names
from fieldlens.models.texts import read_texts
from fieldlens.storage.records import EvaluationRecord, ModelRecord
from fieldlens.storage.results import write_result
from fieldlens.storage.sealed import digest
from fieldlens.storage.writable import check_folder


@dataclass(frozen=True)
class _Context:
    """Where models are computed and where their results are written."""

    out: Path
    device: torch.device
    dtype: torch.dtype
    watch: Watch


class Sample(NamedTuple):
    """Anchors in the tokens of one tokenizer, and their names in results if these are not tokens."""

    anchors: list[Anchor]
    names: list[Anchor] | None


def evaluate_all(
    models: Sequence[str],
    request: EvalRequest,
    *,
    out: Path,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watch = ignore,
) -> list[tuple[Path, Evaluation]]:
    """Evaluate models one after another. All paths and texts are checked before the first model is loaded."""
    request.plan(request.lengths, None)
    origins = [find_model(text) for text in models]
    # Runs of one scheme share its name, by which they are compared; other models get unique names.
    origins = [
        replace(origin, folder=ending) if origin.run else replace(origin, name=name)
        for origin, name, ending in zip(origins, unique_names(origins), unique_endings(origins), strict=True)
    ]
    if request.batch is not None and request.batch < 1:
        raise BadInput(f"batch must be at least 1, got {request.batch}")
    check_folder(out)
    texts = read_texts(origins, request.text, request.corpus, request.split)
    samples = _draw_samples(texts, request)
    context = _Context(out, device, dtype, watch)
    results = []
    for origin in origins:
        if origin.diverged:
            results.append(_record_diverged(origin, request, out))
        else:
            text, sample = texts[origin.tokenizer], samples[origin.tokenizer]
            results.append(_evaluate_model(origin, text, sample, request, context))
    _plot([evaluation for _, evaluation in results], out)
    return results


def _draw_samples(texts: dict[Path, Text], request: EvalRequest) -> dict[Path, Sample]:
    """Draw the anchors for each tokenizer: tokens of its own, or bytes that are eligible for all tokenizers."""
    if not texts:
        return {}
    if request.align == "tokens":
        plan = request.plan(request.lengths, None)
        return {key: Sample(draw_anchors(text.documents, plan), None) for key, text in texts.items()}
    if request.protocol != "last-token":
        raise BadInput(f"--align bytes needs --protocol last-token, got {request.protocol}")
    longest = max(request.lengths)
    ends = {key: [np.cumsum(sizes.astype(np.int64)) for sizes in text.sizes] for key, text in texts.items()}
    spans = []
    for document in range(min(len(text.documents) for text in texts.values())):
        offsets = [ends_D[document] for ends_D in ends.values()]
        if any(len(ends_T) <= longest for ends_T in offsets):
            spans.append(Eligible(0, 0))
            continue
        first = max(int(ends_T[longest - 1]) for ends_T in offsets)
        last = min(int(ends_T[-1]) for ends_T in offsets)
        spans.append(Eligible(first, max(0, last - first)))
    if not any(span.anchors for span in spans):
        raise BadInput(f"length {longest} is too long for this text: no document has more than {longest} tokens")
    names = draw(spans, request.segments, request.target_seed, "bytes")
    return {
        key: Sample([Anchor(d, int(np.searchsorted(ends_D[d], byte, side="right"))) for d, byte in names], names)
        for key, ends_D in ends.items()
    }


def _evaluate_model(
    origin: Origin, text: Text, sample: Sample, request: EvalRequest, context: _Context
) -> tuple[Path, Evaluation]:
    """Evaluate one model and write its result; a result that exists is read instead."""
    context.watch(Stage(origin.name))
    model = load(
        origin, context.device, context.dtype, request.train_length, on_note=lambda note: context.watch(Note(note))
    )
    if request.method is not None:
        model = for_good(model, request.method, text.bos)
    lengths = request.lengths, model.adapter.train_length, request.with_quarter
    plan = with_train_length(lambda chosen: request.plan(chosen, text.bos), *lengths)
    about: EvaluationRecord = {**text.about, "align": request.align, "model": model.about, "margin": request.margin}
    if sample.names is not None:  # the bytes drawn depend on all tokenizers of the command
        about["drawn"] = digest(sample.names)[:16]
    return stored_evaluation(model.adapter, text, plan, about, sample, context.out, request.batch, context.watch)


def stored_evaluation(
    adapter: ModelAdapter,
    text: Text,
    plan: Plan,
    about: EvaluationRecord,
    sample: Sample,
    out: Path,
    batch: int | None,
    watch: Watch,
) -> tuple[Path, Evaluation]:
    """Evaluate a loaded model and write its result; a result that exists is read instead."""
    key = address(about, plan)
    path = out / f"{slug(about['model']['name'])}-{plan.protocol.name}-{key[:8]}.json"
    journal = path.with_suffix(".part")
    if path.exists() and (evaluation := read_evaluation(path)).about.get("address") == key:
        interpretation: EvaluationRecord = {"model": about["model"], "margin": about["margin"]}
        if evaluation.about != {**evaluation.about, **interpretation}:  # the same numbers, but another name or margin
            evaluation = replace(evaluation, about={**evaluation.about, **interpretation})
            evaluation.save(path)
        journal.unlink(missing_ok=True)  # left by a command that was killed after it had saved its result
        return path, evaluation
    evaluation = evaluate(
        adapter,
        text.documents,
        plan,
        about={"address": key, **about},
        anchors=sample.anchors,
        sizes=text.sizes,
        names=sample.names,
        batch=batch,
        journal=journal,
        watch=watch,
    )
    evaluation.save(path)
    journal.unlink(missing_ok=True)  # only now: the result is on the disk
    return path, evaluation


def _record_diverged(origin: Origin, request: EvalRequest, out: Path) -> tuple[Path, Evaluation]:
    """Write the result of a run that diverged."""
    model: ModelRecord = {**origin.about(), "train_length": None}
    about: EvaluationRecord = {"kind": KIND, "state": "diverged", "model": model, "window": request.window}
    path = out / f"{slug(origin.name)}-diverged-{model['address'][:8]}.json"
    write_result(path, about)
    return path, Evaluation(about, {}, [])


def _plot(evaluations: Sequence[Evaluation], out: Path) -> None:
    from fieldlens.reporting import plots

    alive = [evaluation for evaluation in evaluations if evaluation.losses]
    if alive:
        panel = plots.perplexity_lines([evaluation.line() for evaluation in alive], alive[0].quantity)
        for ending in ("png", "svg"):
            plots.save(plots.figure_of(panel), out / f"perplexity.{ending}")
