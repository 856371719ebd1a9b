"""The report of a study: one page, made from its results folder only, also while the study is running."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fieldlens.evaluation.compare import Comparison
from fieldlens.evaluation.equivalence import MARGIN, percent
from fieldlens.evaluation.verdict import Verdict, describe
from fieldlens.receptive.gradient_advice import COVERED, coverage
from fieldlens.receptive.report import flat
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report
from fieldlens.reporting import plots as draw
from fieldlens.reporting.table import Table
from fieldlens.study.results import ComparisonKey, Result, comparisons, read_results, rejected_results
from fieldlens.study.view import called

HOLDS = ("holds", "improves")
VERDICT_COLUMNS = ["model", "corpus", "seed", "verdict", "uses context", "coverage", "99% within"]
CARDS = 8
"""Maximum number of models that are shown as cards."""
NAMED = 12
"""Maximum number of missing runs that are listed by name."""

MEANING = (
    "Every model predicts **the same tokens**; only the number of preceding tokens differs. A length is a number of "
    "input tokens. To the right of the training length, the model sees more tokens than in training.",
    "**holds** means that the 95 % interval of perplexity past the training length, relative to that at it, is within "
    f"± {percent(MARGIN)}; **improves** and **drifts** that it is significantly lower or higher (sign-flip test over "
    "documents, Holm-corrected); **explodes** that it is higher by half or more; **undecided** that more targets are "
    "needed. **Uses context**: the fall of the loss from a quarter of the training length to the training length.",
    "**Coverage** is the share of the gradient within the training length. The paper's principle: a model with more "
    f"than {COVERED:.0%} extrapolates. The converse does not follow.",
)


def summary(results: Sequence[Result]) -> list[Table]:
    """The tables of a study: perplexity by length, then the verdict and the coverage of every run."""
    tables = []
    for key, comparison in comparisons(results).items():
        tables.append(dataclasses.replace(comparison.sheet(), title=f"{comparison.quantity} on {key.title}"))
    names = called([result.recipe for result in results])
    rows = [_row(result, name) for result, name in zip(results, names, strict=True)]
    return [*tables, Table(VERDICT_COLUMNS, rows, "verdicts")]


def _row(result: Result, name: str) -> list[str]:
    recipe = result.recipe
    start = [name, recipe["corpus"], str(recipe["seed"])]
    if result.diverged:
        return [*start, "diverged", "–", "–", "–"]
    verdict = _verdict(result)
    if verdict is None:
        return [*start, "–", "–", *_field(result)]
    return [*start, describe(verdict), _context_use(verdict["context_use"]), *_field(result)]


def _verdict(result: Result) -> Verdict | None:
    """The verdict of the first evaluation that has one."""
    verdicts = [evaluation.verdict for evaluation in result.evaluations if evaluation.losses]
    return next((verdict for verdict in verdicts if verdict["verdict"]), None)


def _context_use(use: dict[str, Any] | None) -> str:
    """The fall of the loss up to the training length, in a cell."""
    if use is None:
        return "not measured"
    return f"{use['short']:,} → {use['long']:,}: {-use['loss_fall']:+.1%}{'' if use['shown'] else ' (not shown)'}"


def _field(result: Result) -> list[str]:
    measurement = result.measurement
    if measurement is None or measurement.field.status:
        return ["–", "–"]
    share = coverage(measurement.field)["share"]
    return ["–" if share is None else f"{share:.1%}", measurement.field.bounded()]


def page(folder: Path) -> str:
    """The report of a results folder, as HTML."""
    study, results = read_results(folder)
    valid = {result.name for result in results}
    names = [job["name"] for job in study["jobs"]]
    failed = [name for name in names if (folder / name / "failed.json").exists()]  # there may be an earlier result
    rejected = {name: reason.replace(f"{folder}/", "") for name, reason in rejected_results(folder).items()}
    missing = [name for name in names if name not in failed and name not in valid and name not in rejected]
    count = f"{len(results)} of {len(study['jobs'])} runs"
    versions = results[0].about["versions"]["fieldlens"] if results else ""
    footer = {"made with": f"fieldlens {versions}".strip()}
    return report.page(study["title"], count, blocks(results, failed, missing, rejected), footer)


def blocks(
    results: Sequence[Result],
    failed: Sequence[str] = (),
    missing: Sequence[str] = (),
    rejected: Mapping[str, str] | None = None,
) -> list[report.Block]:
    """The blocks of the report."""
    parts: list[report.Block] = []
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        parts.append(report.Note("info", [f"**Not finished**: {', '.join(missing[:NAMED])}{more}."]))
    if failed:
        parts.append(report.Note("warning", [f"**Failed**: {', '.join(failed)}."]))
    for name, reason in (rejected or {}).items():
        parts.append(report.Note("warning", [f"**Left out**: {name}: {reason}."]))
    if not results:
        return parts
    compared = comparisons(results)
    if len(compared) == 1 and len(next(iter(compared.values())).groups) <= CARDS:
        parts += _headline(next(iter(compared.values())))
    for key, comparison in compared.items():
        parts += _perplexity(key, comparison)
    parts += _verdicts(results)
    parts += _fields(results)
    parts += [report.Heading("How to read this"), report.Text(MEANING), report.Heading("How this was made")]
    for result in results:
        parts.append(report.Details(result.name, [report.DataTable(["key", "value"], flat(result.about))]))
    return parts


def _headline(comparison: Comparison) -> list[report.Block]:
    """A card for each model: its verdict, and its perplexity at the training length and the longest length."""
    cards = []
    specs = [group.members[min(group.members)].about["model"].get("scheme") for group in comparison.groups]
    for group, (colour, _) in zip(comparison.groups, draw.tints(specs), strict=True):
        alive = list(group.alive().values())
        if not alive:
            cards.append(report.Card("diverged", group.name, "", colour))
            continue
        verdicts = list(dict.fromkeys(str(member.verdict["verdict"] or "no verdict") for member in alive))
        trained, longest = alive[0].train_length, comparison.lengths[-1]
        ends = [length for length in (trained, longest) if length is not None and length in comparison.lengths]
        means = (np.mean(list(group.values(length).values())) for length in ends)
        course = " → ".join(f"{mean:.3g} at {length:,}" for mean, length in zip(means, ends, strict=True))
        uses = [member.context_use for member in alive]
        falls = [f"{-use.loss_fall:+.1%}" for use in uses if use]
        course += f"; uses context: {' / '.join(falls)}" if falls else ""
        cards.append(report.Card(" / ".join(verdicts), group.name, f"{comparison.quantity} {course}", colour))
    return [report.Cards(cards)]


def _perplexity(key: ComparisonKey, comparison: Comparison) -> list[report.Block]:
    lines = comparison.lines()
    colours = draw.tints([line.spec for line in lines])
    several = {group.name for group in comparison.groups if len(group.alive()) > 1}  # one seed has no spread
    series = []
    for line, (colour, marker) in zip(lines, colours, strict=True):
        low, high = (line.low, line.high) if line.label in several else (None, None)
        series.append(
            report.Series(line.label, line.lengths, line.middle, colour, marker, low=low, high=high, group=line.label)
        )
    trained = sorted({line.train_length for line in lines if line.train_length})
    marks = [report.Mark(length, "training length") for length in trained]
    chart = report.Chart(
        f"{comparison.quantity.capitalize()} against context length",
        report.Axis("tokens before the target", log=True, toggle=True, format="tokens"),
        report.Axis(comparison.quantity, log=True, toggle=True),
        series,
        marks,
        "The band is one standard deviation over seeds." if several else "One seed; see the paired tests below.",
    )
    sheet = comparison.sheet()
    copies = {"Markdown": sheet.markdown(), "LaTeX": sheet.latex()}
    tests = [report.DataTable(test.columns, test.rows, test.title) for test in comparison.tests()]
    blocks = [
        report.Heading(f"Perplexity on {key.corpus}"),
        report.Text([key.words.capitalize() + "."]),
        chart,
        report.DataTable(sheet.columns, sheet.rows, "", sheet.notes, copies),
    ]
    return [*blocks, report.Details("Paired tests", tests)] if tests else blocks


def _verdicts(results: Sequence[Result]) -> list[report.Block]:
    sheet = summary(results)[-1]
    copies = {"Markdown": sheet.markdown(), "LaTeX": sheet.latex()}
    blocks = [
        report.Heading("Does coverage predict extrapolation?"),
        report.DataTable(sheet.columns, sheet.rows, "Verdict and coverage of every run", (), copies),
    ]
    counts = prediction(results)
    if sum(counts.values()):
        rows = [
            [f"covered (> {COVERED:.0%})", str(counts[True, True]), str(counts[True, False])],
            ["not covered", str(counts[False, True]), str(counts[False, False])],
        ]
        blocks.append(
            report.DataTable(["runs", "holds or improves", "drifts or explodes"], rows, "Prediction and outcome")
        )
    return blocks


def prediction(results: Sequence[Result]) -> dict[tuple[bool, bool], int]:
    """Number of runs by (covered, extrapolates); undecided runs and those without a bounded field are left out."""
    counts = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for result in results:
        verdict = _verdict(result)
        predicts = coverage(result.measurement.field)["predicts"] if result.measurement else None
        if verdict is not None and verdict["verdict"] != "undecided" and predicts is not None:
            counts[predicts == "extrapolates", verdict["verdict"] in HOLDS] += 1
    return counts


def _fields(results: Sequence[Result]) -> list[report.Block]:
    """The receptive fields, one chart per corpus; seeds of one model share a legend entry."""
    blocks: list[report.Block] = []
    for corpus in dict.fromkeys(result.recipe["corpus"] for result in results):
        pairs = [
            (result.recipe, result.measurement)
            for result in results
            if result.recipe["corpus"] == corpus and result.measurement and not result.measurement.field.status
        ]
        if not pairs:
            continue
        names = called([recipe for recipe, _ in pairs])
        specs = {name: recipe["scheme"] for name, (recipe, _) in zip(names, pairs, strict=True)}
        colours = dict(zip(specs, draw.tints(list(specs.values())), strict=True))
        series = [
            _curve(name, measurement, colours[name][0]) for name, (_, measurement) in zip(names, pairs, strict=True)
        ]
        fields = [measurement.field for _, measurement in pairs]
        marks = [
            report.Mark(length, "training length")
            for length in sorted({field.train_length for field in fields if field.train_length})
        ]
        marks.append(report.Mark(0.99, "99%", "y"))
        chart = report.Chart(
            f"Share of the gradient in the most recent tokens, of {max(field.length for field in fields):,}",
            report.Axis("most recent tokens", log=True, toggle=True, format="tokens"),
            report.Axis("cumulative share", format="percent", low=0.0, high=1.0),
            series,
            marks,
            "The band contains the middle half of the segments.",
        )
        blocks += [report.Heading(f"Receptive fields on {corpus}"), chart]
    return blocks


def _curve(name: str, measurement: Measurement, colour: str) -> report.Series:
    curve = measurement.field.curve(measurement.spec)
    points = _thinned(len(curve.middle))
    low, middle, high = (
        [float(f"{values[n - 1]:.5g}") for n in points] for values in (curve.low, curve.middle, curve.high)
    )
    return report.Series(name, points, middle, colour, low=low, high=high, group=name)


def _thinned(length: int, count: int = 400) -> list[int]:
    """About `count` numbers of tokens, evenly spaced on a log axis."""
    return sorted({int(n) for n in np.unique(np.round(np.geomspace(1, length, count)))})
