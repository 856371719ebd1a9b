"""What the lens shows: a short summary for the terminal, figures, and the report page."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fieldlens.receptive.advice import advise, coverage
from fieldlens.receptive.field import LEVELS, ReceptiveField
from fieldlens.receptive.result import Measurement
from fieldlens.reporting import blocks as report
from fieldlens.reporting import plots as draw
from fieldlens.reporting.table import Table
from fieldlens.storage.atomic import replace_file
from fieldlens.storage.results import write_arrays, write_json

MEANING = """
For each segment the gradient of {target} is taken with respect to every input embedding. The length of that vector,
divided by the sum over all tokens, is a token's **share**: how strongly a small change of that token would move the
prediction, relative to the others.

The **empirical receptive field** at 99% is the number of most recent tokens that together hold more than 99% of the
gradient. **Coverage** is the share inside the training length. The paper's principle: if training covered more than
99% of it, the model extrapolates. The reverse does not follow.

The **theoretical receptive field** is how far windows could reach at all: Σ(w - 1) + 1 over layers.
"""

DOUBTS = """
A gradient is a local statement: it says what a small change would do, not what removing a token would do. `--probe`
cuts the context instead, and `--check` measures perplexity.

Many pretrained models park attention on the **first token**. That share says little about the text, but it makes the
receptive field look as long as the text. It is shown apart.

If 99% needs more than nine tenths of the length, the field is **not bounded** at this length; a larger `--length` may
bound it, or nothing may.

Few segments, or segments from one document, say little about other texts. The quartiles show how far segments differ.
"""


def summary(found: Sequence[Measurement]) -> Table:
    """One row per model: how many of the most recent tokens hold how much."""
    rows = [[one.name, "undefined"] if one.field.status else [one.name, *_cells(one.field)] for one in found]
    title = f"most recent tokens that hold 50, 90, 95, 99% of the gradient, of {_lengths(found)}"
    notes = [f"{one.name}: {sentence}" for one in found for sentence in advice(one)]
    return Table(["model", *CELLS], rows, title, notes)


CELLS = (*(f"{level:.0%}" for level in LEVELS), "99% / L_tr", "first token", "coverage")


def _cells(field: ReceptiveField) -> list[str]:
    """What tables say of a field."""
    share = coverage(field)["share"]
    return [
        *(f"{field.erf(level):,}" for level in LEVELS),
        f"{field.erf(0.99) / field.train_length:.2g}" if field.train_length else "–",
        f"{field.first_share:.1%}",
        "–" if share is None else f"{share:.1%}",
    ]


def _lengths(found: Sequence[Measurement]) -> str:
    """The length that was measured at, or each model's own."""
    lengths = [one.field.length for one in found]
    if len(set(lengths)) == 1:
        return f"{lengths[0]:,}"
    return ", ".join(f"{length:,} ({one.name})" for one, length in zip(found, lengths, strict=True))


def advice(one: Measurement) -> list[str]:
    besides = [f"It {one.about['besides']}."] if "besides" in one.about else []
    return [*besides, *advise(one.field, one.about["theoretical"], one.check)]


def write(found: Sequence[Measurement], out: Path, command: Sequence[str]) -> None:
    """Everything: JSON with arrays beside it, figures, the report."""
    out.mkdir(parents=True, exist_ok=True)
    words = shlex.join(command)
    write_json(out / "receptive-field.json", {"command": words, "models": [one.to_json() for one in found]})
    arrays = {f"norms_{number}": one.field.norms_NT.astype(np.float32) for number, one in enumerate(found)}
    write_arrays(out / "receptive-field.npz", arrays)
    defined = [one for one in found if not one.field.status]
    if defined:
        figure = draw.field_curves([one.field.curve(one.spec) for one in defined])
        for ending in ("png", "svg"):
            draw.save(figure, out / f"receptive-field.{ending}")
    replace_file(out / "report.html", page(found, words).encode())


def page(found: Sequence[Measurement], command: str) -> str:
    """The report."""
    names = ", ".join(dict.fromkeys(one.name for one in found))
    asked, data, versions = (found[0].about[key] for key in ("asked", "data", "versions"))
    lengths = " or ".join(f"{length:,}" for length in sorted({one.about["asked"]["length"] for one in found}))
    where = f"{asked['segments']} segments of {lengths} tokens from {data['corpus']}"
    footer = {"made with": f"fieldlens {versions['fieldlens']}"}
    return report.page(f"How far back {names} looks", where, blocks(found, command), footer)


def blocks(found: Sequence[Measurement], command: str) -> list[report.Block]:
    """What the report says, piece by piece."""
    defined = [one for one in found if not one.field.status]
    colours = dict(zip(map(id, found), draw.tints([one.spec for one in found]), strict=True))
    said: list[report.Block] = []
    for one in found:
        said += _headline(one, colours[id(one)][0], many=len(found) > 1)
    if defined:
        said += [
            *_curves(defined, colours),
            *_table(defined),
            *_profiles(defined, colours),
            *_layers(defined, colours),
            *_probes(defined, colours),
            *_checks(defined, colours),
            *_heats(defined, colours),
        ]
    return [*said, *_meaning(found[0].about["asked"]["target"]), *_made(found, command)]


