"""Cumulative gradients by window."""

from typing import ClassVar

from fieldlens.draw import field_curves
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.artifacts.arxiv_openwebtext2 import WINDOWS
from fieldlens.paper.diagrams import on_corpus
from fieldlens.paper.fields import curves, reading
from fieldlens.paper.printed import CORPORA
from fieldlens.paper.shelf import Shelf
from fieldlens.study.plan import Job


class CumulativeGradients(Artifact):
    """One line per model of one experiment; ERF and training length marked."""

    kind = "figure"
    corpus: ClassVar[str]
    models: ClassVar[tuple[str, ...]]

    def jobs(self, shelf: Shelf) -> list[Job]:
        return shelf.jobs(self.models, [self.corpus])

    def draw(self, shelf: Shelf) -> Drawn:
        sheet, records = reading(shelf, self.models, self.corpus)
        found = curves(shelf, self.models, self.corpus)
        return Drawn(
            [sheet], {"": on_corpus(field_curves(found), shelf.corpus_label(self.corpus))} if found else {}, records
        )


class ArXivWindows(CumulativeGradients):
    name, corpus, models = "arxiv_sec3", "arxiv", WINDOWS
    title = f"Cumulative gradient by window on {CORPORA['arxiv']}"


class OpenWebText2Windows(CumulativeGradients):
    name, corpus, models = "openwebtext2_sec3", "openwebtext2", WINDOWS
    title = f"Cumulative gradient by window on {CORPORA['openwebtext2']}"
