"""The lens: from models and a text by name to receptive fields, and what they mean for their users."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fieldlens.core.errors import BadInput
from fieldlens.data.text import Text
from fieldlens.data.tokenizer import load_tokenizer
from fieldlens.evaluation.evaluate import check as check_text
from fieldlens.evaluation.protocols import draw, eligible, protocol
from fieldlens.evaluation.result import Plan
from fieldlens.evaluation.runner import Watch
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.loading import load
from fieldlens.models.origin import Origin, find_model, unique_names
from fieldlens.models.texts import read_texts
from fieldlens.receptive.check import check, probe
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.result import Measurement, MeasureRequest
from fieldlens.receptive.runner import LAYER_SEGMENTS, GradientRunner
from fieldlens.storage.provenance import provenance

BESIDES = "also reads its tokens past its embeddings: shares leave out what comes in there"

LEAST = 3
"""Tokens that a document needs: two, and one to predict."""

LENGTH = 2048
"""Tokens, unless asked for otherwise or the model or the text has fewer."""


def measure_all(
    models: Sequence[str],
    question: MeasureRequest,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watch = lambda event: None,
) -> list[Measurement]:
    """Measure one model after another; all origins and texts are looked at first."""
    origins = [find_model(text) for text in models]
    for origin in origins:
        if origin.diverged:
            raise BadInput(f"{origin.text} is a run that diverged: it has no model to measure")
    texts = read_texts(origins, question.text, question.corpus, question.split)
    return [
        _one(origin, name, texts[origin.tokenizer], question, device, dtype, watch)
        for origin, name in zip(origins, unique_names(origins), strict=True)
    ]


def _one(
    origin: Origin,
    name: str,
    text: Text,
    question: MeasureRequest,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watch,
) -> Measurement:
    watch({"stage": name})
    model = load(origin, device, dtype, question.train_length)
    adapter = model.adapter
    targets = question.targets if question.check else 0
    length = question.length or _fitting(adapter, text, max(question.segments, targets))
    _check(adapter, text, length, question)
    spans = eligible([len(ids) for ids in text.documents], protocol("last-token"), length)
    room = sum(span.anchors for span in spans)
    if room < targets:
        raise BadInput(f"--check wants {targets} targets, and this text has room for {room}: give fewer --targets")
    anchors = draw(spans, question.segments, question.target_seed)
    gradients = GradientRunner(adapter, text, length, question, watch)
    norms_NT = gradients.norms(anchors)
    found = ReceptiveField(
        norms_NT, question.average, name, adapter.train_length, text.bos is not None, gradients.embedding_hook.reason
    )
    if gradients.embedding_hook.besides:
        watch({"warning": f"{name} {BESIDES}"})
    more = not found.status and not question.plain
    layers = gradients.layers(anchors[:LAYER_SEGMENTS]) if more else {}
    heats = gradients.heats(anchors[len(anchors) // 2], load_tokenizer(origin.tokenizer)) if more else []
    probed = checked = None
    if question.probe and not found.status:
        probed = probe(adapter, list(gradients.rows(anchors)), question.window, text.bos, watch)
    if question.check:
        asked = (question.window, question.targets, question.target_seed)
        checked = check(adapter, text, length, *asked, model.about, _within(watch))
    about = {
        "model": {**model.about, "name": name},
        **text.about,
        **({"besides": BESIDES} if gradients.embedding_hook.besides else {}),
        "asked": {
            "length": length, "segments": question.segments, "target": question.target, "average": question.average,
            "window": question.window, "target_seed": question.target_seed, "bos": text.bos,
        },
        "theoretical": theoretical(adapter, question.window, norms_NT),
        **provenance(device),
    }  # fmt: skip
    return Measurement(about, found, layers, heats, probed, checked)


def _within(watch: Watch) -> Watch:
    """For work that the estimate at the beginning has counted: it makes none of its own."""
    return lambda event: None if "estimate" in event else watch(event)


def _fitting(adapter: ModelAdapter, text: Text, segments: int) -> int:
    """The length if none was asked for: as much as model and text allow for so many segments, up to the usual."""
    room = LENGTH if adapter.limit is None else adapter.limit - (text.bos is not None)
    length = min(LENGTH, room)
    counts = [len(ids) for ids in text.documents]
    while length > 2 and sum(span.anchors for span in eligible(counts, protocol("last-token"), length)) < segments:
        length = length * 7 // 8
    return max(2, length)


def theoretical(adapter: ModelAdapter, window: int | None, norms_NT: np.ndarray) -> dict[str, Any] | None:
    """The exact theoretical receptive field Σ(w - 1) + 1 of a model with windows, and the paper's Σw.

    None where gradients say otherwise: something beside windows, a recurrence, looks farther back.
    """
    reach = adapter.reach(window)
    if reach is None or np.nan_to_num(norms_NT[:, :-reach]).any():
        return None
    if norms_NT.shape[1] <= reach:  # gradients say nothing: at least its layers must be ones that look through windows
        try:
            adapter.check_window(reach)
        except BadInput:
            return None
    widths = [min(w for w in (own, window) if w is not None) for own in adapter.windows]
    return {"exact": reach, "paper": sum(widths), "windows": widths}


def _check(adapter: ModelAdapter, text: Text, length: int, question: MeasureRequest) -> None:
    check_text(
        adapter,
        text.documents,
        Plan(protocol("last-token"), (length,), question.segments, 0, question.window, text.bos),
    )
    longest = max(len(ids) for ids in text.documents)
    if longest < LEAST:
        raise BadInput(f"this text has no document of more than {longest} tokens: at least {LEAST} are needed")
    if longest <= length:
        raise BadInput(
            f"length {length} is too long for this text: its longest document has {longest} tokens: "
            f"give at most --length {longest - 1}, or a longer text"
        )
