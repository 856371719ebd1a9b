"""Chart and tables of the report: perplexity by context length and by window (--check)."""

from collections.abc import Sequence

from fieldlens.evaluation.equivalence import percent
from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.check import Check
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report
from fieldlens.reporting.table import Table


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
        report.Axis("perplexity", toggle=True),
        series,
        [report.Mark(length, f"trained at {length:,}") for length in sorted(filter(None, trained))],
        f"All points use the same targets. Band: 95% interval over {checks[0][1].contexts.units()[1]}.",
    )
    tables = [_table(measurement, check) for measurement, check in checks]
    return [report.Heading("Check against perplexity"), chart, *tables]


def _table(measurement: Measurement, check: Check) -> report.Block:
    """Every context and window with its perplexity, and how it compares with the reference context."""
    reference = check.contexts.table[check.reference]
    first = ["context", f"{check.reference:,}", f"{reference:.4g}", "1", "reference"]
    rows = [first] + [
        [
            candidate.kind,
            f"{candidate.tokens:,}",
            f"{candidate.perplexity:.4g}",
            candidate.interval.removeprefix("× ").replace("95% interval ", ""),
            candidate.outcome,
        ]
        for candidate in check.candidates
    ]
    columns = ["kind", "tokens", "perplexity", "ratio, 95% interval", f"margin {percent(check.contexts.margin)}"]
    title = f"{measurement.name}: perplexity against the context of {check.reference:,} tokens"
    copies = {"Markdown": Table(columns, rows).markdown(), "LaTeX": Table(columns, rows).latex()}
    return report.DataTable(columns, rows, title, (), copies)
