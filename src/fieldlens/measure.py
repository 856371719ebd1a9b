"""The lens: from models and a text by name to receptive fields, and what they mean for their users."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from fieldlens.advice import check, probe
from fieldlens.batches import Watch
from fieldlens.errors import BadInput
from fieldlens.evaluate import Text, read_texts
from fieldlens.evaluation import Plan
from fieldlens.gradients import LAYER_SEGMENTS, Gradients
from fieldlens.measurement import Measurement, Question
from fieldlens.models import Origin, find, load, tell_apart
from fieldlens.protocols import draw, eligible, protocol
from fieldlens.receptive import ReceptiveField
from fieldlens.results import provenance
from fieldlens.scoring import check as check_text
from fieldlens.subject import Subject
from fieldlens.tokenizer import load_tokenizer

BESIDES = "also reads its tokens past its embeddings: shares leave out what comes in there"

LEAST = 3
"""Tokens that a document needs: two, and one to predict."""

LENGTH = 2048
"""Tokens, unless asked for otherwise or the model or the text has fewer."""


def measure_all(
    models: Sequence[str],
    question: Question,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watch = lambda event: None,
) -> list[Measurement]:
    """Measure one model after another; all origins and texts are looked at first."""
    origins = [find(text) for text in models]
    for origin in origins:
        if origin.diverged:
            raise BadInput(f"{origin.text} is a run that diverged: it has no model to measure")
    texts = read_texts(origins, question.text, question.corpus, question.split)
    return [
        _one(origin, name, texts[origin.tokenizer], question, device, dtype, watch)
        for origin, name in zip(origins, tell_apart(origins), strict=True)
    ]


def _one(
    origin: Origin, name: str, text: Text, question: Question, device: torch.device, dtype: torch.dtype, watch: Watch
) -> Measurement:
    watch({"stage": name})
    model = load(origin, device, dtype, question.train_length)
    subject = model.subject
    targets = question.targets if question.check else 0
    length = question.length or _fitting(subject, text, max(question.segments, targets))
    _check(subject, text, length, question)
    spans = eligible([len(ids) for ids in text.documents], protocol("last-token"), length)
    room = sum(span.anchors for span in spans)
    if room < targets:
        raise BadInput(f"--check wants {targets} targets, and this text has room for {room}: give fewer --targets")
    anchors = draw(spans, question.segments, question.target_seed)
    gradients = Gradients(subject, text, length, question, watch)
    norms_NT = gradients.norms(anchors)
    found = ReceptiveField(
        norms_NT, question.average, name, subject.train_length, text.bos is not None, gradients.seam.reason
    )
    if gradients.seam.besides:
        watch({"warning": f"{name} {BESIDES}"})
    more = not found.status and not question.plain
    layers = gradients.layers(anchors[:LAYER_SEGMENTS]) if more else {}
    heats = gradients.heats(anchors[len(anchors) // 2], load_tokenizer(origin.tokenizer)) if more else []
    probed = checked = None
    if question.probe and not found.status:
        probed = probe(subject, list(gradients.rows(anchors)), question.window, text.bos, watch)
    if question.check:
        asked = (question.window, question.targets, question.target_seed)
        checked = check(subject, text, length, *asked, model.about, _within(watch))
    about = {
        "model": {**model.about, "name": name},
        **text.about,
        **({"besides": BESIDES} if gradients.seam.besides else {}),
        "asked": {
            "length": length, "segments": question.segments, "target": question.target, "average": question.average,
            "window": question.window, "target_seed": question.target_seed, "bos": text.bos,
        },
        "theoretical": theoretical(subject, question.window, norms_NT),
        **provenance(device),
    }  # fmt: skip
    return Measurement(about, found, layers, heats, probed, checked)


def _within(watch: Watch) -> Watch:
    """For work that the estimate at the beginning has counted: it makes none of its own."""
    return lambda event: None if "estimate" in event else watch(event)


def _fitting(subject: Subject, text: Text, segments: int) -> int:
    """The length if none was asked for: as much as model and text allow for so many segments, up to the usual."""
    room = LENGTH if subject.limit is None else subject.limit - (text.bos is not None)
    length = min(LENGTH, room)
    counts = [len(ids) for ids in text.documents]
    while length > 2 and sum(span.anchors for span in eligible(counts, protocol("last-token"), length)) < segments:
        length = length * 7 // 8
    return max(2, length)


def theoretical(subject: Subject, window: int | None, norms_NT: np.ndarray) -> dict[str, Any] | None:
    """The exact theoretical receptive field Σ(w - 1) + 1 of a model with windows, and the paper's Σw.

    None where gradients say otherwise: something beside windows, a recurrence, looks farther back.
    """
    reach = subject.reach(window)
    if reach is None or np.nan_to_num(norms_NT[:, :-reach]).any():
        return None
    if norms_NT.shape[1] <= reach:  # gradients say nothing: at least its layers must be ones that look through windows
        try:
            subject.check_window(reach)
        except BadInput:
            return None
    widths = [min(w for w in (own, window) if w is not None) for own in subject.windows]
    return {"exact": reach, "paper": sum(widths), "windows": widths}


def _check(subject: Subject, text: Text, length: int, question: Question) -> None:
    check_text(
        subject,
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
