"""The dimensions d̄ of Sandwich: what they do to the bias, and to trained models."""

from fieldlens.compare import compare
from fieldlens.draw import one_head, perplexity_lines
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.artifacts.heatmap_8 import HEADS, biases
from fieldlens.paper.cells import record, row_heading, score
from fieldlens.paper.diagrams import on_corpus
from fieldlens.paper.scale import LENGTHS
from fieldlens.paper.shelf import Shelf
from fieldlens.schemes import parse
from fieldlens.sheet import Sheet
from fieldlens.study.plan import Job

MODELS = ("sandwich:dims=32", "sandwich:dims=64", "sandwich", "sandwich:dims=256")
CORPUS = "arxiv"


class DifferentD(Artifact):
    name, kind = "different_d", "figure"
    title = "The effect of d̄, on the bias and on trained models"

    def jobs(self, shelf: Shelf) -> list[Job]:
        return shelf.jobs(MODELS, [CORPUS])

    def draw(self, shelf: Shelf) -> Drawn:
        rows, records = [], []
        for length in LENGTHS:
            found = [score(shelf, model, CORPUS, length) for model in MODELS]
            rows.append([row_heading(shelf, length), *map(str, found)])
            records += [
                record(shelf, CORPUS, model, length, None, one) for model, one in zip(MODELS, found, strict=True)
            ]
        columns = ["L_ex / L_tr", *map(_dims, MODELS)]
        title = f"{shelf.corpus_label(CORPUS)}: perplexity of trained models (ours; the paper prints none)"
        evaluated = [one for model in MODELS for one in shelf.evaluations(model, CORPUS).values()]
        figures = {"": one_head(biases(*MODELS), HEADS, True, names=[_dims(model) for model in MODELS])}
        if any(one.losses for one in evaluated):
            lines = compare(evaluated).lines()
            trained = perplexity_lines([line._replace(label=_dims(line.label)) for line in lines])
            figures["-trained"] = on_corpus(trained, shelf.corpus_label(CORPUS))
        return Drawn([Sheet(columns, rows, title)], figures, records)


def _dims(spec: str) -> str:
    return f"d̄ = {parse(spec)[1].get('dims', 128)}"
