"""Sinusoidal at two training lengths: the gradient jumps at the end of the training length."""

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.diagrams import on_corpus, position_curves
from fieldlens.paper.fields import curves, reading
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.receptive.field import ReceptiveField
from fieldlens.reporting.table import Table
from fieldlens.study.plan import Job

TRAININGS = (128, TRAINED)
VARIANTS = (*(("sinusoidal", trained) for trained in TRAININGS), ("sinusoidal:scale=0.02", TRAINED))
"""Also with positions scaled by 0.02, as for small embeddings; the paper does not state the scale."""
SPAN = 16
"""Jumps are searched among spans of L_tr / SPAN tokens."""


def spans(field: ReceptiveField, trained: int) -> dict[int, float]:
    """Gradient of each span of L_tr / 16 tokens before the most recent L_tr, divided by the mean over spans.

    Keys are the middle positions of the spans, counted from 1.
    """
    span = max(1, trained // SPAN)
    older = field.shares()[: max(span, field.length - trained)]
    sums = [float(older[start : start + span].sum()) for start in range(len(older) - span + 1)]
    mean = sum(sums) / len(sums)
    return {start + 1 + span // 2: total / mean if mean else 0.0 for start, total in enumerate(sums)}


def jump(field: ReceptiveField, trained: int) -> tuple[int, float]:
    """Position and weight of the heaviest span before the most recent L_tr tokens."""
    return max(spans(field, trained).items(), key=lambda pair: pair[1])


class Sinusoidal(Artifact):
    name, kind = "sinusoidal_128_512", "figure"
    title = "Cumulative gradient of Sinusoidal on ArXiv at two training lengths"

    def jobs(self, results: PaperResults) -> list[Job]:
        return [job for model, trained in VARIANTS for job in results.jobs([model], results.corpora[:1], trained)]

    def draw(self, results: PaperResults) -> Drawn:
        labelled, records, rows, corpus = [], [], [], results.corpora[0]
        for model, trained in VARIANTS:
            if not results.jobs([model], [corpus], trained):
                continue
            scale = ", scale 0.02" if ":" in model else ""
            label = f"L_tr {trained} | {results.length(trained)}{scale}"
            labelled += [curve._replace(label=label) for curve in curves(results, [model], corpus, trained)]
            records += reading(results, [model], corpus, trained)[1]
            field = results.field(model, corpus, trained)
            if field is None:
                rows.append([label, "–", "–", "–"])
                continue
            position, weight = jump(field, results.length(trained))
            records[-1] |= {"jump_at": position, "jump_times": weight}
            rows.append([label, f"{field.within(results.length(trained)):.1%}", f"{position:,}", f"× {weight:.1f}"])
        columns = ["trained on", "coverage", "jump at token", "of the mean"]
        sheet = Table(columns, rows, f"{results.corpus_label(corpus)}: the jump")
        figures = {"": on_corpus(position_curves(labelled), results.corpus_label(corpus))} if labelled else {}
        return Drawn([sheet], figures, records)
