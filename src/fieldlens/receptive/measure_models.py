"""Measures models by name: loads models and texts, and measures one receptive field after another."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from fieldlens.core.errors import BadInput
from fieldlens.core.events import Note, Stage, Warned, Watch, ignore
from fieldlens.core.format import format_duration
from fieldlens.data.text import Text
from fieldlens.data.tokenizer import load_tokenizer
from fieldlens.evaluation.evaluate import check as check_text
from fieldlens.evaluation.protocols import Anchor, Protocol, draw, eligible, protocol
from fieldlens.evaluation.result import Plan
from fieldlens.extension.adapters import CroppedAdapter
from fieldlens.extension.load import for_good
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.loading import load
from fieldlens.models.origin import Origin, find_model, unique_names
from fieldlens.models.texts import read_texts
from fieldlens.receptive.budget import Budget, explicit_command
from fieldlens.receptive.check import Check, candidate_windows, check, probe
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.request import TARGETS, MeasureRequest
from fieldlens.receptive.result import RULES, Measurement
from fieldlens.receptive.rounds import check_protocol, check_segments
from fieldlens.receptive.runner import LAYER_SEGMENTS, GradientRunner
from fieldlens.receptive.stages import Stages
from fieldlens.schemes.window import min_window
from fieldlens.storage.journal import Journal
from fieldlens.storage.provenance import provenance
from fieldlens.storage.records import MeasurementRecord, MeasureSettings, ModelRecord
from fieldlens.storage.sealed import digest

BESIDES = "also reads its tokens outside the embedding layer: shares do not include that path"

MIN_TOKENS = 3
"""Minimum length of a document: two context tokens and one to predict."""

LENGTH = 2048
"""Default number of context tokens, if the model and the text have as many."""

SHORTEST = 256
"""The shortest length that a budget chooses, if none is given."""

FEW_TARGETS = 300
"""A default length leaves the text at least this many targets for the check."""

JOURNAL = "measure-{}.part"
"""Name of the file that keeps the segments of an interrupted measurement."""


def measure_all(
    models: Sequence[str],
    request: MeasureRequest,
    *,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watch = ignore,
    journals: Path | None = None,
    budget: Budget | None = None,
    options: Sequence[str] = (),
) -> list[Measurement]:
    """Measure models one after another; all models and texts are checked first.

    With a budget, the numbers of segments, targets and windows are chosen to fit into it; models share it evenly.

    Finished segments are kept in the folder `journals`, from which an interrupted measurement resumes. The caller
    removes them (`remove_journals`) once it has written the result. `options` are further options of the command line,
    which the recorded command repeats.
    """
    watch(Stage("", "reading the text"))
    origins = [find_model(name) for name in models]
    for origin in origins:
        if origin.diverged:
            raise BadInput(f"{origin.text} diverged during training: there is no model to measure")
    names = unique_names(origins)
    texts = read_texts(origins, request.text, request.corpus, request.split)
    measurements = []
    for number, (origin, name) in enumerate(zip(origins, names, strict=True)):
        deadline = None
        if budget is not None:
            now = time.monotonic()
            deadline = Deadline(budget, now + (budget.end - now) / (len(origins) - number))
        # the command for one of several models does not overwrite their common report
        own = ["--out", str(journals / name)] if journals is not None and len(origins) > 1 else []
        session = _Session(device, dtype, watch, journals, deadline, [*options, *own])
        measurements.append(_measure(origin, name, texts[origin.tokenizer], request, session))
    return measurements


class Deadline(NamedTuple):
    """A budget, and when the current model must be done."""

    budget: Budget
    time: float


class _Session(NamedTuple):
    """Where models are measured, until when, and who is told about the progress."""

    device: torch.device
    dtype: torch.dtype
    watch: Watch
    journals: Path | None
    deadline: Deadline | None
    options: Sequence[str]

    @property
    def check_deadline(self) -> float | None:
        """When the check must be done; None for no limit."""
        return self.deadline.budget.check_deadline(self.deadline.time) if self.deadline else None


def _measure(origin: Origin, name: str, text: Text, request: MeasureRequest, session: _Session) -> Measurement:
    session.watch(Stage(name, "loading"))
    model = load(
        origin, session.device, session.dtype, request.train_length, on_note=lambda note: session.watch(Note(note))
    )
    if request.method is not None:
        model, name = for_good(model, request.method, text.bos), f"{name} + {request.method}"
    adapter = model.adapter
    session.watch(Stage(name))
    gradients = _runner(adapter, text, request, session)
    request, length = gradients.request, gradients.length
    stages = Stages(request, session.watch)
    gradients.watch = stages.watch()
    spans = eligible([len(ids) for ids in text.documents], protocol("last-token"), length)
    anchors = draw(spans, request.segments, request.target_seed)
    asked: MeasureSettings = {
        "length": length, "segments": request.segments, "target": request.target, "average": request.average,
        "window": request.window, "target_seed": request.target_seed, "bos": text.bos,
    }  # fmt: skip
    journal = session.journals / JOURNAL.format(_address(model.about, text, asked)) if session.journals else None
    norms_NT = gradients.norms(anchors, Journal(journal) if journal else None)
    hook = gradients.embedding_hook
    has_bos = text.bos is not None
    field = ReceptiveField(norms_NT, request.average, name, adapter.train_length, has_bos, hook.reason)
    if hook.has_other_inputs:
        session.watch(Warned(f"{name} {BESIDES}"))
    details = not field.status and not request.plain
    layers = gradients.layers(anchors[:LAYER_SEGMENTS]) if details else {}
    passage = gradients.passage(anchors[len(anchors) // 2]) if details else {}
    norms = dict(zip(anchors, norms_NT, strict=True)) | passage
    targets = gradients.targets(norms, layers, load_tokenizer(origin.tokenizer))
    probe_result = check_result = None
    if request.probe and not field.status:
        rows = list(gradients.rows(anchors))
        probe_result = probe(adapter, rows, request.window, text.bos, stages.watch("probe"))
    if request.check:
        end = session.check_deadline
        most = request if end is None else replace(request, targets=gradients.most_targets)  # the clock decides
        check_result = check(adapter, text, length, most, model.about, stages.watch("check"), journal, end)
        request = request if end is None else replace(request, targets=len(check_result.contexts.targets))
    command = explicit_command(origin.text, request, length, session.options)
    if session.deadline is not None:
        session.watch(Note(f"{name}: {command}"))
    about: MeasurementRecord = {
        "model": {**model.about, "name": name},
        **text.about,
        "asked": asked,
        "command": command,
        "targets": _targets(anchors, check_result),
        "theoretical": theoretical(adapter, request.window, norms_NT),
        "attention": mixed_attention(adapter, request.window, length),
        **provenance(session.device, adapter.kernel(gradient=True)),
    }
    if hook.has_other_inputs:
        about["besides"] = BESIDES
    means = {number: shares_NT.mean(0) for number, shares_NT in layers.items()}
    return Measurement(about, field, means, probe_result, check_result, targets)


def _runner(adapter: ModelAdapter, text: Text, request: MeasureRequest, session: _Session) -> GradientRunner:
    """A runner for the request, checked; with a budget, for as much of the request as fits into it.

    If not even the smallest request fits, a length that was not given is halved.
    """
    length, asked, speeds = request.length or _default_length(adapter, text, request), request, None
    while True:
        request = _with_targets(text, asked, length)
        _check(adapter, text, length, request)
        gradients = GradientRunner(adapter, text, length, request, session.watch)
        if session.deadline is None:
            return gradients
        budget, deadline = session.deadline
        if speeds is not None:
            gradients.speeds = speeds
        try:
            costs, speeds = gradients.costs, gradients.speeds
        except (RuntimeError, MemoryError, IndexError, ValueError):
            return gradients  # it fails again where the error is handled
        windows = candidate_windows(adapter, length, request.window) if request.check else []
        smaller, fits = budget.fit(request, costs, windows, deadline - time.monotonic())
        gradients.request = smaller
        if fits or request.length is not None or length < 2 * SHORTEST:
            if not fits:
                duration = format_duration(costs.seconds(smaller, len(smaller.windows or windows)))
                message = f"{adapter.name} needs about {duration} even for the smallest measurement at {length} tokens"
                session.watch(Warned(f"{message}: use a smaller --length or more --minutes"))
            return gradients
        length //= 2


def _targets(anchors: Sequence[Anchor], check_result: Check | None) -> dict[str, Any]:
    """The targets that were measured, as (document of the split, offset in tokens): the context is before them."""
    checked = {"check": [list(target) for target in check_result.contexts.targets]} if check_result else {}
    return {"segments": [list(anchor) for anchor in anchors], **checked}


def _address(model: ModelRecord, text: Text, asked: MeasureSettings) -> str:
    """Hash of everything that the gradients depend on."""
    weights = {key: model[key] for key in ("weights", "configuration", "dtype", "method") if key in model}
    request = {key: value for key, value in asked.items() if key != "average"}
    return digest({"rules": RULES, "model": weights, **text.about, **request})[:16]


def remove_journals(folder: Path) -> None:
    """Remove the journals of measurements whose result has been written."""
    for path in folder.glob(JOURNAL.format("*")):
        path.unlink(missing_ok=True)


def _default_length(adapter: ModelAdapter, text: Text, request: MeasureRequest) -> int:
    """The largest length up to LENGTH that the model allows and at which the text has enough segments."""
    limit = LENGTH if adapter.limit is None else adapter.limit - (text.bos is not None)
    length = min(LENGTH, limit)
    while length > 2 and (
        _available(text, protocol("last-token"), length) < request.segments or _missing(text, request, length)
    ):
        length = length * 7 // 8
    return max(2, length)


def _with_targets(text: Text, request: MeasureRequest, length: int) -> MeasureRequest:
    """The request with as many targets as the text has, if the default is more."""
    if request.targets != TARGETS:
        return request
    while request.targets > 1 and _missing(text, request, length):
        request = replace(request, targets=request.targets * 7 // 8)
    return request


def _missing(text: Text, request: MeasureRequest, length: int) -> bool:
    """Whether a text has too few targets for the check."""
    chosen = check_protocol(request.targets, length)
    return request.check and _available(text, chosen, length) < check_segments(request.targets, length) * chosen.k


def _available(text: Text, chosen: Protocol, length: int) -> int:
    """The number of targets that a text has for a protocol at this length."""
    spans = eligible([len(ids) for ids in text.documents], chosen, length)
    return sum(span.anchors * span.step for span in spans)


def theoretical(adapter: ModelAdapter, window: int | None, norms_NT: np.ndarray) -> dict[str, Any] | None:
    """The exact theoretical receptive field Σ(w - 1) + 1 of a model with windows, and the paper's Σw.

    None if gradients are nonzero beyond it, as in a model that has recurrent layers besides windows.
    """
    reach = adapter.reach(window)
    if reach is None or np.nan_to_num(norms_NT[:, :-reach]).any():
        return None
    if norms_NT.shape[1] <= reach:  # too short for gradients to decide: at least the layers must support windows
        try:
            adapter.check_window(reach)
        except BadInput:
            return None
    widths = [min(w for w in (own, window) if w is not None) for own in adapter.windows]
    return {"exact": reach, "paper": sum(widths), "windows": widths}


def mixed_attention(adapter: ModelAdapter, window: int | None, length: int) -> dict[str, Any] | None:
    """Which layers attend to the whole context, for a model that mixes them with local layers; None for others."""
    widths = [min_window(own, window) for own in adapter.windows]
    reaching = [number for number, width in enumerate(widths, 1) if width is None or width >= length]
    local = max((width for width in widths if width is not None and width < length), default=None)
    if local is None or not reaching:
        return None
    full, capped = adapter.cache_size(length, window), adapter.cache_size(length, local)
    share = (full - capped) / full * length / (length - local) if full and capped else None  # of tokens up to `local`
    return {"layers": len(widths), "global_layers": reaching, "local_window": local, "global_cache_share": share}


def _check(adapter: ModelAdapter, text: Text, length: int, request: MeasureRequest) -> None:
    """Raise BadInput if the model or the text cannot be measured at this length."""
    if isinstance(adapter, CroppedAdapter):
        raise BadInput(f"a crop reads the last {adapter.tokens} tokens only: use --length {adapter.tokens} instead")
    plan = Plan(protocol("last-token"), (length,), request.segments, window=request.window, bos=text.bos)
    check_text(adapter, text.documents, plan)
    longest = max(len(ids) for ids in text.documents)
    if longest < MIN_TOKENS:
        raise BadInput(f"the longest document of this text has {longest} tokens: at least {MIN_TOKENS} are needed")
    if longest <= length:
        raise BadInput(
            f"length {length} is too long for this text: its longest document has {longest} tokens; "
            f"use --length {longest - 1} or less, or a longer text"
        )
    if _missing(text, request, length):
        available = _available(text, check_protocol(request.targets, length), length)
        raise BadInput(
            f"--check needs {request.targets} targets, but this text has only {available}: use fewer --targets"
        )
