"""Interpretation of a receptive field: coverage, and advice in sentences."""

import math
from typing import Any

from fieldlens.core.format import format_bytes
from fieldlens.evaluation.equivalence import percent, ratio
from fieldlens.evaluation.verdict import describe, evidence_text
from fieldlens.receptive.check import RISES, Candidate, Check
from fieldlens.receptive.decision import decide
from fieldlens.receptive.field import LEVELS, ReceptiveField

COVERED = 0.99


def coverage(field: ReceptiveField) -> dict[str, Any]:
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


def advise(
    field: ReceptiveField,
    theoretical: dict[str, Any] | None,
    check: Check | None,
    attention: dict[str, Any] | None = None,
    command: str = "",
) -> list[str]:
    """Conclusions for a user, as sentences: the decision first, the next command last."""
    decision = decide(field, check, command)
    if field.status:
        return [decision.headline]
    evidence = [*_evidence(field, theoretical, check), *_layer_sentences(field, attention)]
    return [decision.headline, *evidence, *filter(None, [decision.next_step])]


def _evidence(field: ReceptiveField, theoretical: dict[str, Any] | None, check: Check | None) -> list[str]:
    """What the decision rests on: the verdict and the contexts first, then the gradient."""
    sentences = [] if check is None else _check_sentences(check, field)
    sentences += [*_bound_sentences(field), f"Share of the gradient: {_spread(field)} of {field.length:,} tokens."]
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
        count = len(field.norms_NT)
        sentences.append(f"{undefined} of {count} segments have no receptive field ({field.reason}) and are excluded.")
    sentences.append(_coverage_sentence(field))
    if theoretical:
        sentences.append(
            f"Its windows reach exactly {theoretical['exact']:,} tokens "
            f"({theoretical['paper']:,} by the paper's formula)."
        )
    return sentences


def _layer_sentences(field: ReceptiveField, attention: dict[str, Any] | None) -> list[str]:
    """Which layers a window changes, for models that mix local and global layers."""
    if not attention:
        return []
    layers, window, share = (attention[key] for key in ("global_layers", "local_window", "global_cache_share"))
    names = f"Layer {layers[0]} attends" if len(layers) == 1 else f"Layers {', '.join(map(str, layers))} attend"
    held = f" and would hold {share:.0%} of the cache of {field.length:,} tokens" if share is not None else ""
    return [
        f"{names} to the whole context{held}; the other {attention['layers'] - len(layers)} layers attend to at most "
        f"{window:,} tokens. A window of {window:,} tokens or more changes only the former, a smaller one all layers."
    ]


def _bound_sentences(field: ReceptiveField) -> list[str]:
    if not field.saturated():
        return []
    bounded_rest = field.has_sink and field.stands_alone and not field.saturated(without_first=True)
    return [
        f"Not bounded at this length: 99% of the gradient needs {field.erf(0.99):,} of {field.length:,} tokens, so no "
        "context size is recommended. Measure at a larger --length if the model and the text allow it"
        f"{', or see the numbers without the first token' if bounded_rest else ''}."
    ]


def _spread(field: ReceptiveField, without_first: bool = False) -> str:
    return ", ".join(f"{level:.0%} in the last {field.erf(level, without_first):,}" for level in LEVELS)


def _coverage_sentence(field: ReceptiveField) -> str:
    share, predicts, reason = (coverage(field)[key] for key in ("share", "predicts", "reason"))
    if share is None:
        return f"Coverage is unknown: {reason}."
    if predicts is None:
        return f"Coverage makes no prediction: {reason}."
    covers = f"The training length {field.train_length:,} covers {share:.1%} of the gradient"
    if predicts == "extrapolates":
        return f"{covers}: by the paper's principle, perplexity should hold at longer contexts."
    return f"{covers}, not more than 99%: this makes no prediction for longer contexts."


def _check_sentences(check: Check, field: ReceptiveField) -> list[str]:
    return [
        *_verdict_sentences(check),
        _smallest_sentence(check, "context", "context"),
        _smallest_sentence(check, "window", "sliding window"),
        *_sink_sentences(check, field),
    ]


def _sink_sentences(check: Check, field: ReceptiveField) -> list[str]:
    """The window to try next, if windows fail and the first token is a sink."""
    if not check.windows or check.smallest("window") is not None or not field.has_sink:
        return []
    width = max(check.windows)
    return [
        f"These windows drop the first token, which is a sink: try one that keeps it, `--window {width} --sinks 4`."
    ]


def _verdict_sentences(check: Check) -> list[str]:
    """The verdict with its evidence, and whether the model uses its context."""
    verdict, use, sentences = check.verdict, check.verdict["context_use"], []
    if verdict["verdict"]:
        outcome = describe(verdict, " from {:,} tokens on")
        subject = "the change of perplexity is" if outcome.startswith("undecided") else "perplexity"
        sentences.append(f"Measured past the training length, {subject} {outcome}: {evidence_text(verdict)}.")
    if verdict["verdict"] in RISES:
        sentences.append(f"Use at most {check.reference:,} tokens; smaller contexts are compared with that length.")
    text = use["text"] if use else "context use not measured: no shorter context was evaluated"
    return [*sentences, f"{text[0].upper()}{text[1:]}.", *_precision_sentences(check)]


def _precision_sentences(check: Check) -> list[str]:
    """How precisely the step from the next shorter context to the reference is known."""
    contrasts = [(candidate.tokens, candidate.contrast) for candidate in check.of("context")[:1]]
    return [
        f"Precision: with {row.targets:,} targets, the change of perplexity from {tokens:,} to {check.reference:,} "
        f"tokens is known to ± {(ratio(row.high) - ratio(row.low)) / 2:.1%}."
        for tokens, row in contrasts
        if math.isfinite(row.high - row.low)
    ]


def _smallest_sentence(check: Check, kind: str, label: str) -> str:
    """The smallest context or window that is shown to be within the margin, and the memory it saves."""
    smallest, candidates = check.smallest(kind), check.of(kind)
    margin, unit = percent(check.contexts.margin), check.contexts.units()[1]
    goal = f"within {margin} of the perplexity with {check.reference:,} tokens"
    if smallest is not None:
        return (
            f"The smallest {label} shown to be {goal} is {smallest.tokens:,} tokens "
            f"({smallest.interval} over {unit}){_saving(check, smallest)}."
        )
    if not candidates:
        return "No sliding window was evaluated." if kind == "window" else "No shorter context was evaluated."
    largest = candidates[0]
    if largest.outcome == "worse":
        return f"No {label} is {goal}: {largest.tokens:,} tokens already cost {largest.interval} over {unit}."
    needed = largest.contrast.targets_to_bound
    more = (
        "more documents are needed to decide"
        if needed is None
        else f"about {needed:,} targets are needed to decide (`--targets {needed}`)"
    )
    return (
        f"Undecided whether any {label} is {goal}: {largest.tokens:,} tokens give {largest.interval} over {unit}; "
        f"{more}. No {label} is recommended."
    )


def _saving(check: Check, candidate: Candidate) -> str:
    """The cache of a candidate and what it saves, as the end of a sentence."""
    share = check.saved(candidate)
    if not share or not candidate.cache_bytes:
        return ""
    size = f"{format_bytes(candidate.cache_bytes)} in {check.cache_dtype}"
    saved = f"{min(share, 0.999):.{0 if share < 0.99 else 1}%}"
    return f"; a cache of that size, {size}, saves {saved} of the cache of {check.reference:,} tokens"
