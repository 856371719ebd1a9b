"""The output of a measurement: a summary for the terminal, JSON, figures and the HTML report."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fieldlens.receptive.charts import CHARTS
from fieldlens.receptive.charts.fields_table import CELLS, cells
from fieldlens.receptive.charts.perplexity import comparison
from fieldlens.receptive.field import LEVELS, ReceptiveField
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report
from fieldlens.reporting import plots as draw
from fieldlens.reporting.table import Table
from fieldlens.storage.atomic import replace_text
from fieldlens.storage.results import write_result

MEANING = """
For each segment we compute the gradient of {target} with respect to every input embedding. The norm of that gradient,
divided by the sum over all tokens, is the **share** of a token: how strongly a small change of the token would change
the prediction, relative to the other tokens.

The **empirical receptive field** at 99% is the number of most recent tokens that account for more than 99% of the
total gradient norm. **Coverage** is the fraction of the total gradient norm that falls on the last L_tr tokens, where
L_tr is the training length. The paper's principle: if coverage is more than 99%, the model extrapolates. The
converse does not hold.

The **theoretical receptive field** is the largest distance that windows can reach: Σ(w - 1) + 1 over layers.
"""

LIMITATIONS = """
A gradient is local: it describes the effect of a small change of a token, not of removing it. `--probe` cuts the
context instead, and `--check` measures perplexity.

Many pretrained models put much attention on the **first token** (an attention sink). Its share does not reflect the
text, but makes the receptive field as long as the segment. We therefore report numbers with and without it.

If 99% of the gradient needs more than 0.9 of the length, the receptive field is **not bounded** at this length; it may
be bounded at a larger `--length`, or not at all.

