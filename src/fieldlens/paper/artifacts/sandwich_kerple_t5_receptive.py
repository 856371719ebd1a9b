"""Receptive fields of Sandwich, Smoothed, KERPLE and T5, and how far apart they lie."""

import dataclasses

from fieldlens.paper.artifact import Drawn
from fieldlens.paper.artifacts.sec3 import CumulativeGradients
from fieldlens.paper.fields import distance
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.table import Table

ALIKE = ("sandwich", "smoothed", "kerple", "t5")
OTHERS = ("alibi", "window:80")
"""For contrast: what the paper says they differ from."""


class SandwichKerpleT5(CumulativeGradients):
    name, corpus, models = "sandwich_kerple_t5_receptive", "arxiv", (*ALIKE, *OTHERS)
    title = "Cumulative gradient of Sandwich, Smoothed, KERPLE and T5 on ArXiv"

    def draw(self, results: PaperResults) -> Drawn:
        drawn, apart = super().draw(results), _distances(results)
        records = [
            record | {f"distance_to_{other}": gap for other, gap in apart[record["model"]].items()}
            for record in drawn.records
        ]
        return dataclasses.replace(drawn, sheets=[*drawn.sheets, _sheet(results, apart)], records=records)


def _distances(results: PaperResults) -> dict[str, dict[str, float | None]]:
    fields = {model: results.field(model, "arxiv") for model in (*ALIKE, *OTHERS)}
    return {
        a: {b: distance(one, other) if one and other else None for b, other in fields.items()}
        for a, one in fields.items()
    }


def _sheet(results: PaperResults, apart: dict[str, dict[str, float | None]]) -> Table:
    rows = [
        [results.label(model), *("–" if gap is None else f"{gap:.3f}" for gap in gaps.values())]
        for model, gaps in apart.items()
    ]
    note = "The largest gap between two cumulative curves, from 0 (one curve) to 1."
    return Table(["distance", *map(results.label, apart)], rows, "how far apart the curves lie", (note,))
