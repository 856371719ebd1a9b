"""The lens: from models and a text by name to receptive fields, and what they mean for their users."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor

from fieldlens.advice import Check, advise, check, coverage, probe
from fieldlens.batches import Watch
from fieldlens.corpus import SPLITS
from fieldlens.effort import SHARE, backward, forward, free_memory, out_of_memory
from fieldlens.errors import BadInput, NoMemory, unknown
from fieldlens.evaluate import Text, read_file, read_text
from fieldlens.evaluation import Plan
from fieldlens.influence import Seam, Target, layers_of, seam
from fieldlens.models import Origin, find, load
from fieldlens.protocols import Anchor, draw, eligible, protocol
from fieldlens.receptive import Average, ReceptiveField
from fieldlens.results import provenance, read_arrays, read_json, write_arrays, write_json
from fieldlens.schemes import check_window
from fieldlens.scoring import check as check_text
from fieldlens.subject import Subject
from fieldlens.tokenizer import load_tokenizer

LENGTH = 2048
"""Tokens, unless asked for otherwise or the model or the text has fewer."""

SHORT = 128
"""Tokens of the text that the estimate of time is made from."""

TRIED = 0.5
"""Seconds in which a whole text is tried instead: in small models a short one is mostly overhead."""

LAYERS, LAYER_SEGMENTS = 12, 2
"""So many layers at most are measured, evenly from the first to the last, on so many segments."""
HEAT_TARGETS = 8
HEAT_TOKENS = 240
HEAT_STEP = 24
KIND = "fieldlens measurement"
RULES = 1
"""Which segments are drawn and what is computed of them; a change makes another measurement."""


@dataclass(frozen=True)
class Question:
    """What `fieldlens measure` was asked."""

    corpus: str | None = None
    text: Path | None = None
    length: int | None = None
    segments: int = 20
    target: Target = "log-likelihood"
    average: Average = "shares"
    window: int | None = None
    plain: bool = False
    """Without layers and heat maps."""
    probe: bool = False
    check: bool = False
    targets: int = 200
    target_seed: int = 0
    train_length: int | None = None
    split: str = "test"

    def __post_init__(self) -> None:
        for what in ("segments", "targets"):
            if getattr(self, what) < 1:
                raise BadInput(f"{what} is {getattr(self, what)}: at least 1 is needed")
        if self.length is not None and self.length < 2:
            raise BadInput(f"length is {self.length}: at least 2 is needed")
        if self.corpus is not None and self.text is not None:
            raise BadInput("give either --text or --corpus")
        choices = (("target", get_args(Target)), ("average", get_args(Average)), ("split", SPLITS))
        for what, allowed in choices:
            if getattr(self, what) not in allowed:
                raise unknown(what, getattr(self, what), allowed)
        check_window(self.window)


@dataclass(frozen=True)
class Heat:
    """A text before one target, and the share of each of its last tokens."""

    tokens: list[str]
    shares: list[float]
    target: str
    earlier: float
    """The share of the tokens before those."""


@dataclass(frozen=True)
class Measurement:
    """What the lens found of one model."""

    about: dict[str, Any]
    field: ReceptiveField
    layers: dict[int, np.ndarray]
    """Shares of the output of some layers, counted from 1, at the last position, oldest token first."""
    heats: list[Heat] = dataclasses.field(default_factory=list)
    probe: dict[str, Any] | None = None
    check: Check | None = None

    @property
    def name(self) -> str:
        return self.about["model"]["name"]

    @property
    def spec(self) -> str | None:
        return self.about["model"]["scheme"]

    def layer_fields(self) -> dict[int, ReceptiveField]:
        """The receptive fields of some layers' outputs, where they are defined."""
        fields = {number: ReceptiveField(shares_T[None].copy()) for number, shares_T in self.layers.items()}
        return {number: one for number, one in fields.items() if not one.status}

    def to_json(self) -> dict[str, Any]:
        layers = [
            {"layer": number, "erf": {f"{level:g}": one.erf(level) for level in (0.5, 0.9, 0.99)}}
            for number, one in self.layer_fields().items()
        ]
        return {
            **self.about,
            "kind": KIND,
            "receptive_field": self.field.to_json(),
            "coverage": coverage(self.field),
            "layers": layers,
            "probe": self.probe,
            "check": self.check.to_json() if self.check else None,
            "advice": advise(self.field, self.about["theoretical"], self.check),
        }


def save_measurement(one: Measurement, path: Path) -> None:
    """Write a JSON file, and the norms beside it; heat maps and the evaluations of a check are left out."""
    write_json(path, one.to_json())
    layers = {f"layer_{number}": shares_T.astype(np.float16) for number, shares_T in one.layers.items()}
    write_arrays(path.with_suffix(".npz"), {"norms": one.field.norms_NT.astype(np.float32), **layers})


