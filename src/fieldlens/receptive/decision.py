"""The decision that a measurement allows, in one sentence, and the next command to give."""

import shlex
from dataclasses import dataclass
from typing import Any

from fieldlens.core.format import format_duration
from fieldlens.evaluation.equivalence import percent, ratio
from fieldlens.evaluation.verdict import describe
from fieldlens.receptive.check import RISES, Check
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.request import TARGETS

Options = dict[str, str | None]
"""Options of a command; None for an option without a value."""

REPLACED = {"--text": ("--corpus", "--split")}
"""Options that cannot be combined with another."""

YOUR_TEXT = "repeats the measurement on your own text, which may need another context"


@dataclass(frozen=True)
class Decision:
    """What to do, and the command that would tell more."""

    headline: str
    decided: bool
    """Whether the intervals allow a recommendation."""
    command: str = ""
    purpose: str = ""
    """What the command does, as the end of a sentence."""

    @property
    def next_step(self) -> str:
        """The command with its purpose, as a sentence; empty without one."""
        return f"Next: `{self.command}` {self.purpose}." if self.command else ""

    def to_json(self) -> dict[str, Any]:
        step = {"command": self.command, "purpose": self.purpose} if self.command else None
        return {"headline": self.headline, "decided": self.decided, "next": step}


def decide(field: ReceptiveField, check: Check | None, command: str = "") -> Decision:
    """The decision from a receptive field and its check; `command` is the one that repeats the measurement."""
    if field.status:
        return Decision(f"No receptive field: {field.status}.", False)
    if check is None:
        changes: Options = {"--check": None, "--minutes": "10"}
        step = with_options(command, changes), "measures what shorter contexts and windows cost in perplexity"
        if field.saturated():
            return Decision(f"The gradient reaches the whole context of {field.length:,} tokens.", False, *step)
        return Decision(f"The last {field.erf():,} of {field.length:,} tokens hold 99% of the gradient.", False, *step)
    if check.guesses:
        perplexity = f"{check.contexts.table[check.reference]:,.0f}"
        headline = f"No recommendation: the model does not know this kind of text. Its perplexity is {perplexity}"
        headline += f", and that of a uniform guess {check.vocab_size:,}."
        step = with_options(command, {"--text": "FILE"}), "measures a text of the kind that the model was trained on"
        return Decision(headline, False, *step)
    rises = ""
    if check.verdict["verdict"] in RISES:
        rises = (
            f"Use at most {check.reference:,} tokens: perplexity {describe(check.verdict, ' from {:,} tokens on')}. "
        )
    headline, decided, options, purpose = _by_context(check, field)
    return Decision(rises + headline, decided or bool(rises), with_options(command, options), purpose)


def _by_context(check: Check, field: ReceptiveField) -> tuple[str, bool, Options, str]:
    """Headline, whether it is a recommendation, and the options of the next command with their purpose."""
    margin, full, candidates = percent(check.contexts.margin), check.reference, check.of("context")
    smallest, worse = check.smallest("context"), check.largest_worse("context")
    use = check.verdict["context_use"]
    unused = "This check does not show that the model uses its context. " if use and not use["shown"] else ""
    own: Options = {"--text": "FILE"}
    if not candidates:
        return (
            f"{unused}No context below {full:,} tokens was evaluated.",
            False,
            {"--length": str(4 * full)},
            "is longer",
        )
    if smallest is not None:
        enough = f"A context of {smallest.tokens:,} tokens is enough"
        return (
            f"{unused}{enough}: perplexity is at most {margin} higher than with {full:,} tokens.",
            True,
            own,
            YOUR_TEXT,
        )
    if candidates[0].outcome == "worse":
        cost = percent(round(ratio(candidates[0].contrast.low) - 1, 3))
        headline = f"Keep all {full:,} tokens: with {candidates[0].tokens:,}, perplexity rises by at least {cost}."
        longer = field.train_length is None or 2 * full <= field.train_length
        if longer:
            return headline, True, {"--length": str(2 * full)}, "measures whether still more context helps"
        return headline, True, own, YOUR_TEXT
    bounds = f"between {worse.tokens:,} and {full:,} tokens" if worse else f"up to {full:,} tokens"
    headline = f"{unused}Undecided: the smallest context within {margin} is {bounds}."
    return headline, False, *_more_targets(check, candidates[0].contrast.targets_to_bound)


def _more_targets(check: Check, needed: int | None) -> tuple[Options, str]:
    """More targets for a check that is undecided: the default number first, then as many as the estimate asks for."""
    present = check.contexts.counts["targets"]
    if needed is None or needed <= present:
        return {"--text": "FILE"}, YOUR_TEXT
    targets = TARGETS if present < TARGETS else needed
    duration = format_duration(check.seconds * targets / present)
    if targets >= needed:
        return {"--targets": str(targets)}, f"may decide, if the estimate stays the same, in about {duration} here"
    purpose = f"narrows the intervals, in about {duration} here; to decide, about {needed:,} targets are needed"
    return {"--targets": str(targets)}, f"{purpose} if the estimate stays the same"


def with_options(command: str, options: Options) -> str:
    """A command with other values of some options; None for an option without a value."""
    if not command:
        return ""
    words = shlex.split(command)
    for name, value in options.items():
        for old in (name, *REPLACED.get(name, ())):
            if old in words:
                place = words.index(old)
                del words[place : place + (1 if value is None else 2)]
        words += [name] if value is None else [name, value]
    return shlex.join(words)
