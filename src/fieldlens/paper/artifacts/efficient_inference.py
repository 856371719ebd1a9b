"""Efficient inference: a sliding cache of four training lengths, beside none on the same targets."""

from typing import Any

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.cells import both, record, row_heading, score
from fieldlens.paper.printed import cells
from fieldlens.paper.shelf import ALL, Shelf
from fieldlens.sheet import Sheet
from fieldlens.study.plan import Job

CACHE = 2048
LENGTHS = (4096, 8192, 16384)
MODELS = ("sandwich", "alibi")


def cached(shelf: Shelf, window: bool) -> dict[str, Any]:
    """Which evaluation is meant: the one with a cache window, or its twin without."""
    return {"lengths": [shelf.length(n) for n in LENGTHS], "window": shelf.length(CACHE) if window else None}


class EfficientInference(Artifact):
    name, kind = "efficient_inference", "table"
    title = "Efficient inference: a sliding cache of 4 training lengths"

    def jobs(self, shelf: Shelf) -> list[Job]:
        return shelf.jobs(MODELS, ALL)

    def draw(self, shelf: Shelf) -> Drawn:
        printed, records, sheets = cells(f"tab:{self.name}"), [], []
        pairs = [(corpus, model) for corpus in ALL for model in MODELS]
        columns = ["L_ex / L_tr", *(f"{shelf.corpus_label(corpus)}: {model}" for corpus, model in pairs)]
        for window in (True, False):
            rows = []
            for length in LENGTHS:
                row = [row_heading(shelf, length)]
                for corpus, model in pairs:
                    there = printed[corpus, model, length] if window else None
                    ours = score(shelf, model, corpus, length, **cached(shelf, window))
                    row.append(both(there, ours) if window else str(ours))
                    known = record(shelf, corpus, model, length, there, ours)
                    records.append({**known, "cache": shelf.length(CACHE) if window else None})
                rows.append(row)
            what = (
                f"a cache of {CACHE} | {shelf.length(CACHE)} keys (paper · ours)"
                if window
                else "no cache window (ours)"
            )
            sheets.append(Sheet(columns, rows, f"perplexity with {what}"))
        return Drawn(sheets, records=records)
