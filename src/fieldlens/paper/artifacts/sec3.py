"""Cumulative gradients by window."""

from collections.abc import Sequence
from typing import ClassVar

from matplotlib.figure import Figure

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.artifacts.arxiv_openwebtext2 import WINDOWS
from fieldlens.paper.diagrams import on_corpus
from fieldlens.paper.fields import curves, reading
from fieldlens.paper.printed import CORPORA
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.plots import Curve, field_curves, figure_of
from fieldlens.study.plan import Job


class CumulativeGradients(Artifact):
    """A figure with one curve per model of an experiment; ERF and training length are marked."""

    kind = "figure"
    corpus: ClassVar[str]
    models: ClassVar[tuple[str, ...]]

    def jobs(self, results: PaperResults) -> list[Job]:
        return results.jobs(self.models, results.corpora_beside(self.corpus))

    def picture(self, curves: Sequence[Curve]) -> Figure:
        return figure_of(field_curves(curves))

    def draw(self, results: PaperResults) -> Drawn:
        sheets, figures, records = [], {}, []
        corpora = results.corpora_beside(self.corpus)
        for corpus in corpora:
            sheet, sheet_records = reading(results, self.models, corpus, printed_on=self.corpus)
            sheets.append(sheet)
            records += sheet_records
            if measured := curves(results, self.models, corpus):
                suffix = f"-{results.corpus(corpus)}" if len(corpora) > 1 else ""
                figures[suffix] = on_corpus(self.picture(measured), results.corpus_label(corpus))
        return Drawn(sheets, figures, records)


class ArXivWindows(CumulativeGradients):
    name, corpus, models = "arxiv_sec3", "arxiv", WINDOWS
    title = f"Cumulative gradient by window on {CORPORA['arxiv']}"


class OpenWebText2Windows(CumulativeGradients):
    name, corpus, models = "openwebtext2_sec3", "openwebtext2", WINDOWS
    title = f"Cumulative gradient by window on {CORPORA['openwebtext2']}"
