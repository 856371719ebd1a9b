"""Sinusoidal at two training lengths: the gradient jumps where training ended."""

from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.diagrams import on_corpus, position_curves
from fieldlens.paper.fields import curves, reading
from fieldlens.paper.scale import TRAINED
from fieldlens.paper.shelf import Shelf
from fieldlens.receptive import ReceptiveField
from fieldlens.sheet import Sheet
from fieldlens.study.plan import Job

TRAININGS = (128, TRAINED)
SPAN = 16
"""A jump is looked for among spans of L_tr / SPAN tokens."""


def jump(field: ReceptiveField, trained: int) -> tuple[int, float]:
    """Where the gradient leaps before the most recent L_tr tokens: a position from 1, and its share over the mean's.

    The place is the middle of the span of L_tr / 16 tokens that holds most; the mean is that of all spans before the
    most recent L_tr tokens.
    """
    span = max(1, trained // SPAN)
    older = field.shares()[: max(span, field.length - trained)]
    sums = [float(older[start : start + span].sum()) for start in range(len(older) - span + 1)]
    best = max(range(len(sums)), key=sums.__getitem__)
    mean = sum(sums) / len(sums)
    return best + 1 + span // 2, sums[best] / mean if mean else 0.0


class Sinusoidal(Artifact):
    name, kind = "sinusoidal_128_512", "figure"
    title = "Cumulative gradient of Sinusoidal on ArXiv at two training lengths"

    def jobs(self, shelf: Shelf) -> list[Job]:
        return [
            job
            for model, trained in (("sinusoidal", 128), ("sinusoidal", TRAINED), ("sinusoidal:scale=0.02", TRAINED))
            for job in shelf.jobs([model], ["arxiv"], trained)
        ]

    def draw(self, shelf: Shelf) -> Drawn:
        found, records, rows = [], [], []
        for trained in TRAININGS:
            named = f"L_tr {trained} | {shelf.length(trained)}"
            found += [one._replace(label=f"{named}") for one in curves(shelf, ["sinusoidal"], "arxiv", trained)]
            records += reading(shelf, ["sinusoidal"], "arxiv", trained)[1]
            field = shelf.field("sinusoidal", "arxiv", trained)
            if field is None:
                rows.append([named, "–", "–", "–"])
                continue
            place, times = jump(field, shelf.length(trained))
            records[-1] |= {"jump_at": place, "jump_times": times}
            rows.append([named, f"{field.within(shelf.length(trained)):.1%}", f"{place:,}", f"× {times:.1f}"])
        quiet = curves(shelf, ["sinusoidal:scale=0.02"], "arxiv")
        found += [one._replace(label=f"L_tr {TRAINED} | {shelf.trained}, scale 0.02") for one in quiet]
        columns = ["trained on", "coverage", "jump at token", "of the mean"]
        sheet = Sheet(columns, rows, f"{shelf.corpus_label('arxiv')}: the jump")
        return Drawn(
            [sheet], {"": on_corpus(position_curves(found), shelf.corpus_label("arxiv"))} if found else {}, records
        )
