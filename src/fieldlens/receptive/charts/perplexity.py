"""Chart of the report: perplexity by context length and by window, and what coverage predicted (--check)."""

from collections.abc import Sequence

from fieldlens.receptive.advice import coverage
from fieldlens.receptive.charts.base import Colours
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report


def perplexity_chart(measurements: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    """Perplexity by context length and by sliding window, and what coverage predicted."""
    checks = [(measurement, measurement.check) for measurement in measurements if measurement.check is not None]
    if not checks:
        return []
    series, rows = [], []
    for measurement, check in checks:
        name, (colour, marker) = measurement.name, colours[id(measurement)]
        points = check.contexts.rows()
        lengths, middle, low, high = ([row[key] for row in points] for key in ("length", "perplexity", "low", "high"))
        series.append(report.Series(f"{name}, context", lengths, middle, colour, marker, low, high))
        if check.windows:
            perplexities = [evaluation.table[check.longest] for evaluation in check.windows.values()]
            widths = list(check.windows)
            series.append(report.Series(f"{name}, window", widths, perplexities, colour, marker, dash=True))
        predicted = coverage(measurement.field)["predicts"] or "unknown"
        rows.append([name, predicted, check.contexts.verdict["verdict"] or "unknown"])
    trained = {measurement.field.train_length for measurement, _ in checks}
    chart = report.chart(
        "Perplexity by context length, and by sliding window at the full context",
        report.Axis("tokens", log=True, format="tokens"),
        report.Axis("perplexity", toggle=True),
        series,
        [report.Mark(length, f"trained at {length:,}") for length in sorted(filter(None, trained))],
        f"All points use the same targets. Band: 95% interval over {checks[0][1].contexts.units()[1]}.",
    )
    table = report.table(["model", "coverage predicts", "perplexity"], rows, "Prediction and measurement")
    return [report.heading("Check against perplexity"), chart, table]
