"""Sinusoidal at two training lengths: the gradient jumps where training ended."""

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
"""Also quieter, as one adds positions to small embeddings; the paper does not say which it did."""
SPAN = 16
"""A jump is looked for among spans of L_tr / SPAN tokens."""


def spans(field: ReceptiveField, trained: int) -> dict[int, float]:
    """The weight of each span of L_tr / 16 tokens before the most recent L_tr, over their mean, by its middle.

    Positions count from 1.
    """
    span = max(1, trained // SPAN)
    older = field.shares()[: max(span, field.length - trained)]
    sums = [float(older[start : start + span].sum()) for start in range(len(older) - span + 1)]
    mean = sum(sums) / len(sums)
    return {start + 1 + span // 2: one / mean if mean else 0.0 for start, one in enumerate(sums)}


def jump(field: ReceptiveField, trained: int) -> tuple[int, float]:
    """Where the gradient leaps before the most recent L_tr tokens: the place of the heaviest span, and its weight."""
    found = spans(field, trained)
    return max(found.items(), key=lambda pair: pair[1])


class Sinusoidal(Artifact):
    name, kind = "sinusoidal_128_512", "figure"
    title = "Cumulative gradient of Sinusoidal on ArXiv at two training lengths"

    def jobs(self, results: PaperResults) -> list[Job]:
        return [job for model, trained in VARIANTS for job in results.jobs([model], ["arxiv"], trained)]

    def draw(self, results: PaperResults) -> Drawn:
        found, records, rows = [], [], []
        for model, trained in VARIANTS:
            quiet = ", scale 0.02" if ":" in model else ""
            named = f"L_tr {trained} | {results.length(trained)}{quiet}"
            found += [one._replace(label=named) for one in curves(results, [model], "arxiv", trained)]
            records += reading(results, [model], "arxiv", trained)[1]
            field = results.field(model, "arxiv", trained)
            if field is None:
                rows.append([named, "–", "–", "–"])
                continue
            place, times = jump(field, results.length(trained))
            records[-1] |= {"jump_at": place, "jump_times": times}
            rows.append([named, f"{field.within(results.length(trained)):.1%}", f"{place:,}", f"× {times:.1f}"])
        columns = ["trained on", "coverage", "jump at token", "of the mean"]
        sheet = Table(columns, rows, f"{results.corpus_label('arxiv')}: the jump")
        return Drawn(
            [sheet], {"": on_corpus(position_curves(found), results.corpus_label("arxiv"))} if found else {}, records
        )
