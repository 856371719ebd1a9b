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
from fieldlens.paper.results import ALL_CORPORA, PaperResults
from fieldlens.paper.scale import LENGTHS
from fieldlens.reporting.plots import Line, figure_of, growth_lines, perplexity_lines
from fieldlens.reporting.table import Table
from fieldlens.study.plan import Job

FREE = ("sandwich", "smoothed", "alibi", "alibi:slope_floor=0.01", "sinusoidal", "rotary")
LEARNED = ("kerple", "t5")
MODELS = (*FREE, *LEARNED)
PRINTED = tuple(model for model in MODELS if ":" not in model)
"""The models that the paper's table has; the others are shown if the study trains them."""
WITH_CONTROL = ("alibi", "alibi:slope_floor=0.01", "t5")
"""Schemes whose options contain a distance; these have a control."""


class MainTable(Artifact):
    name, kind = "openweb-github-arxiv", "table"
    title = "Perplexity of every scheme on three corpora"

    def jobs(self, results: PaperResults) -> list[Job]:
        jobs = results.jobs(MODELS, ALL_CORPORA)
        names = {job.name for job in jobs}
        controls = results.jobs(WITH_CONTROL, ["arxiv"], control=True) if results.has_control else []
        return jobs + [job for job in controls if job.name not in names]

    def draw(self, results: PaperResults) -> Drawn:
        printed, sheets, records, tested, figures = cells(f"tab:{self.name}"), [], [], [], {}
        for corpus in results.corpora:
            compared = comparison(results, corpus)
            has_sandwich = compared and compared.groups[0].name == results.spec("sandwich")
            against = compared if has_sandwich else None  # without Sandwich there are no tests
            marks = {(cell["group"], cell["length"]): cell["mark"] for cell in against.cells} if against else {}
            rows = []
            models = [(model, False) for model in MODELS if model in PRINTED or results.jobs([model], ALL_CORPORA)]
            models += [(model, True) for model in WITH_CONTROL if corpus == "arxiv" and results.has_control]
            for name, control in models:
                spec, row = results.spec(name, control), []
                for length in LENGTHS:
                    paper = printed.get((corpus, name, length))
                    ours = score(results, name, corpus, length, control=control)
                    if not control:
                        ours = dataclasses.replace(ours, mark=marks.get((spec, results.length(length)), ""))
                    row.append(both(paper, ours))
                    records.append(record(results, corpus, name, length, paper, ours, control))
                rows.append([_row_label(name, spec, control), *row])
            columns = ["model", *(row_heading(results, length) for length in LENGTHS)]
            notes = against.notes() if against else []
            sheets.append(Table(columns, rows, f"{results.corpus_label(corpus)} (paper · ours)", notes))
            tested += _tests(results.corpus(corpus), against) if against else []
            if compared is not None:
                lines = _lines(results, compared)
                drawings = {"": figure_of(perplexity_lines(lines)), "-growth": growth_lines(lines)}
                for suffix, figure in drawings.items():
                    figures[f"-{results.corpus(corpus)}{suffix}"] = on_corpus(figure, results.corpus_label(corpus))
        for test, corrected in zip(tested, holm([test["p"] for test in tested]), strict=True):
            test["p_holm"] = corrected
        return Drawn([*sheets, *_test_sheet(tested)], figures, _with_tests(records, tested))


def comparison(results: PaperResults, corpus: str) -> Comparison | None:
    """Compare the first model with the others at the table's lengths; None if there are no results."""
    lengths = {results.length(length) for length in LENGTHS}
    evaluations: list[Evaluation] = []
    for model in MODELS:
        for evaluation in results.evaluations(model, corpus).values():
            losses = {length: loss for length, loss in evaluation.losses.items() if length in lengths}
            evaluations.append(dataclasses.replace(evaluation, losses=losses))
    if not any(evaluation.losses for evaluation in evaluations):
        return None
    try:
        return compare(evaluations)
    except BadInput as error:
        raise BadInput(f"cannot compare the results on {results.corpus(corpus)} in one table: {error}") from None


def _lines(results: PaperResults, compared: Comparison) -> list[Line]:
    """Lines of the figure, with the paper's names; ALiBi comes last, so that it gets the scheme's main colour."""
    names = {results.spec(model): model.replace(":slope_floor=0.01", ", slope floor") for model in MODELS}
    lines = [line._replace(label=names.get(line.label, line.label)) for line in compared.lines()]
    return sorted(lines, key=lambda line: line.label == "alibi")


def _row_label(name: str, spec: str, control: bool) -> str:
    if control:
        return f"{spec} (the paper's own distances, a control)"
    return name if name == spec else f"{name} | {spec}"


def _tests(corpus: str, compared: Comparison) -> list[dict[str, Any]]:
    """One test per cell: over seeds if there are two or more, else over the documents of the only seed."""
    rows: list[dict[str, Any]] = []
    within = {(row["group"], row["length"]): row for row in compared.within}
    for cell in compared.cells:
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
    """Add to the record of each cell its test."""
    by_cell = {(test["corpus"], test["group"], test["length"]): test for test in tests}
    tested = []
    for cell in records:
        scaled = cell["distances"] == "scaled"  # a control is not tested
        test = by_cell.get((cell["our_corpus"], cell["our_model"], cell["our_length"]), {}) if scaled else {}
        tested.append(cell | {f"test_{key}": test.get(key) for key in ("by", "difference", "p", "p_holm")})
    return tested


def _test_sheet(rows: list[dict[str, Any]]) -> list[Table]:
    if not rows:
        return []
    body = [
        [row["corpus"], row["group"], str(row["length"]), row["by"], f"{row['difference']:.4g}"]
        + [_p(row[key]) for key in ("p", "p_holm")]
        for row in rows
    ]
    note = "Differences to Sandwich: of perplexity over seeds (paired t-test), of nats over documents (sign flips)."
    columns = ["corpus", "model", "length", "over", "difference", "p", "p (Holm, all of the table)"]
    return [Table(columns, body, f"all {len(rows)} tests of this table", (note,))]


def _p(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"
