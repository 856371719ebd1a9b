"""Rotary: its cumulative gradient leaves the training length."""

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.diagrams import on_corpus, position_curves
from fieldlens.paper.fields import curves, reading
from fieldlens.paper.shelf import Shelf
from fieldlens.study.plan import Job


class Rotary(Artifact):
    name, kind = "rotary_512", "figure"
    title = "Cumulative gradient of Rotary on ArXiv"

    def jobs(self, shelf: Shelf) -> list[Job]:
        return shelf.jobs(["rotary"], ["arxiv"])

    def draw(self, shelf: Shelf) -> Drawn:
        sheet, records = reading(shelf, ["rotary"], "arxiv")
        found = curves(shelf, ["rotary"], "arxiv")
        return Drawn(
            [sheet], {"": on_corpus(position_curves(found), shelf.corpus_label("arxiv"))} if found else {}, records
        )
