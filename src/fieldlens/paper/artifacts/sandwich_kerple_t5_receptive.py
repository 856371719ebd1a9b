"""Receptive fields of Sandwich, Smoothed, KERPLE and T5, and how far apart they lie."""

from fieldlens.draw import field_curves
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.diagrams import on_corpus
from fieldlens.paper.fields import curves, distance, reading
from fieldlens.paper.shelf import Shelf
from fieldlens.sheet import Sheet
from fieldlens.study.plan import Job

ALIKE = ("sandwich", "smoothed", "kerple", "t5")
OTHERS = ("alibi", "window:80")
"""For contrast: what the paper says they differ from."""


class SandwichKerpleT5(Artifact):
    name, kind = "sandwich_kerple_t5_receptive", "figure"
    title = "Cumulative gradient of Sandwich, Smoothed, KERPLE and T5 on ArXiv"

    def jobs(self, shelf: Shelf) -> list[Job]:
        return shelf.jobs((*ALIKE, *OTHERS), ["arxiv"])

    def draw(self, shelf: Shelf) -> Drawn:
        sheet, records = reading(shelf, (*ALIKE, *OTHERS), "arxiv")
        found = curves(shelf, (*ALIKE, *OTHERS), "arxiv")
        figures = {"": on_corpus(field_curves(found), shelf.corpus_label("arxiv"))} if found else {}
        return Drawn([sheet, _distances(shelf)], figures, records)


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
