"""A study's report: one page, from its results folder alone, also while the study is running."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fieldlens.evaluation.compare import Comparison
from fieldlens.receptive.advice import COVERED, coverage
from fieldlens.receptive.report import flat
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report
from fieldlens.reporting import plots as draw
from fieldlens.reporting.table import Table
from fieldlens.study.results import ComparisonKey, Result, comparisons, read_results
from fieldlens.study.view import called

HOLDS = ("holds", "improves")
CARDS = 8
"""A card for each model, if there are no more than so many."""
NAMED = 12
"""So many of the missing are named."""

MEANING = (
    "Every model is asked to predict **the same tokens**; only the number of tokens before them differs. A length is a "
    "number of input tokens. Right of the training length the model sees more than it was trained on.",
    "**improves** and **holds** mean that perplexity past the training length is significantly lower, or not "
    "significantly different; **drifts** that it is significantly higher by less than half; **explodes** that it is "
    "higher by half or more. Signs of whole documents are flipped, and p-values corrected by Holm.",
    "**Coverage** is the share of the gradient that falls inside the training length. The paper's principle: a model "
    f"with more than {COVERED:.0%} extrapolates. The reverse does not follow.",
)


def summary(results: Sequence[Result]) -> list[Table]:
    """The tables of a study: perplexities by length, then verdict and coverage of every run."""
    sheets = []
    for question, one in comparisons(results).items():
        sheets.append(dataclasses.replace(one.sheet(), title=f"{one.quantity} on {question.title}"))
    names = called([result.recipe for result in results])
    rows = [_row(result, name) for result, name in zip(results, names, strict=True)]
    return [*sheets, Table(["model", "corpus", "seed", "verdict", "coverage", "99% within"], rows, "verdicts")]


def _row(result: Result, name: str) -> list[str]:
    recipe = result.recipe
    start = [name, recipe["corpus"], str(recipe["seed"])]
    if result.diverged:
        return [*start, "diverged", "–", "–"]
    return [*start, _verdict(result) or "–", *_field(result)]


def _verdict(result: Result) -> str | None:
    """The verdict of its first evaluation that has one."""
    found = [one.verdict for one in result.evaluations if one.losses]
    named = next((one for one in found if one["verdict"]), None)
    if named is None:
        return None
    return named["verdict"] + (f" from {named['first']}" if named["first"] else "")


def _field(result: Result) -> list[str]:
    one = result.measurement
    if one is None or one.field.status:
        return ["–", "–"]
    share = coverage(one.field)["share"]
    return ["–" if share is None else f"{share:.1%}", one.field.bounded()]


def page(folder: Path) -> str:
    """The report."""
    study, results = read_results(folder)
    there = {result.name for result in results}
    names = [job["name"] for job in study["jobs"]]
    failed = [name for name in names if (folder / name / "failed.json").exists()]  # an earlier result may be there
    missing = [name for name in names if name not in failed and name not in there]
    where = f"{len(results)} of {len(study['jobs'])} runs"
    versions = results[0].about["versions"]["fieldlens"] if results else ""
    footer = {"made with": f"fieldlens {versions}".strip()}
    return report.page(study["title"], where, blocks(results, failed, missing), footer)


def blocks(results: Sequence[Result], failed: Sequence[str] = (), missing: Sequence[str] = ()) -> list[report.Block]:
    """What the report says, piece by piece."""
    said: list[report.Block] = []
    if missing:
        more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        said.append(report.note("info", f"**Still to come**: {', '.join(missing[:NAMED])}{more}."))
    if failed:
        said.append(report.note("warning", f"**Failed**: {', '.join(failed)}."))
    if not results:
        return said
    found = comparisons(results)
    if len(found) == 1 and len(next(iter(found.values())).groups) <= CARDS:
        said += _headline(next(iter(found.values())))
    for question, one in found.items():
        said += _perplexity(question, one)
    said += _verdicts(results)
    said += _fields(results)
    said += [report.heading("How to read this"), report.text(*MEANING), report.heading("How this was made")]
    for result in results:
        said.append(report.details(result.name, [report.table(["key", "value"], flat(result.about))]))
    return said


def _headline(one: Comparison) -> list[report.Block]:
    """A card for each model: what becomes of it past its training length."""
    cards = []
    specs = [group.members[min(group.members)].about["model"].get("scheme") for group in one.groups]
    for group, (colour, _) in zip(one.groups, draw.tints(specs), strict=True):
        alive = list(group.alive().values())
        if not alive:
            cards.append(report.Card("diverged", group.name, "", colour))
            continue
        verdicts = list(dict.fromkeys(str(member.verdict["verdict"] or "no verdict") for member in alive))
        trained, longest = alive[0].train_length, one.lengths[-1]
        ends = [length for length in (trained, longest) if length is not None and length in one.lengths]
        means = (np.mean(list(group.values(length).values())) for length in ends)
        course = " → ".join(f"{mean:.3g} at {length:,}" for mean, length in zip(means, ends, strict=True))
        cards.append(report.Card(" / ".join(verdicts), group.name, f"{one.quantity} {course}", colour))
    return [report.cards(*cards)]


def _perplexity(question: ComparisonKey, one: Comparison) -> list[report.Block]:
    lines = one.lines()
    colours = draw.tints([line.spec for line in lines])
    several = {group.name for group in one.groups if len(group.alive()) > 1}  # one seed has no spread to show
    series = []
    for line, (colour, marker) in zip(lines, colours, strict=True):
        low, high = (line.low, line.high) if line.label in several else (None, None)
        series.append(report.Series(line.label, line.lengths, line.middle, colour, marker, low, high, group=line.label))
    trained = sorted({line.train_length for line in lines if line.train_length})
    marks = [report.Mark(length, "training length") for length in trained]
    chart = report.chart(
        f"{one.quantity.capitalize()} against context length",
        report.Axis("tokens before the target", log=True, toggle=True, format="tokens"),
        report.Axis(one.quantity, log=True, toggle=True),
        series,
        marks,
        "The band is one standard deviation over seeds." if several else "One seed: differences are tested below.",
    )
    sheet = one.sheet()
    copies = {"Markdown": sheet.markdown(), "LaTeX": sheet.latex()}
    tests = [report.table(test.columns, test.rows, test.title) for test in one.tests()]
    blocks = [
        report.heading(f"Perplexity on {question.corpus}"),
        report.text(question.words.capitalize() + "."),
        chart,
        report.table(sheet.columns, sheet.rows, "", sheet.notes, copies),
    ]
    return [*blocks, report.details("Paired tests", tests)] if tests else blocks


def _verdicts(results: Sequence[Result]) -> list[report.Block]:
    sheet = summary(results)[-1]
    copies = {"Markdown": sheet.markdown(), "LaTeX": sheet.latex()}
    blocks = [
        report.heading("Does coverage predict extrapolation?"),
        report.table(sheet.columns, sheet.rows, "Every run: what was measured, and what the gradient says", (), copies),
    ]
    counts = prediction(results)
    if sum(counts.values()):
        rows = [
            [f"covered (> {COVERED:.0%})", str(counts[True, True]), str(counts[True, False])],
            ["not covered", str(counts[False, True]), str(counts[False, False])],
        ]
        blocks.append(report.table(["runs", "holds or improves", "drifts or explodes"], rows, "Prediction and outcome"))
    return blocks


def prediction(results: Sequence[Result]) -> dict[tuple[bool, bool], int]:
    """How many runs are (covered, extrapolate); those whose field is not bounded predict nothing and are left out."""
    counts = {(a, b): 0 for a in (True, False) for b in (True, False)}
    for result in results:
        verdict = _verdict(result)
        predicts = coverage(result.measurement.field)["predicts"] if result.measurement else None
        if verdict is not None and predicts is not None:
            counts[predicts == "extrapolates", verdict.split()[0] in HOLDS] += 1
    return counts


def _fields(results: Sequence[Result]) -> list[report.Block]:
    """The receptive fields, one chart per corpus; seeds of one model share a legend entry."""
    blocks: list[report.Block] = []
    for corpus in dict.fromkeys(result.recipe["corpus"] for result in results):
        found = [
            (result, result.measurement)
            for result in results
            if result.recipe["corpus"] == corpus and result.measurement and not result.measurement.field.status
        ]
        if not found:
            continue
        names = called([result.recipe for result, _ in found])
        specs = {name: result.recipe["scheme"] for name, (result, _) in zip(names, found, strict=True)}
        colours = dict(zip(specs, draw.tints(list(specs.values())), strict=True))
        series = [_curve(name, one, colours[name][0]) for name, (_, one) in zip(names, found, strict=True)]
        trained = sorted({one.field.train_length for _, one in found if one.field.train_length})
        marks = [report.Mark(length, "training length") for length in trained]
        marks.append(report.Mark(0.99, "99%", "y"))
        length = max(one.field.length for _, one in found)
        chart = report.chart(
            f"Share of the gradient in the most recent tokens, of {length:,}",
            report.Axis("most recent tokens", log=True, toggle=True, format="tokens"),
            report.Axis("cumulative share", format="percent", low=0.0, high=1.0),
            series,
            marks,
            "The band holds the middle half of the segments.",
        )
        blocks += [report.heading(f"Receptive fields on {corpus}"), chart]
    return blocks


def _curve(name: str, one: Measurement, colour: str) -> report.Series:
    curve = one.field.curve(one.spec)
    points = _thinned(len(curve.middle))
    low, middle, high = (
        [float(f"{values[n - 1]:.5g}") for n in points] for values in (curve.low, curve.middle, curve.high)
    )
    return report.Series(name, points, middle, colour, "", low, high, group=name)


def _thinned(length: int, count: int = 400) -> list[int]:
    """Numbers of tokens, evenly on a log axis."""
    return sorted({int(n) for n in np.unique(np.round(np.geomspace(1, length, count)))})
