"""Table of the report: the receptive field of each model at four levels, and its coverage."""

from collections.abc import Sequence

from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.field import LEVELS, ReceptiveField
from fieldlens.receptive.gradient_advice import coverage
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report
from fieldlens.reporting.table import Table

CELLS = (*(f"{level:.0%}" for level in LEVELS), "99% / L_tr", "first token", "coverage")


def cells(field: ReceptiveField) -> list[str]:
    """The cells of a table row, one for each of CELLS."""
    share = coverage(field)["share"]
    return [
        *(f"{field.erf(level):,}" for level in LEVELS),
        f"{field.erf(0.99) / field.train_length:.2g}" if field.train_length else "–",
        f"{field.first_share:.1%}",
        "–" if share is None else f"{share:.1%}",
    ]


def fields_table(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    windows = any(measurement.about["theoretical"] for measurement in measurements)
    columns = ["model", *CELLS, "99% without first", "trained at", *(["windows reach"] if windows else [])]
    rows = []
    for measurement in measurements:
        field, theoretical = measurement.field, measurement.about["theoretical"]
        rows.append(
            [
                measurement.name,
                *cells(field),
                f"{field.erf(0.99, without_first=True):,}" if field.stands_alone else "–",
                f"{field.train_length:,}" if field.train_length else "unknown",
                *([f"{theoretical['exact']:,}" if theoretical else "all"] if windows else []),
            ]
        )
    notes = [
        "Number of most recent tokens with this share of the total gradient norm; without first: first token excluded."
    ]
    table = Table(columns, rows, "", notes)
    copies = {"Markdown": table.markdown(), "LaTeX": table.latex()}
    return [report.DataTable(columns, rows, "Receptive fields", notes, copies)]
