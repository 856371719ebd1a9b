"""What a receptive field means for its users: coverage, the check against measured perplexity, and advice."""

from typing import Any

from fieldlens.core.format import format_bytes
from fieldlens.receptive.check import Check
from fieldlens.receptive.field import LEVELS, ReceptiveField

COVERED = 0.99


def coverage(found: ReceptiveField) -> dict[str, Any]:
    """The share of the gradient inside the training length, and what the paper's principle makes of it."""
    if found.status:
        return {"share": None, "predicts": None, "reason": found.status}
    if found.train_length is None:
        return {"share": None, "predicts": None, "reason": "the training length is not known: give --train-length"}
    if found.length <= found.train_length:
        reason = f"measured at {found.length} tokens, not beyond the training length {found.train_length}"
        return {"share": None, "predicts": None, "reason": reason}
    share = found.within(found.train_length)
    if share <= COVERED:
        return {"share": share, "predicts": "nothing", "reason": ""}
    if found.saturated():
        return {"share": share, "predicts": None, "reason": "the receptive field is not bounded at this length"}
    return {"share": share, "predicts": "extrapolates", "reason": ""}


def advise(found: ReceptiveField, theoretical: dict[str, Any] | None, checked: Check | None) -> list[str]:
    """What a user can do with it, in sentences."""
    if found.status:
        return [f"There is no receptive field here: {found.status}."]
    said = []
    if found.saturated():
        apart = found.has_sink and found.stands_alone and not found.saturated(without_first=True)
        said.append(
            f"Not bounded at this length: 99% of the gradient needs {found.erf(0.99):,} of {found.length:,} tokens. "
            "Nothing is advised from that: measure at a larger --length, if model and text have room"
            f"{', or see below' if apart else ''}."
        )
    said.append(f"The gradient lies {_spread(found, False)} of {found.length:,} tokens.")
    if found.has_sink and found.stands_alone:
        what = "BOS and the first token hold" if found.bos else "The first token alone holds"
        rest = _spread(found, without_first=True)
        said.append(
            f"{what} {found.first_share:.0%}, many times its part: an attention sink, if the model is trained. "
            f"Without: {rest}."
        )
    lost = int((~found.defined).sum())
    if lost:
        said.append(
            f"{lost} of {len(found.norms_NT)} segments have no receptive field ({found.reason}); they are left out."
        )
    covered = coverage(found)
    if covered["share"] is None:
        said.append(f"Coverage is not known: {covered['reason']}.")
    elif covered["predicts"] is None:
        said.append(f"Coverage predicts nothing here: {covered['reason']}.")
    elif covered["predicts"] == "extrapolates":
        said.append(
            f"The training length {found.train_length:,} covers {covered['share']:.1%} of it: by the paper's principle "
            "perplexity should hold at longer contexts."
        )
    else:
        said.append(
            f"The training length {found.train_length:,} covers {covered['share']:.1%} of it, not more than 99%: "
            "that predicts nothing about longer contexts."
        )
    if theoretical:
        said.append(
            f"Its windows reach exactly {theoretical['exact']:,} tokens back "
            f"(the paper's formula says {theoretical['paper']:,})."
        )
    return [*said, *_checked(checked)]


def _spread(found: ReceptiveField, without_first: bool) -> str:
    return ", ".join(f"{level:.0%} in the last {found.erf(level, without_first):,}" for level in LEVELS)


def _checked(checked: Check | None) -> list[str]:
    if checked is None:
        return []
    said = []
    verdict = checked.contexts.verdict
    if verdict["verdict"]:
        said.append(f"Measured past the training length, perplexity {_sentence(verdict)}.")
    for kind, words in (("context", "context"), ("window", "sliding window")):
        found = checked.smallest(kind)
        if found is None:
            none = kind == "window" and not checked.windows
            said.append("It was given no window." if none else f"No {words} is within 1% of the best perplexity.")
            continue
        saved = ""
        if found["cache_saved"]:
            size, part = f"{format_bytes(found['cache_bytes'])} in {checked.cache_dtype}", found["cache_saved"]
            saved = f"; a cache of that size, {size}, saves {min(part, 0.999):.{0 if part < 0.99 else 1}%}"
            saved += f" of the cache of {checked.longest:,} tokens"
        if found["best"] == f"{kind} {found['tokens']}":
            said.append(f"The best perplexity is that with a {words} of {found['tokens']:,} tokens{saved}.")
            continue
        interval = f", 95% {found['low']:.3f} to {found['high']:.3f}" if found["low"] and found["high"] else ""
        said.append(
            f"The smallest {words} within 1% of the best perplexity ({found['best']}) is {found['tokens']:,} tokens "
            f"(× {found['ratio']:.3f}{interval} over {found['resampled']}){saved}."
        )
    return said


def _sentence(verdict: dict[str, Any]) -> str:
    first = f" from {verdict['first']:,} tokens on" if verdict["first"] else ""
    return f"{verdict['verdict']}{first}"
