"""Receptive fields of Sandwich, Smoothed, KERPLE and T5, and how far apart they lie."""

import dataclasses

from fieldlens.paper.artifact import Drawn
from fieldlens.paper.artifacts.sec3 import CumulativeGradients
from fieldlens.paper.fields import distance
from fieldlens.paper.shelf import Shelf
from fieldlens.sheet import Sheet

ALIKE = ("sandwich", "smoothed", "kerple", "t5")
OTHERS = ("alibi", "window:80")
"""For contrast: what the paper says they differ from."""


class SandwichKerpleT5(CumulativeGradients):
    name, corpus, models = "sandwich_kerple_t5_receptive", "arxiv", (*ALIKE, *OTHERS)
    title = "Cumulative gradient of Sandwich, Smoothed, KERPLE and T5 on ArXiv"

    def draw(self, shelf: Shelf) -> Drawn:
        drawn = super().draw(shelf)
        return dataclasses.replace(drawn, sheets=[*drawn.sheets, _distances(shelf)])


def _distances(shelf: Shelf) -> Sheet:
    models = (*ALIKE, *OTHERS)
    fields = {model: shelf.field(model, "arxiv") for model in models}
    rows = []
    for a in models:
        one = fields[a]
        row = [
            "–" if one is None or other is None else f"{distance(one, other):.3f}"
            for other in (fields[b] for b in models)
        ]
        rows.append([shelf.spec(a), *row])
    note = "The largest gap between two cumulative curves, from 0 (one curve) to 1."
    return Sheet(["distance", *(shelf.spec(model) for model in models)], rows, "how far apart the curves lie", (note,))
