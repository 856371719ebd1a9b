"""The three experiments: perplexity as slopes are shifted, made equal, or replaced by a window."""

from typing import Any, ClassVar

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.cells import both, record, row_heading, score
from fieldlens.paper.printed import CORPORA, cells
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import LENGTHS, heading, spec_of
from fieldlens.reporting.table import Table
from fieldlens.study.plan import Job

SHIFTS = tuple(f"shift:{value}" for value in (-3, 0, 2, 4, 6, 8))
SAME = tuple(f"same:{value}" for value in (0, 2, 4, 6, 8))
WINDOWS = tuple(f"window:{value}" for value in (40, 80, 100, 120, 160, 320))
EXPERIMENTS = {
    "shift all h by Δ": SHIFTS,
    "same h for all heads": SAME,
    "windowed attention, w keys": WINDOWS,
}
MODELS = (*SHIFTS, *SAME, *WINDOWS)


class ThreeExperiments(Artifact):
    """A table with lengths as rows and variants as columns."""

    kind = "table"
    corpus: ClassVar[str]
    control: ClassVar[bool] = False
    """Whether to add a control with the paper's own distances."""

    def jobs(self, results: PaperResults) -> list[Job]:
        jobs = results.jobs(MODELS, results.corpora_beside(self.corpus))
        if not self.control or not results.has_control:
            return jobs
        names = {job.name for job in jobs}
        return jobs + [job for job in results.jobs(MODELS, [self.corpus], control=True) if job.name not in names]

    def draw(self, results: PaperResults) -> Drawn:
        sheets, records = [], []
        parts = [(corpus, False) for corpus in results.corpora_beside(self.corpus)]
        parts += [(self.corpus, True)] if self.control and results.has_control else []
        for corpus, control in parts:
            for title, models in EXPERIMENTS.items():
                sheet, sheet_records = self._sheet(results, corpus, title, models, control)
                sheets.append(sheet)
                records += sheet_records
        return Drawn(sheets, records=records)

    def _sheet(
        self, results: PaperResults, corpus: str, title: str, models: tuple[str, ...], control: bool
    ) -> tuple[Table, list[dict[str, Any]]]:
        printed, rows, records = cells(f"tab:{self.name}"), [], []
        for length in LENGTHS:
            row = [row_heading(results, length)]
            for model in models:
                paper = printed[self.corpus, model, length]
                ours = score(results, model, corpus, length, control=control)
                row.append(both(paper, ours))
                records.append(record(results, corpus, model, length, paper, ours, control, self.corpus))
            rows.append(row)
        columns = [heading(spec_of(model), results.spec(model, control)) for model in models]
        label = results.corpus_label(corpus)
        content = "the paper's own distances, a control" if control else results.paper_label(corpus, self.corpus)
        unwindowed = control and models is WINDOWS
        notes = ["A window of the training length or more: trained without a window."] if unwindowed else []
        return Table(["L_ex / L_tr", *columns], rows, f"{label}: {title} ({content})", notes), records


class ArXiv(ThreeExperiments):
    name, corpus, control = "arxiv", "arxiv", True
    title = f"The three experiments on {CORPORA['arxiv']}"


class OpenWebText2(ThreeExperiments):
    name, corpus = "openwebtext2", "openwebtext2"
    title = f"The three experiments on {CORPORA['openwebtext2']}"
