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
    """Lengths down, variants across."""

    kind = "table"
    corpus: ClassVar[str]
    control: ClassVar[bool] = False
    """Whether the paper's own distances are shown too."""

    def jobs(self, results: PaperResults) -> list[Job]:
        found = results.jobs(MODELS, [self.corpus])
        if not self.control or results.factor == 1:
            return found
        names = {job.name for job in found}
        return found + [job for job in results.jobs(MODELS, [self.corpus], control=True) if job.name not in names]

    def draw(self, results: PaperResults) -> Drawn:
        sheets, records = [], []
        for control in (False, True) if self.control and results.factor != 1 else (False,):
            for title, models in EXPERIMENTS.items():
                sheet, found = self._sheet(results, title, models, control)
                sheets.append(sheet)
                records += found
        return Drawn(sheets, records=records)

    def _sheet(
        self, results: PaperResults, title: str, models: tuple[str, ...], control: bool
    ) -> tuple[Table, list[dict[str, Any]]]:
        printed, rows, records = cells(f"tab:{self.name}"), [], []
        for length in LENGTHS:
            row = [row_heading(results, length)]
            for model in models:
                there = printed[self.corpus, model, length]
                ours = score(results, model, self.corpus, length, control=control)
                row.append(both(there, ours))
                records.append(record(results, self.corpus, model, length, there, ours, control))
            rows.append(row)
        columns = [heading(spec_of(model), results.spec(model, control)) for model in models]
        named = results.corpus_label(self.corpus)
        what = "the paper's own distances, a control" if control else "paper · ours"
        bare = control and models is WINDOWS
        notes = ["A window of the training length or more: trained without a window."] if bare else []
        return Table(["L_ex / L_tr", *columns], rows, f"{named}: {title} ({what})", notes), records


class ArXiv(ThreeExperiments):
    name, corpus, control = "arxiv", "arxiv", True
    title = f"The three experiments on {CORPORA['arxiv']}"


class OpenWebText2(ThreeExperiments):
    name, corpus = "openwebtext2", "openwebtext2"
    title = f"The three experiments on {CORPORA['openwebtext2']}"
