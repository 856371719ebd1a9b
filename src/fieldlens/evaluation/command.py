"""From models and a corpus by name to result files."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.corpus import SPLITS
from fieldlens.data.text import Text
from fieldlens.evaluation.evaluate import address, draw_anchors, evaluate
from fieldlens.evaluation.protocols import Anchor, Eligible, draw, protocol
from fieldlens.evaluation.result import KIND, Evaluation, Plan, read_evaluation
from fieldlens.evaluation.runner import Watch
from fieldlens.models.loading import load
from fieldlens.models.origin import Origin, find_model, unique_names
from fieldlens.models.texts import read_texts
from fieldlens.reporting.table import Table, figure
from fieldlens.schemes.window import check_window
from fieldlens.storage.content_cache import digest
from fieldlens.storage.results import write_json


@dataclass(frozen=True)
class EvalRequest:
    """What `fieldlens evaluate` was asked."""

    corpus: str | None
    lengths: tuple[int, ...]
    segments: int = 1000
    protocol: str = "last-token"
    window: int | None = None
    options: dict[str, int | None] | None = None
    target_seed: int = 0
    train_length: int | None = None
    split: str = "test"
    align: str = "tokens"
    batch: int | None = None
    text: Path | None = None

    def __post_init__(self) -> None:
        if self.corpus is not None and self.text is not None:
            raise BadInput("give either --text or --corpus")
        if self.segments < 1:
            raise BadInput(f"segments is {self.segments}: at least 1 is needed")
        if self.split not in SPLITS:
            raise unknown("split", self.split, SPLITS)
        check_window(self.window)

    def plan(self, lengths: Sequence[int], bos: int | None) -> Plan:
        named = protocol(self.protocol, **(self.options or {}))
        return Plan(named, tuple(lengths), self.segments, self.target_seed, self.window, bos)


def evaluate_all(
    models: Sequence[str],
    question: EvalRequest,
    out: Path,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watch = lambda event: None,
) -> list[tuple[Path, Evaluation]]:
    """Evaluate one model after another; all paths and texts are looked at before the first is loaded."""
    origins = [find_model(text) for text in models]
    told = unique_names(origins)  # runs of one scheme keep its name, by which they are compared
    origins = [one if one.run else replace(one, name=name) for one, name in zip(origins, told, strict=True)]
    question.plan(question.lengths, None)
    if question.batch is not None and question.batch < 1:
        raise BadInput(f"batch is {question.batch}: at least 1 is needed")
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file: a folder is needed")
    texts = read_texts(origins, question.text, question.corpus, question.split)
    drawn = _draw(texts, question)
    found = []
    for origin in origins:
        if origin.diverged:
            found.append(_diverged(origin, question, out))
        else:
            anchors, names = drawn[origin.tokenizer]
            found.append(_one(origin, texts[origin.tokenizer], anchors, names, question, out, device, dtype, watch))
    _plot([one for _, one in found], out)
    return found


Drawn = tuple[list[Anchor], list[Anchor] | None]
"""Anchors in a tokenizer's tokens, and what results call them if that is something else."""


def _draw(texts: dict[Path, Text], question: EvalRequest) -> dict[Path, Drawn]:
    """The anchors for each tokenizer: its own tokens, or bytes that all tokenizers have deep enough in a document."""
    if not texts:
        return {}
    if question.align == "tokens":
        return {
            key: (draw_anchors(text.documents, question.plan(question.lengths, None)), None)
            for key, text in texts.items()
        }
    if question.protocol != "last-token":
        raise BadInput(f"--align bytes goes with the protocol last-token, not with {question.protocol}")
    longest = max(question.lengths)
    ends = {key: [np.cumsum(sizes.astype(np.int64)) for sizes in text.sizes] for key, text in texts.items()}
    spans = []
    for document in range(min(len(text.documents) for text in texts.values())):
        mine = [found[document] for found in ends.values()]
        if any(len(one) <= longest for one in mine):
            spans.append(Eligible(0, 0))
            continue
        first, last = max(int(one[longest - 1]) for one in mine), min(int(one[-1]) for one in mine)
        spans.append(Eligible(first, max(0, last - first)))
    if not any(span.anchors for span in spans):
        raise BadInput(f"length {longest} is too long for this text: no document has more tokens than that")
    names = draw(spans, question.segments, question.target_seed, "bytes")
    return {
        key: ([Anchor(d, int(np.searchsorted(found[d], byte, side="right"))) for d, byte in names], names)
        for key, found in ends.items()
    }


