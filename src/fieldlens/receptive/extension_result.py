"""The result of `fieldlens extend`: methods against a crop at every length, what they cost, and advice."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fieldlens.core.format import format_bytes
from fieldlens.evaluation.equivalence import percent, ratio
from fieldlens.receptive.extend_request import CROP, STOCK
from fieldlens.receptive.extension_advice import advice
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
        """Perplexities with outcomes, the evidence for them, retrieval, and costs."""
        retrieval = [self._retrieval()] if any(x["retrieval"] for x in self.about["methods"].values()) else []
        return [self._outcomes(), self._evidence(), *retrieval, self._costs()]

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

    def _retrieval(self) -> Table:
        """Right answers by length; at the training length the pair is anywhere, past it out of reach of a crop."""
        methods = self.about["methods"]
        lengths = sorted({int(length) for record in methods.values() for length in record["retrieval"]})
        rows = [[name, *(_share(methods[name]["retrieval"].get(str(n))) for n in lengths)] for name in self._names]
        notes = ["Share of right answers among 4 candidates (chance 25%) with the 95% Wilson interval; * above chance."]
        title = f"retrieval by context length; past {self.train_length} tokens a crop cannot see the answer"
        return Table(["method", *map(str, lengths)], rows, title, notes)

    def _costs(self) -> Table:
        rows, longest = [], self.lengths[-1]
        crop = self.about["methods"][CROP]["seconds"]
        for name in self._names:
            record = self.about["methods"][name]
            beyond, cache, time = (record[key] for key in ("gradient_beyond", "cache_bytes", "seconds"))
            times = ["–", "–"] if time is None else [f"{time:.3g}", f"{time / crop:.2f}"]
            share, size = "–" if beyond is None else f"{beyond:.1%}", "–" if cache is None else format_bytes(cache)
            rows.append([name, share, *times, size])
        seconds = "CPU seconds" if self.about["machine"]["device"] == "cpu" else "seconds"
        columns = ["method", f"gradient beyond {self.train_length}", seconds, "time / crop", "cache"]
        return Table(columns, rows, f"gradient, time of a forward pass and cache at {longest} tokens")

    @property
    def _names(self) -> list[str]:
        """The crop, the model as it is, and the methods."""
        return list(dict.fromkeys((CROP, STOCK, *self.methods)))

    def advice(self) -> list[str]:
        """Up to which length the model can be trusted as it is, which methods help, and how to get them."""
        return advice(self.about)

    def to_json(self) -> dict[str, Any]:
        return {"kind": KIND, **self.about, "advice": self.advice()}


def _share(task: dict[str, Any] | None) -> str:
    if task is None:
        return "–"
    return f"{task['accuracy']:.0%} ({task['low']:.0%}–{task['high']:.0%}){'*' * task['shown']}"


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
