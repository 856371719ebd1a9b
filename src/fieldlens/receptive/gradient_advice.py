"""Interpretation of a receptive field by its gradients alone: coverage, and advice in sentences."""

from typing import Any, Protocol

import numpy as np

LEVELS = (0.5, 0.9, 0.95, 0.99)
COVERED = 0.99


class Field(Protocol):
    """What the sentences need of a ReceptiveField."""

    @property
    def train_length(self) -> int | None: ...
    @property
    def bos(self) -> bool: ...
    @property
    def reason(self) -> str: ...
    @property
    def status(self) -> str: ...
    @property
    def length(self) -> int: ...
    @property
    def defined(self) -> np.ndarray: ...
    @property
    def first_share(self) -> float: ...
    @property
    def has_sink(self) -> bool: ...
    @property
    def stands_alone(self) -> bool: ...
    def erf(self, level: float = ..., without_first: bool = ...) -> int: ...
    def within(self, tokens: int) -> float: ...
    def saturated(self, without_first: bool = ...) -> bool: ...
    def by_distance(self) -> list[tuple[int, int, float]]: ...


def coverage(field: Field) -> dict[str, Any]:
    """The share of the gradient inside the training length, and what it predicts by the paper's principle.

    "predicts" is "extrapolates", "nothing", or None if no prediction is possible; then "reason" says why.
    """
    if field.status:
        return {"share": None, "predicts": None, "reason": field.status}
    if field.train_length is None:
        return {"share": None, "predicts": None, "reason": "the training length is not known: give --train-length"}
    if field.length <= field.train_length:
        reason = f"measured at {field.length} tokens, not beyond the training length {field.train_length}"
        return {"share": None, "predicts": None, "reason": reason}
    share = field.within(field.train_length)
    if share <= COVERED:
        return {"share": share, "predicts": "nothing", "reason": ""}
    if field.saturated():
        return {"share": share, "predicts": None, "reason": "the receptive field is not bounded at this length"}
    return {"share": share, "predicts": "extrapolates", "reason": ""}


def gradient_advice(field: Field) -> list[str]:
    """Advice for a user who has no check."""
    return [f"No receptive field: {field.status}."] if field.status else gradient_sentences(field)


def gradient_sentences(field: Field, checked: bool = False) -> list[str]:
    """How far the gradient reaches, by share and by distance; attention sinks; coverage.

    With a check, the decision rests on perplexity, and the gradient proposes no next step.
    """
    sentences = [
        *_bound_sentences(field, checked),
        f"Share of the gradient: {_spread(field)} of {field.length:,} tokens.",
    ]
    bands = ", ".join(f"{first:,}–{last:,}: {share:.1%}" for first, last, share in field.by_distance())
    sentences.append(f"By distance: {bands}.")
    if field.has_sink and field.stands_alone:
        subject, pronoun = ("BOS and the first token hold", "them") if field.bos else ("The first token holds", "it")
        sentences.append(
            f"{subject} {field.first_share:.0%}, more than five times a uniform share: an attention sink, if the model "
            f"is trained. Without {pronoun}: {_spread(field, without_first=True)}."
        )
    undefined = int((~field.defined).sum())
    if undefined:
        count = len(field.defined)
        sentences.append(f"{undefined} of {count} segments have no receptive field ({field.reason}) and are excluded.")
    sentences.append(_coverage_sentence(field))
    return sentences


def _bound_sentences(field: Field, checked: bool) -> list[str]:
    if not field.saturated():
        return []
    bounded_rest = field.has_sink and field.stands_alone and not field.saturated(without_first=True)
    trained = field.train_length is None or field.length < field.train_length
    steps = ["Measure at a larger --length if the text allows it."] if trained and not checked else []
    steps += ["See the numbers without the first token."] if bounded_rest else []
    sentence = (
        f"Not bounded at this length: 99% of the gradient needs {field.erf(0.99):,} of {field.length:,} tokens, so the "
        "gradient alone recommends no context size."
    )
    return [" ".join([sentence, *steps])]


def _spread(field: Field, without_first: bool = False) -> str:
    return ", ".join(f"{level:.0%} in the last {field.erf(level, without_first):,}" for level in LEVELS)


def _coverage_sentence(field: Field) -> str:
    share, predicts, reason = (coverage(field)[key] for key in ("share", "predicts", "reason"))
    if share is None:
        return f"Coverage is unknown: {reason}."
    if predicts is None:
        return f"Coverage makes no prediction: {reason}."
    covers = f"The training length {field.train_length:,} covers {share:.1%} of the gradient"
    if predicts == "extrapolates":
        return f"{covers}: by the paper's principle, perplexity should hold at longer contexts."
    return f"{covers}, not more than 99%: this makes no prediction for longer contexts."