A few segments, or segments from one document, may not be representative of other texts. The quartiles show how much
segments differ.
"""


def summary(measurements: Sequence[Measurement]) -> Table:
    """One row per model: the number of most recent tokens that account for 50, 90, 95 and 99% of the gradient."""
    rows = [
        [measurement.name, *(["undefined"] if measurement.field.status else cells(measurement.field))]
        for measurement in measurements
    ]
    title = (
        f"number of most recent tokens (of {_lengths(measurements)}) that account for 50, 90, 95 and 99% of the total "
        "gradient norm"
    )
    notes = [f"{measurement.name}: {sentence}" for measurement in measurements for sentence in measurement.advice]
    return Table(["model", *CELLS], rows, title, notes)


def comparisons(measurements: Sequence[Measurement]) -> list[Table]:
    """One table per check: perplexity by context and by window, with intervals."""
    return [
        comparison(check, f"{name}: perplexity by context and window, on the same {check.contexts.counts_text}")
        for name, check in ((measurement.name, measurement.check) for measurement in measurements)
        if check is not None
    ]


def _lengths(measurements: Sequence[Measurement]) -> str:
    """The measured length, or one per model if they differ."""
    lengths = [measurement.field.length for measurement in measurements]
    if len(set(lengths)) == 1:
        return f"{lengths[0]:,}"
    return ", ".join(f"{measurement.field.length:,} for {measurement.name}" for measurement in measurements)


def write(measurements: Sequence[Measurement], out: Path, command: Sequence[str]) -> None:
    """Write JSON and arrays, figures and the HTML report."""
    out.mkdir(parents=True, exist_ok=True)
    command_line = shlex.join(command)
    models = [measurement.to_json() for measurement in measurements]
    norms = [measurement.field.norms_NT.astype(np.float32) for measurement in measurements]
    arrays = {f"norms_{number}": norms_NT for number, norms_NT in enumerate(norms)}
    write_result(out / "receptive-field.json", {"command": command_line, "models": models}, arrays)
    curves = [measurement.field.curve(measurement.spec) for measurement in measurements if not measurement.field.status]
    if curves:
        ax = draw.field_curves(curves)
        for suffix in ("png", "svg"):
            draw.save(draw.figure_of(ax), out / f"receptive-field.{suffix}")
    replace_text(out / "report.html", page(measurements, command_line))


def page(measurements: Sequence[Measurement], command: str) -> str:
    """The HTML report."""
    *others, last = dict.fromkeys(measurement.name for measurement in measurements)
    title = f"How far back {', '.join(others)} and {last} look" if others else f"How far back {last} looks"
    about = measurements[0].about
    unique_lengths = sorted({measurement.about["asked"]["length"] for measurement in measurements})
    lengths = " or ".join(f"{length:,}" for length in unique_lengths)
    segments = {f"{measurement.about['asked']['segments']:,}" for measurement in measurements}
    subtitle = f"{about['data']['corpus']}: gradients of {' or '.join(sorted(segments))} targets, {lengths} tokens each"
    checks = [measurement.check.contexts.counts_text for measurement in measurements if measurement.check is not None]
    subtitle += "".join(f"; perplexity of {counts}" for counts in dict.fromkeys(checks))
    footer = {"made with": f"fieldlens {about['versions']['fieldlens']}"}
    return report.page(title, subtitle, blocks(measurements, command), footer)


def blocks(measurements: Sequence[Measurement], command: str) -> list[report.Block]:
    """The blocks of the HTML report."""
    defined = [measurement for measurement in measurements if not measurement.field.status]
    tints = draw.tints([measurement.spec for measurement in measurements])
    colours = dict(zip(map(id, measurements), tints, strict=True))
    parts: list[report.Block] = []
    for measurement in measurements:
        parts += _headline(measurement, colours[id(measurement)][0], named=len(measurements) > 1)
    for chart in CHARTS if defined else ():
        parts += chart(defined, colours)
    target = measurements[0].about["asked"]["target"]
    return [*parts, *_explanation(target), *_provenance(measurements, command)]


def _headline(measurement: Measurement, colour: str, named: bool) -> list[report.Block]:
    field = measurement.field
    if field.status:
        return [report.Note("warning", [f"**{measurement.name}** has no receptive field: {field.status}."])]
    cards = [
        report.Card(f"{field.erf(level):,}", f"tokens hold {level:.0%}", _quartiles(field, level), colour)
        for level in LEVELS
    ]
    heading = [report.Heading(measurement.name)] if named else []
    decision, use = measurement.decision, measurement.check.verdict["context_use"] if measurement.check else None
    shown = [f"{use['text'][0].upper()}{use['text'][1:]}."] if use else []
    lead = report.Lead(decision.headline, shown, decision.command, decision.purpose)
    evidence = [text for text in measurement.advice if text not in (decision.headline, decision.next_step, *shown)]
    return [*heading, lead, report.Cards(cards), report.Note("info", evidence)]


def _quartiles(field: ReceptiveField, level: float) -> str:
    low, middle, high = np.quantile(field.erfs(level), [0.25, 0.5, 0.75])
    return f"segments: median {middle:,.0f}, quartiles {low:,.0f}–{high:,.0f}"


TARGETS = {"log-likelihood": "log p(true next token)", "top-logit": "the largest logit"}


def _explanation(target: str) -> list[report.Block]:
    meaning = MEANING.format(target=TARGETS[target])
    return [
        report.Heading("What these numbers mean"),
        report.Text([" ".join(paragraph.split()) for paragraph in meaning.split("\n\n")]),
        report.Heading("Limitations", 3),
        report.Text([" ".join(paragraph.split()) for paragraph in LIMITATIONS.split("\n\n")]),
    ]


def _provenance(measurements: Sequence[Measurement], command: str) -> list[report.Block]:
    details = []
    for measurement in measurements:
        about = {key: value for key, value in measurement.about.items() if key != "targets"}  # a long list
        table = report.DataTable(["key", "value"], flat(about))
        details.append(report.Details(f"Provenance of {measurement.name}", [table]))
    commands = "\n".join(measurement.about.get("command", command) for measurement in measurements)
    return [report.Heading("How to reproduce this report"), report.Code(commands, "Command"), *details]


def flat(about: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Flatten nested keys, joined by dots, for a table of provenance."""
    rows = []
    for key, value in about.items():
        if isinstance(value, dict):
            rows += flat(value, f"{prefix}{key}.")
        else:
            rows.append((prefix + key, str(value)))
    return rows
