"""The effect of Sandwich's dimensions d̄ on the bias and on trained models."""

from fieldlens.evaluation.compare import compare
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.artifacts.heatmap_8 import HEADS, biases
from fieldlens.paper.cells import record, row_heading, score
from fieldlens.paper.diagrams import on_corpus
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import LENGTHS
from fieldlens.reporting.plots import figure_of, one_head, perplexity_lines
from fieldlens.reporting.table import Table
from fieldlens.schemes.spec import parse
from fieldlens.study.plan import Job

MODELS = ("sandwich:dims=32", "sandwich:dims=64", "sandwich", "sandwich:dims=256")


class DifferentD(Artifact):
    name, kind = "different_d", "figure"
    title = "The effect of d̄, on the bias and on trained models"

    def jobs(self, results: PaperResults) -> list[Job]:
        return results.jobs(MODELS, results.corpora[:1])

    def draw(self, results: PaperResults) -> Drawn:
        corpus = results.corpora[0]
        rows, records = [], []
        for length in LENGTHS:
            scores = [score(results, model, corpus, length) for model in MODELS]
            rows.append([row_heading(results, length), *map(str, scores)])
            records += [
                record(results, corpus, model, length, None, ours) for model, ours in zip(MODELS, scores, strict=True)
            ]
        columns = ["L_ex / L_tr", *map(_dims, MODELS)]
        title = f"{results.corpus_label(corpus)}: perplexity of trained models (ours; the paper prints none)"
        evaluations = [evaluation for model in MODELS for evaluation in results.evaluations(model, corpus).values()]
        figures = {"": one_head(biases(*MODELS), HEADS, True, names=[_dims(model) for model in MODELS])}
        if any(evaluation.losses for evaluation in evaluations):
            lines = compare(evaluations).lines()
            trained = perplexity_lines([line._replace(label=_dims(line.label)) for line in lines])
            figures["-trained"] = on_corpus(figure_of(trained), results.corpus_label(corpus))
        return Drawn([Table(columns, rows, title)], figures, records)


def _dims(spec: str) -> str:
    return f"d̄ = {parse(spec)[1].get('dims', 128)}"