def _one(
    origin: Origin,
    text: Text,
    anchors: list[Anchor],
    names: list[Anchor] | None,
    question: EvalRequest,
    out: Path,
    device: torch.device,
    dtype: torch.dtype,
    watch: Watch,
) -> tuple[Path, Evaluation]:
    watch({"stage": origin.name})
    model = load(origin, device, dtype, question.train_length)
    trained, longest = model.adapter.train_length, max(question.lengths)
    plan = question.plan(question.lengths, text.bos)
    if trained and trained < longest:
        with suppress(BadInput):  # an option may not go with a length that nobody asked for
            plan = question.plan([*question.lengths, trained], text.bos)
    about = {**text.about, "align": question.align, "model": model.about}
    if names is not None:  # drawn from what all tokenizers of the command have in common
        about["drawn"] = digest(names)[:16]
    where = address(about, plan)
    path = out / f"{slug(origin.name)}-{question.protocol}-{where[:8]}.json"
    if path.exists() and (known := read_evaluation(path)).about.get("address") == where:
        if known.about["model"] != model.about:  # the same numbers by another name, or another training length
            known = replace(known, about={**known.about, "model": model.about})
            known.save(path)
        return path, known
    found = evaluate(
        model.adapter,
        text.documents,
        plan,
        about={"address": where, **about},
        anchors=anchors,
        sizes=text.sizes,
        names=names,
        batch=question.batch,
        journal=path.with_suffix(".part"),
        watch=watch,
    )
    found.save(path)
    return path, found


def _diverged(origin: Origin, question: EvalRequest, out: Path) -> tuple[Path, Evaluation]:
    """A run that diverged is a result too."""
    model = origin.about() | {"train_length": None}
    about = {"kind": KIND, "state": "diverged", "model": model, "window": question.window}
    path = out / f"{slug(origin.name)}-diverged-{model['address'][:8]}.json"
    write_json(path, about)
    return path, Evaluation(about, {}, [])


def slug(name: str) -> str:
    """A name as a file may have it."""
    return re.sub(r"[^\w.=,+-]+", "-", name).strip("-.") or "model"


def _plot(found: Sequence[Evaluation], out: Path) -> None:
    from fieldlens.reporting import plots as draw

    alive = [one for one in found if one.losses]
    if alive:
        figure = draw.perplexity_lines([one.line() for one in alive], alive[0].quantity)
        for ending in ("png", "svg"):
            draw.save(figure, out / f"perplexity.{ending}")


def summary(found: Sequence[Evaluation]) -> list[Table]:
    """What the command prints: perplexities with their intervals, and the verdict on each model."""
    alive = [one for one in found if one.losses]
    lost = [[_called(one, found), "diverged"] for one in found if not one.losses]
    sheets = [Table(["model", "state"], lost)] if lost else []
    if alive:
        sheets = [
            _scores(alive),
            Table(["model", "verdict", "evidence"], [_verdict_row(one, alive) for one in alive]),
            *sheets,
        ]
    return sheets


def _scores(alive: Sequence[Evaluation]) -> Table:
    lengths = sorted({length for one in alive for length in one.losses})
    rows = []
    for one in alive:
        at = {row["length"]: row for row in one.rows()}
        rows.append([_called(one, alive), *(figure(one.score(n), 4) if n in at else "" for n in lengths)])
        rows.append(["  95%", *(_between(at[n]) if n in at else "" for n in lengths)])
    first = alive[0].about
    text, count, documents = first["data"], len(alive[0].targets), len(set(alive[0].documents.tolist()))
    title = [f"{alive[0].quantity} by context length: {text['corpus']}"]
    title += [f"{text['split']} split"] if text["split"] else []
    drawn = f"{count} targets in {documents} document{'s' if documents > 1 else ''}"
    title += [first["protocol"]["name"], f"{drawn}; intervals over {alive[0].units()[1]}"]
    return Table(["model", *map(str, lengths)], rows, ", ".join(title))


def _between(row: dict[str, Any]) -> str:
    low, high = (figure(value, 3) if value is not None else "–" for value in (row["low"], row["high"]))
    return f"{low}–{high}"


def _called(one: Evaluation, among: Sequence[Evaluation]) -> str:
    """A model's name; with its folder where another has the same name."""
    model = one.about["model"]
    alike = [other for other in among if other.about["model"]["name"] == model["name"]]
    return f"{model['name']} ({model['folder']})" if len(alike) > 1 and "folder" in model else str(model["name"])


def _verdict_row(one: Evaluation, among: Sequence[Evaluation]) -> list[str]:
    name, verdict = _called(one, among), one.verdict
    if verdict["verdict"] is None:
        return [name, "no verdict", verdict["reason"]]
    shown = verdict["first"] or max(verdict["evidence"], key=lambda row: abs(row["difference"]))["length"]
    worst = next(row for row in verdict["evidence"] if row["length"] == shown)
    at = f" from {verdict['first']}" if verdict["first"] else ""
    p = "" if worst["p_holm"] is None else f", p = {worst['p_holm']:.2g} (Holm; {verdict['resampled']} flipped)"
    against = f"× {figure(worst['ratio'], 3)} at {worst['length']} against {verdict['train_length']}{p}"
    return [name, verdict["verdict"] + at, against]
