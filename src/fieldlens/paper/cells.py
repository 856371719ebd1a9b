"""Cells of tables: the paper's number, and ours beside it."""

import statistics as plain
from dataclasses import dataclass
from typing import Any

from fieldlens.evaluation.compare import places
from fieldlens.paper.printed import Cell
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED

BETWEEN = " · "


@dataclass(frozen=True)
class Score:
    """Perplexity of one model at one length over the seeds that are there."""

    values: dict[int, float]
    diverged: int = 0
    mark: str = ""

    @property
    def mean(self) -> float | None:
        return plain.fmean(self.values.values()) if self.values else None

    @property
    def deviation(self) -> float | None:
        return plain.stdev(self.values.values()) if len(self.values) > 1 else None

    def __str__(self) -> str:
        if self.mean is None:
            return "diverged" if self.diverged else "–"
        digits = places(self.mean)
        spread = f" ± {self.deviation:.{digits}f}" if self.deviation is not None else ""
        lost = f" ({self.diverged} diverged)" if self.diverged else ""
        return f"{self.mean:.{digits}f}{spread}{self.mark}{lost}"


def score(
    results: PaperResults,
    model: str,
    corpus: str,
    length: int,
    trained: int = TRAINED,
    control: bool = False,
    **asked: Any,
) -> Score:
    """Ours, for a model, corpus and length of the paper's."""
    found = results.evaluations(model, corpus, trained, control, **asked)
    here = results.length(length)
    values = {seed: one.score(here) for seed, one in found.items() if here in one.losses}
    return Score(values, sum(not one.losses for one in found.values()))


def both(paper: Cell | None, ours: Score) -> str:
    """*paper · ours*."""
    return f"{paper if paper is not None else '–'}{BETWEEN}{ours}"


def record(
    results: PaperResults, corpus: str, model: str, length: int, paper: Cell | None, ours: Score, control: bool = False
) -> dict[str, Any]:
    """The same for a spreadsheet, in full: the paper's corpus, model and length, and what ours was measured on."""
    return {
        "corpus": corpus,
        "model": model,
        "length": length,
        "our_corpus": results.corpus(corpus),
        "our_model": results.spec(model, control),
        "our_length": results.length(length),
        "distances": "paper" if control else "scaled",
        "paper": paper and paper.value,
        "paper_deviation": paper and paper.deviation,
        "paper_mark": paper and paper.mark,
        "ours": ours.mean,
        "deviation": ours.deviation,
        "mark": ours.mark,
        "seeds": len(ours.values),
        "diverged": ours.diverged,
    }


def row_heading(results: PaperResults, length: int) -> str:
    """A relative length, with the paper's and ours: × 2 (1024 | 256)."""
    relative = f"× {length / TRAINED:g}"
    return f"{relative} ({length})" if results.factor == 1 else f"{relative} ({length} | {results.length(length)})"
