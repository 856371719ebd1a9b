"""Efficient inference: a sliding cache of four training lengths, and no cache window on the same targets."""

from typing import Any

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.cells import both, record, row_heading, score
from fieldlens.paper.printed import cells
from fieldlens.paper.results import ALL_CORPORA, PaperResults
from fieldlens.reporting.table import Table
from fieldlens.study.plan import Job

CACHE = 2048
LENGTHS = (4096, 8192, 16384)
MODELS = ("sandwich", "alibi")


def cached(results: PaperResults, window: bool) -> dict[str, Any]:
    """Criteria that select the evaluation with the cache window, or the matching one without."""
    return {"lengths": [results.length(n) for n in LENGTHS], "window": results.length(CACHE) if window else None}


class EfficientInference(Artifact):
    name, kind = "efficient_inference", "table"
    title = "Efficient inference: a sliding cache of 4 training lengths"

    def jobs(self, results: PaperResults) -> list[Job]:
        return results.jobs(MODELS, ALL_CORPORA)

    def draw(self, results: PaperResults) -> Drawn:
        printed, records, sheets = cells(f"tab:{self.name}"), [], []
        pairs = [(corpus, model) for corpus in results.corpora for model in MODELS]
        columns = ["L_ex / L_tr", *(f"{results.corpus_label(corpus)}: {model}" for corpus, model in pairs)]
        for window in (True, False):
            rows = []
            for length in LENGTHS:
                row = [row_heading(results, length)]
                for corpus, model in pairs:
                    paper = printed[corpus, model, length] if window else None
                    ours = score(results, model, corpus, length, **cached(results, window))
                    row.append(both(paper, ours) if window else str(ours))
                    cell = record(results, corpus, model, length, paper, ours)
                    records.append({**cell, "cache": results.length(CACHE) if window else None})
                rows.append(row)
            setting = (
                f"a cache of {CACHE} | {results.length(CACHE)} keys (paper · ours)"
                if window
                else "no cache window (ours)"
            )
            sheets.append(Table(columns, rows, f"perplexity with {setting}"))
        return Drawn(sheets, records=records)
