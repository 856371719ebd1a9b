"""The main table: every scheme on three corpora, over seeds, tested against Sandwich."""

import dataclasses
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.compare import Comparison, compare
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import holm
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.cells import both, record, row_heading, score
from fieldlens.paper.diagrams import on_corpus
from fieldlens.paper.printed import cells
from fieldlens.paper.results import ALL, PaperResults
from fieldlens.paper.scale import LENGTHS
from fieldlens.reporting.plots import Line, growth_lines, perplexity_lines
from fieldlens.reporting.table import Table
from fieldlens.study.plan import Job

FREE = ("sandwich", "smoothed", "alibi", "alibi:slope_floor=0.01", "sinusoidal", "rotary")
LEARNED = ("kerple", "t5")
MODELS = (*FREE, *LEARNED)
DISTANT = ("alibi", "alibi:slope_floor=0.01", "t5")
"""Those that know a distance, and so have a control."""


class MainTable(Artifact):
    name, kind = "openweb-github-arxiv", "table"
    title = "Perplexity of every scheme on three corpora"

    def jobs(self, results: PaperResults) -> list[Job]:
        found = results.jobs(MODELS, ALL)
        names = {job.name for job in found}
        return found + [job for job in results.jobs(DISTANT, ["arxiv"], control=True) if job.name not in names]

    def draw(self, results: PaperResults) -> Drawn:
        printed, sheets, records, tested, figures = cells(f"tab:{self.name}"), [], [], [], {}
        for corpus in ALL:
            found = comparison(results, corpus)
            against = found if found and found.groups[0].name == results.spec("sandwich") else None  # else no tests
            marks = {(cell["group"], cell["length"]): cell["mark"] for cell in against.cells} if against else {}
            rows = []
            shown = [(model, False) for model in MODELS]
            shown += [(model, True) for model in DISTANT if corpus == "arxiv" and results.factor != 1]
            for name, control in shown:
                spec, row = results.spec(name, control), []
                for length in LENGTHS:
                    there = printed.get((corpus, name, length))
                    ours = score(results, name, corpus, length, control=control)
                    if not control:
                        ours = dataclasses.replace(ours, mark=marks.get((spec, results.length(length)), ""))
                    row.append(both(there, ours))
                    records.append(record(results, corpus, name, length, there, ours, control))
                rows.append([_named(name, spec, control), *row])
            columns = ["model", *(row_heading(results, length) for length in LENGTHS)]
            notes = against.notes() if against else []
            sheets.append(Table(columns, rows, f"{results.corpus_label(corpus)} (paper · ours)", notes))
            tested += _tests(results.corpus(corpus), against) if against else []
            if found is not None:
                lines = _lines(results, found)
                for ending, figure in {"": perplexity_lines(lines), "-growth": growth_lines(lines)}.items():
                    figures[f"-{results.corpus(corpus)}{ending}"] = on_corpus(figure, results.corpus_label(corpus))
        for test, fixed in zip(tested, holm([test["p"] for test in tested]), strict=True):
            test["p_holm"] = fixed
        return Drawn([*sheets, *_sheet_of_tests(tested)], figures, _with_tests(records, tested))


def comparison(results: PaperResults, corpus: str) -> Comparison | None:
    """The first of the models against the others at the table's lengths; nothing where there is no such result."""
    lengths = {results.length(length) for length in LENGTHS}
    found: list[Evaluation] = []
    for model in MODELS:
        for one in results.evaluations(model, corpus).values():
            some = {length: losses for length, losses in one.losses.items() if length in lengths}
            found.append(dataclasses.replace(one, losses=some))
    if not any(one.losses for one in found):
        return None
    try:
        return compare(found)
    except BadInput as error:
        raise BadInput(f"the results on {results.corpus(corpus)} cannot stand in one table: {error}") from None


def _lines(results: PaperResults, found: Comparison) -> list[Line]:
    """For the figure, under the paper's names; ALiBi's variant before it, so that it has the scheme's own colour."""
    names = {results.spec(model): model.replace(":slope_floor=0.01", ", slope floor") for model in MODELS}
    lines = [line._replace(label=names.get(line.label, line.label)) for line in found.lines()]
    return sorted(lines, key=lambda line: line.label == "alibi")


def _named(name: str, spec: str, control: bool) -> str:
    if control:
        return f"{spec} (the paper's own distances, a control)"
    return name if name == spec else f"{name} | {spec}"


def _tests(corpus: str, found: Comparison) -> list[dict[str, Any]]:
    """One test for each cell: over seeds, or within the only seed."""
    rows: list[dict[str, Any]] = []
    within = {(row["group"], row["length"]): row for row in found.within}
    for cell in found.cells:
        if "p" not in cell:
            continue
        seeds = cell["pairs"] >= 2
        chosen = cell if seeds else within.get((cell["group"], cell["length"]))
        if chosen is not None:
            by = "seeds" if seeds else chosen["resampled"]
            rows.append(
                {"corpus": corpus, "by": by, **{key: chosen[key] for key in ("group", "length", "difference", "p")}}
            )
    return rows


def _with_tests(records: list[dict[str, Any]], tests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The numbers of the cells, each with its test."""
    of = {(test["corpus"], test["group"], test["length"]): test for test in tests}
    found = []
    for cell in records:
        own = cell["distances"] == "scaled"  # a control is not tested
        test = of.get((cell["our_corpus"], cell["our_model"], cell["our_length"]), {}) if own else {}
        found.append(cell | {f"test_{key}": test.get(key) for key in ("by", "difference", "p", "p_holm")})
    return found


def _sheet_of_tests(rows: list[dict[str, Any]]) -> list[Table]:
    if not rows:
        return []
    cells_ = [
        [row["corpus"], row["group"], str(row["length"]), row["by"], f"{row['difference']:.4g}"]
        + [_p(row[key]) for key in ("p", "p_holm")]
        for row in rows
    ]
    note = "Differences to Sandwich: of perplexity over seeds (paired t-test), of nats over documents (sign flips)."
    columns = ["corpus", "model", "length", "over", "difference", "p", "p (Holm, all of the table)"]
    return [Table(columns, cells_, f"all {len(rows)} tests of this table", (note,))]


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
