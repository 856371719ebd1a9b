"""Advice on a measurement in sentences: the decision, what it rests on, and the next command."""

import math
from typing import Any

from fieldlens.core.format import format_bytes
from fieldlens.evaluation.equivalence import percent, ratio
from fieldlens.evaluation.verdict import describe, evidence_text
from fieldlens.receptive.check import RISES, Candidate, Check
from fieldlens.receptive.decision import decide
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.gradient_advice import gradient_sentences


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
    sentences += gradient_sentences(field, checked=check is not None)
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


def _check_sentences(check: Check, field: ReceptiveField) -> list[str]:
    return [
        *_verdict_sentences(check),
        _smallest_sentence(check, "context", "context"),
        _smallest_sentence(check, "window", "sliding window"),
        *_sink_sentences(check, field),
    ]


def _sink_sentences(check: Check, field: ReceptiveField) -> list[str]:
    """The window to try next, if windows fail and the model needs its first tokens."""
    windows = check.of("window")
    if not windows or check.smallest("window") is not None:
        return []
    width = windows[0].tokens
    kept = f"`--window {width} --sinks 4`"
    if field.has_sink:
        return [f"These windows drop the first token, which is a sink: try one that keeps it, {kept}."]
    row = check.against_context(width)
    if row is None or not row.worse:
        return []
    return [
        f"A window of {width:,} tokens is worse than a context of {width:,} tokens (× {row.ratio:.3f}), which keeps "
        f"its first token: try a window that keeps the first tokens, {kept}."
    ]


def _verdict_sentences(check: Check) -> list[str]:
    """The verdict with its evidence, and whether the model uses its context."""
    verdict, use, sentences = check.verdict, check.verdict["context_use"], []
    if verdict["verdict"]:
        outcome = describe(verdict, " from {:,} tokens on")
        subject = "the change of perplexity is" if outcome.startswith("undecided") else "perplexity"
        sentences.append(f"Measured past the training length, {subject} {outcome}: {evidence_text(verdict)}.")
    if verdict["verdict"] in RISES:
        sentences.append(
            f"All contexts and windows are compared with a context of {check.reference:,} tokens, the training length."
        )
    text = use["text"] if use else "context use not measured: no shorter context was evaluated"
    return [*sentences, f"{text[0].upper()}{text[1:]}.", *_precision_sentences(check)]


def _precision_sentences(check: Check) -> list[str]:
    """How precisely the step from the next shorter context to the reference is known."""
    contrasts = [(candidate.tokens, candidate.contrast) for candidate in check.of("context")[:1]]
    return [
        f"Precision: with {check.contexts.counts_text}, the change of perplexity from {tokens:,} to "
        f"{check.reference:,} tokens is known to ± {(ratio(row.high) - ratio(row.low)) / 2:.1%}."
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
        if kind == "window" and not check.windows:
            return "No sliding window was evaluated."
        bound = "below" if kind == "context" or check.reference == check.longest else "up to"
        return f"No {label} {bound} {check.reference:,} tokens was evaluated."
    largest = candidates[0]
    if largest.outcome == "worse":
        return f"No {label} is {goal}: {largest.tokens:,} tokens already cost {largest.interval} over {unit}."
    needed = largest.contrast.targets_to_bound
    more = (
        "more documents are needed to decide"
        if needed is None
        else f"about {needed:,} targets are needed to decide, if the estimate stays the same"
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