def read_measurement(path: Path) -> Measurement:
    """A measurement that was saved."""
    about = read_json(path)
    if about.get("kind") != KIND:
        raise BadInput(f"{path} is not the result of a measurement")
    try:
        field, arrays = about["receptive_field"], read_arrays(path.with_suffix(".npz"))
        norms_NT = arrays["norms"].astype(np.float64)
        bos = about["asked"]["bos"] is not None
        if norms_NT.shape != (field["segments"], field["length"] + bos):
            raise ValueError(f"norms of the shape {norms_NT.shape}, not {field['segments']} × {field['length'] + bos}")
        found = ReceptiveField(
            norms_NT, field["average"], field["name"], field["train_length"], bos, field["undefined_reason"]
        )
        wide = {name: array.astype(np.float64) for name, array in arrays.items() if name.startswith("layer_")}
        layers = {int(name[6:]): shares_T for name, shares_T in wide.items()}
        return Measurement(about, found, layers, probe=about["probe"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        raise BadInput(f"{path} is not a whole result of a measurement ({type(error).__name__}: {error})") from None


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
    texts = {origin.tokenizer: _text(question, origin) for origin in origins}
    names = [origin.name for origin in origins]
    called = [
        origin.name if names.count(origin.name) == 1 else f"{origin.name} ({origin.folder})" for origin in origins
    ]
    return [
        _one(origin, name, texts[origin.tokenizer], question, device, dtype, watch)
        for origin, name in zip(origins, called, strict=True)
    ]


def _text(question: Question, origin: Origin) -> Text:
    if question.text is not None:
        return read_file(question.text, origin.tokenizer)
    own = origin.about().get("recipe", {}).get("corpus")
    return read_text(question.corpus or own or "stdlib", question.split, origin.tokenizer)


def _one(
    origin: Origin, name: str, text: Text, question: Question, device: torch.device, dtype: torch.dtype, watch: Watch
) -> Measurement:
    watch({"stage": name})
    model = load(origin, device, dtype, question.train_length)
    subject = model.subject
    length = question.length or _fitting(subject, text, question.segments)
    _check(subject, text, length, question)
    spans = eligible([len(ids) for ids in text.documents], protocol("last-token"), length)
    anchors = draw(spans, question.segments, question.target_seed)
    work = _Work(subject, text, length, question, watch)
    norms_NT = work.norms(anchors)
    found = ReceptiveField(
        norms_NT, question.average, name, subject.train_length, text.bos is not None, work.seam.reason
    )
    more = not found.status and not question.plain
    layers = work.layers(anchors[:LAYER_SEGMENTS]) if more else {}
    heats = work.heats(anchors[len(anchors) // 2], load_tokenizer(origin.tokenizer)) if more else []
    probed = checked = None
    if question.probe:
        probed = probe(subject, list(work.rows(anchors)), question.window, text.bos, watch)
    if question.check:
        asked = (question.window, question.targets, question.target_seed)
        checked = check(subject, text, length, *asked, model.about, _within(watch))
    about = {
        "model": {**model.about, "name": name},
        **text.about,
        "asked": {
            "length": length, "segments": question.segments, "target": question.target, "average": question.average,
            "window": question.window, "target_seed": question.target_seed, "bos": text.bos,
        },
        "theoretical": theoretical(subject, question.window),
        **provenance(device),
    }  # fmt: skip
    return Measurement(about, found, layers, heats, probed, checked)


def _within(watch: Watch) -> Watch:
    """For work that the estimate at the beginning has counted: it makes none of its own."""
    return lambda event: None if "estimate" in event else watch(event)


def _fitting(subject: Subject, text: Text, segments: int) -> int:
    """The length if none was asked for: as much as model and text allow for so many segments, up to the usual."""
    length = min(LENGTH, (subject.limit or LENGTH) - (subject.limit is not None and text.bos is not None))
    counts = [len(ids) for ids in text.documents]
    while length > 2 and sum(span.anchors for span in eligible(counts, protocol("last-token"), length)) < segments:
        length = length * 7 // 8
    return max(2, length)


def theoretical(subject: Subject, window: int | None) -> dict[str, Any] | None:
    """The exact theoretical receptive field Σ(w - 1) + 1 of a model with windows, and the paper's Σw."""
    reach = subject.reach(window)
    if reach is None:
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
    if longest <= length:
        raise BadInput(
            f"length {length} is too long for this text: its longest document has {longest} tokens: "
            f"give at most --length {longest - 1}, or a longer text"
        )


class _Work:
    """The gradients of one model on one text."""

    def __init__(self, subject: Subject, text: Text, length: int, question: Question, watch: Watch) -> None:
        self.subject, self.text, self.length, self.question, self.watch = subject, text, length, question, watch
        room = SHARE * free_memory(subject.device)
        heavy = backward(subject, length, checkpointing=False).bytes > room
        self.seam: Seam = seam(subject, checkpointing=heavy)
        effort = backward(subject, length, self.seam.checkpointing)
        self.batch = max(1, min(8, int(room / effort.bytes), 4096 // length))
        self.memory = self.batch * effort.bytes
        count = len(layers_of(subject))
        self.layers_chosen = sorted({round(n) for n in np.linspace(0, count - 1, min(LAYERS, count))}) if count else []
        # in gradients: a layer's gradient costs as much as lies below it
        self.layer_cost = 1 + sum((number + 1) / count for number in self.layers_chosen)
        more = HEAT_TARGETS + min(LAYER_SEGMENTS, question.segments) * self.layer_cost
        self.total = question.segments + (0 if question.plain else more)
        self.done = 0.0

    def rows(self, anchors: Sequence[Anchor]) -> Iterator[Tensor]:
        """Context and target of each anchor, one row at a time: (1, T + 1)."""
        for anchor in anchors:
            yield self._row(anchor, self.length)

    def _row(self, anchor: Anchor, length: int) -> Tensor:
        ids = self.text.documents[anchor.document][max(0, anchor.offset - length) : anchor.offset + 1].astype(np.int64)
        head = [self.text.bos] if self.text.bos is not None else []
        return torch.from_numpy(np.concatenate([np.array(head, np.int64), ids]))[None]

    def norms(self, anchors: Sequence[Anchor]) -> np.ndarray:
        """Gradient norms of every segment: (N, T)."""
        rows = list(self.rows(anchors))
        found: list[Tensor] = []
        try:
            self._estimate()
        except (RuntimeError, MemoryError, IndexError, ValueError) as error:
            self._smaller(error, begun=False)
        while len(found) < len(rows):
            some = rows[len(found) : len(found) + (1 if not found else self.batch)]
            try:
                found += self.seam.norms(torch.cat(some), self.question.target, self.question.window)
            except (RuntimeError, MemoryError, IndexError, ValueError) as error:
                self._smaller(error, bool(found))
                continue
            self._advance(len(some), "gradients")
        return torch.stack(found).numpy()

    def _estimate(self) -> None:
        """Before starting: what a gradient takes, of a short text unless a whole one is as good as free, for all."""
        each = backward(self.subject, self.length, self.seam.checkpointing).operations
        rate = self._rate(min(SHORT, self.length))
        if each / rate < TRIED:
            rate = self._rate(self.length)
        once = forward(self.subject, self.length, 1, self.question.window).operations
        asked = self.question
        # contexts that halve take twice the longest together; windows, as many as halvings, the longest once each
        extra = once * (2 * asked.segments * asked.probe + (2 + self.length.bit_length()) * asked.targets * asked.check)
        self.watch({"estimate": (self.total * each + extra) / rate, "memory": self.memory})

    def _rate(self, tokens: int) -> float:
        """Operations per second in a gradient of a text of so many tokens."""
        row = torch.zeros(1, tokens + 1, dtype=torch.long)
        seconds = float("inf")
        for _ in range(2):  # the first call warms up
            start = time.perf_counter()
            self.seam.norms(row, self.question.target, self.question.window)
            seconds = min(seconds, time.perf_counter() - start)
        self.seam.reason = ""  # this text is nobody's
        return backward(self.subject, tokens, self.seam.checkpointing).operations / seconds

    def _smaller(self, error: Exception, begun: bool) -> None:
        """After a failure: try with less memory, or say what cannot be done."""
        if not out_of_memory(error):
            if begun or isinstance(error, BadInput):
                raise error
            said = " ".join(str(error).split())[:200]
            raise BadInput(f"{self.subject.name} cannot take {self.length} tokens ({said})") from error
        if self.batch > 1:
            self.batch = 1
        elif not self.seam.checkpointing and (lighter := seam(self.subject, checkpointing=True)).checkpointing:
            self.seam = lighter
        else:
            raise NoMemory(
                f"not enough memory for one text of {self.length} tokens: give a smaller --length"
            ) from error

    def _advance(self, gradients: float, what: str) -> None:
        self.done += gradients
        self.watch({"done": self.done, "total": self.total, "what": what})

    def layers(self, anchors: Sequence[Anchor]) -> dict[int, np.ndarray]:
        """Shares of the outputs of some layers, averaged over some segments."""
        if not self.layers_chosen:
            return {}
        found = []
        for row in self.rows(anchors):
            norms_RT = self.seam.layers(row, self.question.window, self.layers_chosen)[:, 0].numpy()
            found.append(norms_RT / norms_RT.sum(1, keepdims=True))
            self._advance(self.layer_cost, "layers")
        return dict(zip((number + 1 for number in self.layers_chosen), np.mean(found, 0), strict=True))

    def heats(self, anchor: Anchor, tokenizer: Any) -> list[Heat]:
        """The texts before some targets that follow each other."""
        found = []
        for back in range(HEAT_TARGETS - 1, -1, -1):
            place = Anchor(anchor.document, anchor.offset - back * HEAT_STEP)
            if place.offset < 2:
                continue
            row = self._row(place, self.length)
            norms_T = self.seam.norms(row, self.question.target, self.question.window)[0].numpy()
            self._advance(1, "heat maps")
            if not np.isfinite(norms_T).all():
                continue
            shares_T = norms_T / norms_T.sum()
            shown = min(HEAT_TOKENS, len(shares_T))
            tokens = [tokenizer.decode([one], skip_special_tokens=False) for one in row[0, -shown - 1 :].tolist()]
            earlier = float(shares_T[:-shown].sum()) if shown < len(shares_T) else 0.0
            found.append(Heat(tokens[:-1], shares_T[-shown:].tolist(), tokens[-1], earlier))
        return found
