"""Table cells: the paper's number next to ours."""

import statistics
from dataclasses import dataclass
from typing import Any

from fieldlens.evaluation.compare import places
from fieldlens.paper.printed import Cell
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED

SEPARATOR = " · "


@dataclass(frozen=True)
class Score:
    """Perplexity of one model at one length, by seed."""

    values: dict[int, float]
    diverged: int = 0
    mark: str = ""

    @property
    def mean(self) -> float | None:
        return statistics.fmean(self.values.values()) if self.values else None

    @property
    def deviation(self) -> float | None:
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    def __str__(self) -> str:
        if self.mean is None:
            return "diverged" if self.diverged else "–"
        digits = places(self.mean, self.deviation)
        spread = f" ± {self.deviation:.{digits}f}" if self.deviation is not None else ""
        suffix = f" ({self.diverged} diverged)" if self.diverged else ""
        return f"{self.mean:.{digits}f}{spread}{self.mark}{suffix}"


def score(
    results: PaperResults,
    model: str,
    corpus: str,
    length: int,
    trained: int = TRAINED,
    control: bool = False,
    **criteria: Any,
) -> Score:
    """Our score for a model, corpus and length of the paper."""
    evaluations = results.evaluations(model, corpus, trained, control, **criteria)
    our_length = results.length(length)
    values = {
        seed: evaluation.score(our_length)
        for seed, evaluation in evaluations.items()
        if our_length in evaluation.losses
    }
    return Score(values, sum(not evaluation.losses for evaluation in evaluations.values()))


def both(paper: Cell | None, ours: Score) -> str:
    """The text of a cell: paper · ours."""
    return f"{paper if paper is not None else '–'}{SEPARATOR}{ours}"


def record(
    results: PaperResults,
    corpus: str,
    model: str,
    length: int,
    paper: Cell | None,
    ours: Score,
    control: bool = False,
    printed: str | None = None,
) -> dict[str, Any]:
    """The CSV record of a cell at full precision; `printed` is the corpus of the paper's number, if it is another."""
    return {
        "corpus": corpus,
        "model": model,
        "length": length,
        "our_corpus": results.corpus(corpus),
        "our_model": results.spec(model, control),
        "our_length": results.length(length),
        "distances": "paper" if control else "scaled",
        "paper_corpus": printed or corpus,
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
    """The relative length, with the paper's length and ours: × 2 (1024 | 256)."""
    relative = f"× {length / TRAINED:g}"
    return f"{relative} ({length})" if results.factor == 1 else f"{relative} ({length} | {results.length(length)})"
