"""The result of `fieldlens extend`: methods against a crop at every length, what they cost, and advice."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fieldlens.core.format import format_bytes
from fieldlens.evaluation.equivalence import percent, ratio
from fieldlens.receptive.extend_request import CROP, STOCK
from fieldlens.reporting.table import Table, figure

KIND = "fieldlens extension"


@dataclass(frozen=True)
class ExtensionResult:
    """Everything that `fieldlens extend` computed, as its JSON file holds it."""

    about: dict[str, Any]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row per method and length past the training length."""
        return self.about["results"]

    @property
    def train_length(self) -> int:
        return self.about["train_length"]

    @property
    def lengths(self) -> list[int]:
        return sorted({row["length"] for row in self.rows})

    @property
    def methods(self) -> list[str]:
        """Stock first, then the methods in their order."""
        return list(dict.fromkeys(row["method"] for row in self.rows))

    def of(self, method: str) -> list[dict[str, Any]]:
        """The rows of one method, by length."""
        return [row for row in self.rows if row["method"] == method]

    def tables(self) -> list[Table]:
        """Perplexities with outcomes; then gradients, retrieval and costs."""
        return [self._outcomes(), self._evidence(), self._costs()]

    def _outcomes(self) -> Table:
        crop = self.about["crop"]
        rows = [[CROP, *([figure(crop["perplexity"], 4)] * len(self.lengths))]]
        for method in self.methods:
            by_length = {row["length"]: row for row in self.of(method)}
            cells = [
                f"{figure(by_length[n]['perplexity'], 4)} {by_length[n]['outcome']}" if n in by_length else "–"
                for n in self.lengths
            ]
            rows.append([method, *cells])
        targets = f"{self.about['targets']} targets in {self.about['documents']} documents"
        title = (
            f"perplexity by context length and what it shows against a crop to {self.train_length} tokens, {targets}"
        )
        return Table(["method", *map(str, self.lengths)], rows, title)

    def _evidence(self) -> Table:
        rows = []
        for row in self.rows:
            interval = "–" if row["low"] is None else f"{ratio(row['low']):.3f}–{ratio(row['high']):.3f}"
            p = "–" if row["p_holm"] is None else f"{row['p_holm']:.2g}"
            needed = row["targets_needed"]
            more = "" if row["outcome"] != "undecided" else "more documents" if needed is None else f"{needed:,}"
            rows.append([row["method"], str(row["length"]), f"{row['ratio']:.3f}", interval, p, row["outcome"], more])
        columns = ["method", "length", "ratio to crop", "95% interval", "p (Holm)", "outcome", "targets to decide"]
        return Table(columns, rows, f"perplexity against the crop, margin {percent(self.about['margin'])}")

    def _costs(self) -> Table:
        rows = []
        for name in (CROP, *self.methods):
            extra = self.about["methods"][name]
            beyond, task = extra["gradient_beyond"], extra["retrieval"]
            shares = [
                f"{task[str(n)]['accuracy']:.0%} ({task[str(n)]['low']:.0%}–{task[str(n)]['high']:.0%})"
                if str(n) in task
                else "–"
                for n in self.lengths
            ]
            cache = extra["cache_bytes"]
            rows.append([
                name, "–" if beyond is None else f"{beyond:.1%}", *shares, f"{extra['seconds']:.3g}",
                "–" if cache is None else format_bytes(cache),
            ])  # fmt: skip
        longest = self.lengths[-1]
        columns = [
            "method", f"gradient beyond {self.train_length}", *(f"retrieval at {n}" for n in self.lengths),
            f"seconds at {longest}", "cache",
        ]  # fmt: skip
        notes = ["Retrieval: share of right answers among 4 candidates, with the 95% Wilson interval."]
        return Table(columns, rows, f"gradients and costs at {longest} tokens, retrieval", notes)

    def advice(self) -> list[str]:
        """Up to which length the model can be trusted as it is, which methods help, and how to get them."""
        return [self._trust(), *self._helpful(), *self._refused()]

    def _trust(self) -> str:
        trusted, reason = self.train_length, ""
        for row in self.of(STOCK):
            if row["outcome"] not in ("uses", "crops"):
                reason = f"; at {row['length']:,} it {_shows(row)}"
                break
            trusted = row["length"]
        if not self.of(STOCK):
            return f"Without a method the model has no positions past {self.about['limit']:,} tokens."
        past = "its training length, " if trusted == self.train_length else ""
        return f"Without a method, trust the model up to {past}{trusted:,} tokens{reason}."

    def _helpful(self) -> list[str]:
        sentences = []
        longest = self.lengths[-1]
        for method in self.methods:
            uses = [row for row in self.of(method) if row["outcome"] == "uses"]
            if method == STOCK or not uses:
                continue
            costs = self.about["methods"]
            time = costs[method]["seconds"] / costs[CROP]["seconds"]
            cache = costs[method]["cache_bytes"]
            held = "" if cache is None else f" and a cache of {format_bytes(cache)}"
            gains = ", ".join(f"× {row['ratio']:.3f} at {row['length']:,}" for row in uses)
            sentences.append(
                f"{method} uses the context from {uses[0]['length']:,} tokens on ({gains} against the crop); at "
                f"{longest:,} tokens it takes {time:.1f} times as long as the crop{held}."
            )
            rope = costs[method]["configuration"]
            if rope is not None:
                sentences.append(f"To get {method}, put into config.json: {json.dumps(rope)}")
        if not sentences:
            sentences.append(f"No method is known to use context past {self.train_length:,} tokens: a crop is as good.")
        return sentences

    def _refused(self) -> list[str]:
        return [f"Not tried: {reason}." for reason in self.about["refused"]]

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, **self.about, "advice": self.advice()}


def _shows(row: dict[str, Any]) -> str:
    return "breaks" if row["outcome"] == "breaks" else "is undecided"


def perplexity(loss: float) -> float | None:
    """e to the mean loss; None where it would overflow."""
    return math.exp(loss) if loss < 700 else None


Curve = tuple[str, Sequence[int], Sequence[float | None]]


def lines(result: ExtensionResult) -> list[Curve]:
    """Name, lengths and perplexities of the crop and of every method, from the training length on."""
    crop, first = result.about["crop"]["perplexity"], result.train_length
    curves: list[Curve] = [(CROP, [first, *result.lengths], [crop] * (1 + len(result.lengths)))]
    for method in result.methods:
        start = result.about["methods"][method]["trained"]
        points = [(first, start)] if start is not None else []
        points += [(row["length"], row["perplexity"]) for row in result.of(method)]
        curves.append((method, [x for x, _ in points], [y for _, y in points]))
    return curves