Colours = dict[int, tuple[str, str]]


def _headline(one: Measurement, colour: str, many: bool) -> list[report.Block]:
    field = one.field
    if field.status:
        return [report.note("warning", f"**{one.name}** has no receptive field here: {field.status}.")]
    cards = [
        report.Card(f"{field.erf(level):,}", f"tokens hold {level:.0%}", _quartiles(field, level), colour)
        for level in LEVELS
    ]
    blocks = [report.heading(one.name)] if many else []
    blocks.append(report.cards(*cards))
    kind = "warning" if field.saturated() else "info"
    return [*blocks, report.note(kind, *advice(one))]  # type: ignore[arg-type]


def _quartiles(field: ReceptiveField, level: float) -> str:
    low, middle, high = np.quantile(field.erfs(level), [0.25, 0.5, 0.75])
    return f"by segment: median {middle:,.0f}, half of them {low:,.0f}–{high:,.0f}"


def _curves(found: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    series, trained = [], {}
    for one in found:
        curve = one.field.curve(one.spec)
        recent = list(range(1, len(curve.middle) + 1))
        low, high = (_plain(line) for line in (curve.low, curve.high))
        colour, _ = colours[id(one)]
        series.append(report.Series(one.name, recent, _plain(curve.middle), colour, low=low, high=high, group=one.name))
        if one.field.has_sink and one.field.stands_alone:
            apart = np.cumsum(one.field.shares(without_first=True)[::-1])
            name = f"{one.name}, without the first token"
            series.append(report.Series(name, recent[: len(apart)], _plain(apart), colour, dash=True, group=one.name))
        if one.field.train_length and one.field.train_length <= one.field.length:
            trained[one.field.train_length] = report.Mark(
                one.field.train_length, f"trained at {one.field.train_length:,}"
            )
    marks = [*trained.values(), report.Mark(0.99, "99%", "y")]
    chart = report.chart(
        "Share of the gradient held by the most recent tokens",
        report.Axis("most recent tokens", log=True, toggle=True, format="tokens"),
        report.Axis("share of the gradient", format="percent", low=0, high=1),
        series,
        marks,
        "The line is the average over segments; half of the segments lie in the band.",
    )
    return [report.heading("How far back it looks"), chart]


def _table(found: Sequence[Measurement]) -> list[report.Block]:
    windows = any(one.about["theoretical"] for one in found)
    columns = ["model", *CELLS, "99% less first", "trained at", *(["windows reach"] if windows else [])]
    rows = []
    for one in found:
        field, reach = one.field, one.about["theoretical"]
        rows.append(
            [
                one.name,
                *_cells(field),
                f"{field.erf(0.99, without_first=True):,}" if field.stands_alone else "–",
                f"{field.train_length:,}" if field.train_length else "unknown",
                *([f"{reach['exact']:,}" if reach else "all"] if windows else []),
            ]
        )
    notes = ["Most recent tokens that hold so much of the gradient; less first: with the first token left out."]
    sheet = Table(columns, rows, "", notes)
    copies = {"Markdown": sheet.markdown(), "LaTeX": sheet.latex()}
    return [report.table(columns, rows, "Receptive fields", notes, copies)]


def _profiles(found: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    series = []
    for one in found:
        distances, middle = profile(one.field.shares())
        series.append(report.Series(one.name, distances, middle, colours[id(one)][0], marker=colours[id(one)][1]))
    chart = report.chart(
        "Share of a single token, by its distance",
        report.Axis("distance from the prediction (tokens)", log=True, format="tokens"),
        report.Axis("share of one token", log=True, toggle=True, format="percent"),
        series,
        (),
        "Averaged over bins that grow with the distance. A straight line is a power law.",
    )
    return [report.heading("How influence fades"), chart]


def profile(shares_T: np.ndarray) -> tuple[list[float], list[float | None]]:
    """The mean share of a token at distance 1, 2, 3, 4–5, 6–8 …: bins that grow by a half."""
    recent = shares_T[::-1]
    distances, means = [], []
    start = 0
    while start < len(recent):
        stop = min(len(recent), max(start + 1, math.ceil(start * 1.5)))
        distances.append(math.sqrt((start + 1) * stop))
        means.append(float(recent[start:stop].mean()) or None)
        start = stop
    return distances, means


def _layers(found: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    series = []
    for one in found:
        for level in (0.5, 0.9, 0.99):
            points = [(number, layer.erf(level)) for number, layer in one.layer_fields().items()]
            if points:
                numbers, tokens = zip(*points, strict=True)
                name = f"{one.name}, {level:.0%}"
                colour, marker = colours[id(one)]
                series.append(report.Series(name, numbers, tokens, colour, marker, dash=level < 0.99, group=name))
    if not series:
        return []
    chart = report.chart(
        "Receptive field of each layer's output",
        report.Axis("layer"),
        report.Axis("tokens", log=True, toggle=True, format="tokens"),
        series,
        (),
        "Along a random direction of the last position's state: where context is gathered on the way up.",
    )
    return [report.heading("Where it is gathered"), chart]


def _probes(found: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    series = []
    for one in found:
        if one.probe is None:
            continue
        cuts, lost = one.probe["cuts"], one.probe["divergence"]
        kept = [1 - value / lost[0] if lost[0] > 0 else None for value in lost]
        recent = _plain(np.cumsum(one.field.shares()[::-1]))
        colour, marker = colours[id(one)]
        series.append(report.Series(f"{one.name}, by cutting", cuts, kept, colour, marker))
        worst, best = max(one.probe["loss"]), min(one.probe["loss"])
        gained = [(worst - value) / (worst - best) if worst > best else None for value in one.probe["loss"]]
        series.append(report.Series(f"{one.name}, by loss", cuts, gained, colour, dash=True))
        series.append(report.Series(f"{one.name}, by gradient", range(1, len(recent) + 1), recent, colour, dash=True))
    if not series:
        return []
    chart = report.chart(
        "A second opinion without gradients",
        report.Axis("most recent tokens kept", log=True, toggle=True, format="tokens"),
        report.Axis("of the whole prediction", format="percent"),
        series,
        (),
        "By cutting: 1 - KL(whole context ‖ last tokens) / KL(whole ‖ last token). By loss: of the best gain in loss.",
    )
    return [report.heading("If the context is cut"), chart]


def _checks(found: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    checked = [one for one in found if one.check is not None]
    if not checked:
        return []
    series, rows = [], []
    for one in checked:
        assert one.check is not None
        colour, marker = colours[id(one)]
        lines = one.check.contexts.rows()
        lengths, middle, low, high = ([row[key] for row in lines] for key in ("length", "perplexity", "low", "high"))
        series.append(report.Series(f"{one.name}, context", lengths, middle, colour, marker, low, high))
        if one.check.windows:
            longest = max(one.check.contexts.losses)
            tables = [window.table[longest] for window in one.check.windows.values()]
            series.append(
                report.Series(f"{one.name}, window", list(one.check.windows), tables, colour, marker, dash=True)
            )
        predicted = coverage(one.field)["predicts"] or "unknown"
        measured = one.check.contexts.verdict["verdict"] or "unknown"
        rows.append([one.name, predicted, measured])
    chart = report.chart(
        "Perplexity by context, and by sliding window at the full context",
        report.Axis("tokens", log=True, format="tokens"),
        report.Axis("perplexity", toggle=True),
        series,
        [
            report.Mark(n, f"trained at {n:,}")
            for n in sorted({o.field.train_length for o in checked if o.field.train_length})
        ],
        f"The same targets throughout; bands are 95% over {checked[0].check.contexts.units()[1]}.",  # type: ignore[union-attr]
    )
    table = report.table(["model", "coverage predicts", "perplexity"], rows, "Prediction against measurement")
    return [report.heading("Checked against perplexity"), chart, table]


def _heats(found: Sequence[Measurement], colours: Colours) -> list[report.Block]:
    blocks: list[report.Block] = [report.heading("Which tokens")] if any(one.heats for one in found) else []
    for one in found:
        panes = {}
        for number, heat in enumerate(one.heats, 1):
            caption = f"{heat.earlier:.0%} of the gradient lies on tokens before these." if heat.earlier > 0.005 else ""
            title = f"What the prediction of the outlined token looked at, {one.name}"
            block = report.heat(title, heat.tokens, heat.shares, heat.target, colours[id(one)][0], caption)
            panes[str(number)] = [block]
        if panes:
            blocks.append(report.tabs(f"{one.name}: targets", panes))
    return blocks


TARGETS = {"log-likelihood": "log p(true next token)", "top-logit": "the largest logit"}


def _meaning(target: str) -> list[report.Block]:
    meaning = MEANING.format(target=TARGETS[target])
    return [
        report.heading("What these numbers mean"),
        report.text(*(" ".join(paragraph.split()) for paragraph in meaning.split("\n\n"))),
        report.heading("When not to believe them", 3),
        report.text(*(" ".join(paragraph.split()) for paragraph in DOUBTS.split("\n\n"))),
    ]


def _made(found: Sequence[Measurement], command: str) -> list[report.Block]:
    blocks: list[report.Block] = [report.code(command, "Command")]
    for one in found:
        blocks.append(report.details(f"Provenance of {one.name}", [report.table(["key", "value"], flat(one.about))]))
    return [report.heading("How this was made"), *blocks]


def flat(about: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Nested keys as one level, joined by dots, for a table of provenance."""
    found = []
    for key, value in about.items():
        if isinstance(value, dict):
            found += flat(value, f"{before}{key}.")
        else:
            found.append((before + key, str(value)))
    return found


def _plain(line: np.ndarray) -> list[float | None]:
    return [float(f"{value:.5g}") for value in line]
