"""Chart and tables of the report: perplexity by context length and by window (--check)."""

from collections.abc import Sequence
from typing import Any

from fieldlens.evaluation.equivalence import percent
from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.check import Check
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report
from fieldlens.reporting.table import Table

DWARFS = 8
"""A value this many times the median needs a logarithmic axis."""


def perplexity_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """Perplexity by context length and by sliding window, and how they compare with the full length."""
    checks = [(measurement, measurement.check) for measurement in measurements if measurement.check is not None]
    if not checks:
        return []
    series = []
    for measurement, check in checks:
        name, (colour, marker) = measurement.name, colours[id(measurement)]
        points = check.contexts.rows()
        lengths, middle, low, high = ([row[key] for row in points] for key in ("length", "perplexity", "low", "high"))
        series.append(report.Series(f"{name}, context", lengths, middle, colour, marker, low=low, high=high))
        if check.windows:
            perplexities = [evaluation.table[check.longest] for evaluation in check.windows.values()]
            widths = list(check.windows)
            series.append(report.Series(f"{name}, window", widths, perplexities, colour, marker, dash=True))
    trained = {measurement.field.train_length for measurement, _ in checks}
    chart = report.Chart(
        "Perplexity by context length, and by sliding window at the full context",
        report.Axis("tokens", log=True, format="tokens"),
        report.Axis("perplexity", log=_dwarfed(series), toggle=True),
        series,
        [report.Mark(length, f"trained at {length:,}") for length in sorted(filter(None, trained))],
        f"All points use the same targets. Band: 95% interval over {checks[0][1].contexts.units()[1]}.",
    )
    tables = [_table(measurement, check) for measurement, check in checks]
    return [report.Heading("Check against perplexity"), chart, *tables]


def _dwarfed(series: Sequence[report.Series]) -> bool:
    """Whether one value is so large that the others could not be told apart on a linear axis."""
    values = sorted(value for line in series for value in line.y if value is not None)
    return bool(values) and values[-1] > DWARFS * values[len(values) // 2]


def comparison(check: Check, title: str) -> Table:
    """Every context and window with its perplexity, and how it compares with the reference context."""
    intervals = {row["length"]: row for row in check.contexts.rows()}
    full = check.contexts.table[check.reference]
    reference = [
        "context",
        f"{check.reference:,}",
        f"{full:.4g}",
        _bounds(intervals[check.reference]),
        "1",
        "reference",
    ]
    rows = []
    for candidate in check.compared:
        ratio = candidate.interval.removeprefix("× ").replace("95% interval ", "")
        bounds = _bounds(intervals[candidate.tokens]) if candidate.kind == "context" else ""
        kind, tokens = candidate.kind, f"{candidate.tokens:,}"
        rows.append([kind, tokens, f"{candidate.perplexity:.4g}", bounds, ratio, candidate.outcome])
    longer = sum(row.kind == "context" and row.tokens > check.reference for row in check.compared)
    rows.insert(longer, reference)
    margin = f"margin {percent(check.contexts.margin)}"
    return Table(["kind", "tokens", "perplexity", "95% interval", "ratio, 95% interval", margin], rows, title)


def _bounds(row: dict[str, Any]) -> str:
    low, high = row["low"], row["high"]
    return "–" if low is None or high is None else f"{low:.4g}–{high:.4g}"


def _table(measurement: Measurement, check: Check) -> report.Block:
    title = (
        f"{measurement.name}: perplexity against the context of {check.reference:,} tokens, on the same "
        f"{check.contexts.counts_text}"
    )
    table = comparison(check, title)
    copies = {"Markdown": table.markdown(), "LaTeX": table.latex()}
    return report.DataTable(table.columns, table.rows, title, (), copies)
