"""Advice from a comparison of extension methods: how far to trust the model, what helps, how to get it."""

import json
from collections.abc import Sequence
from typing import Any

from fieldlens.core.format import format_bytes
from fieldlens.receptive.extend_request import CROP, STOCK

Row = dict[str, Any]


def advice(about: dict[str, Any]) -> list[str]:
    """Sentences on the model as it is, on the methods that help, best first, on the others, and on those refused."""
    rows: dict[str, list[Row]] = {}
    for row in about["results"]:
        rows.setdefault(row["method"], []).append(row)
    stock = rows.pop(STOCK, [])
    helpful = [method for method in rows if _at(rows[method], "uses")]
    helpful.sort(key=lambda method: rows[method][-1]["ratio"])
    sentences = [_trust(about, stock)]
    for method in helpful:
        sentences += _help(about, method, rows[method])
    if not helpful:
        sentences.append(_no_help(about["train_length"], [row for results in rows.values() for row in results]))
    sentences += _others(about, {method: rows[method] for method in rows if method not in helpful})
    return [*sentences, *(f"Not tried: {reason}." for reason in about["refused"])]


def _trust(about: dict[str, Any], stock: Sequence[Row]) -> str:
    """Up to which length the model predicts no worse than a crop, without a method."""
    trained = about["train_length"]
    if not stock:
        return f"Without a method the model has no positions past {about['limit']:,} tokens."
    good = []
    for row in stock:
        if row["outcome"] not in ("uses", "crops"):
            break
        good.append(row)
    failed = stock[len(good)] if len(good) < len(stock) else None
    reason = "" if failed is None else f"; at {failed['length']:,} it {_shows(failed)}"
    if not good:
        return f"Without a method, trust the model up to its training length, {trained:,} tokens{reason}."
    last = good[-1]
    gain = (
        f"it uses the context there (× {last['ratio']:.3f} of the crop's perplexity)"
        if last["outcome"] == "uses"
        else "it predicts as well as a crop there, not better"
    )
    return f"Without a method, trust the model up to {last['length']:,} tokens: {gain}{reason}."


def _help(about: dict[str, Any], method: str, rows: Sequence[Row]) -> list[str]:
    """Where a method helps, by how much, at what cost, and how to get it."""
    costs, longest = about["methods"], rows[-1]["length"]
    uses = _at(rows, "uses")
    gains = ", ".join(f"× {row['ratio']:.3f} at {row['length']:,}" for row in uses)
    others = [f"at {row['length']:,} it {_shows(row)}" for row in rows if row["outcome"] != "uses"]
    time = costs[method]["seconds"] / costs[CROP]["seconds"]
    sentence = (
        f"{method} uses the context {'from' if not others else 'at'} {_lengths(uses, not others)}: perplexity {gains} "
        f"against the crop{''.join(f'; {text}' for text in others)}. At {longest:,} tokens a forward pass takes "
        f"{time:.1f} times as long as the crop's{_cache(costs, method)}."
    )
    return [sentence, _how(method, costs[method]["configuration"])]


def _no_help(trained: int, rows: Sequence[Row]) -> str:
    """What it means that no method is shown to help: a crop is as good only where every method is decided."""
    if _at(rows, "undecided"):
        return f"No method is shown to use context past {trained:,} tokens, but not all are decided."
    return f"No method uses context past {trained:,} tokens: a crop is at least as good."


def _how(method: str, configuration: dict[str, Any] | None) -> str:
    if configuration is None:
        return f"To get {method}: fieldlens generate … --method {method}; config.json has no setting for it."
    return f"To get {method}, put into config.json: {json.dumps(configuration)}"


def _others(about: dict[str, Any], rows: dict[str, list[Row]]) -> list[str]:
    """One sentence per method that is not shown to help."""
    sentences = []
    for method, results in rows.items():
        parts = [
            f"{text} at {_lengths(_at(results, outcome), False)}"
            for outcome, text in (("crops", "equals the crop"), ("breaks", "is worse than the crop"))
            if _at(results, outcome)
        ]
        if undecided := _at(results, "undecided"):
            parts.append(f"is undecided at {_lengths(undecided, False)} ({_needed(undecided)})")
        same = all(row["outcome"] == "crops" for row in results)
        cost = f"{_cache(about['methods'], method, ', and it needs')}" if same else ""
        sentences.append(f"{method} {', '.join(parts)}{cost}.")
    return sentences


def _cache(costs: dict[str, Any], method: str, verb: str = ", with") -> str:
    cache, crop = costs[method]["cache_bytes"], costs[CROP]["cache_bytes"]
    if cache is None or crop is None:
        return ""
    return f"{verb} a cache of {format_bytes(cache)} (crop: {format_bytes(crop)})"


def _at(rows: Sequence[Row], outcome: str) -> list[Row]:
    return [row for row in rows if row["outcome"] == outcome]


def _lengths(rows: Sequence[Row], onward: bool) -> str:
    if onward:
        return f"{rows[0]['length']:,} tokens on"
    return f"{_enumerated([row['length'] for row in rows])} tokens"


def _needed(rows: Sequence[Row]) -> str:
    """About how many targets could decide each of these rows."""
    counts = [row["targets_needed"] for row in rows]
    if any(count is None for count in counts):
        return "more documents are needed"
    return f"an estimated {_enumerated(counts)} targets are needed"


def _enumerated(numbers: Sequence[int]) -> str:
    *first, last = (f"{number:,}" for number in numbers)
    return f"{', '.join(first)} and {last}" if first else last


def _shows(row: Row) -> str:
    if row["outcome"] == "undecided":
        return f"is undecided ({_needed([row])})"
    return {"uses": "uses it", "crops": "equals the crop", "breaks": f"breaks (× {row['ratio']:.3f})"}[row["outcome"]]
