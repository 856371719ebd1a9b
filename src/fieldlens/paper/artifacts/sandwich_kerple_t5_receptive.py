"""Receptive fields of Sandwich, Smoothed, KERPLE and T5, and the distances between their curves."""

import dataclasses

from fieldlens.paper.artifact import Drawn
from fieldlens.paper.artifacts.sec3 import CumulativeGradients
from fieldlens.paper.fields import distance
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.table import Table

ALIKE = ("sandwich", "smoothed", "kerple", "t5")
OTHERS = ("alibi", "window:80")
"""For contrast: models from which they differ according to the paper."""


class SandwichKerpleT5(CumulativeGradients):
    name, corpus, models = "sandwich_kerple_t5_receptive", "arxiv", (*ALIKE, *OTHERS)
    title = "Cumulative gradient of Sandwich, Smoothed, KERPLE and T5 on ArXiv"

    def draw(self, results: PaperResults) -> Drawn:
        drawn = super().draw(results)
        distances = {corpus: _distances(results, corpus) for corpus in results.corpora_beside(self.corpus)}
        records = [
            record
            | {f"distance_to_{other}": gap for other, gap in distances[record["corpus"]][record["model"]].items()}
            for record in drawn.records
        ]
        sheets = [_sheet(results, corpus, gaps) for corpus, gaps in distances.items()]
        return dataclasses.replace(drawn, sheets=[*drawn.sheets, *sheets], records=records)


def _distances(results: PaperResults, corpus: str) -> dict[str, dict[str, float | None]]:
    fields = {model: results.field(model, corpus) for model in (*ALIKE, *OTHERS)}
    return {
        a: {b: distance(first, second) if first and second else None for b, second in fields.items()}
        for a, first in fields.items()
    }


def _sheet(results: PaperResults, corpus: str, distances: dict[str, dict[str, float | None]]) -> Table:
    rows = [
        [results.label(model), *("–" if gap is None else f"{gap:.3f}" for gap in gaps.values())]
        for model, gaps in distances.items()
    ]
    note = "The largest gap between two cumulative curves, from 0 (one curve) to 1."
    title = f"{results.corpus_label(corpus)}: how far apart the curves lie"
    return Table(["distance", *map(results.label, distances)], rows, title, (note,))
