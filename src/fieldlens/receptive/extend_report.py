"""The output of `fieldlens extend`: JSON, a figure and the HTML report."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from fieldlens.receptive.extension_result import ExtensionResult, lines
from fieldlens.receptive.report import flat
from fieldlens.reporting import blocks as report
from fieldlens.reporting import plots as draw
from fieldlens.reporting.table import Table
from fieldlens.storage.atomic import replace_text
from fieldlens.storage.results import write_result

MEANING = (
    "Every method is compared with a **crop**: the last tokens, as many as the model was trained on, encoded from "
    "position 0. All methods predict the same targets.",
    "**uses**: the method predicts better than the crop, so it uses context past the training length. **crops**: the "
    "95% interval of the difference lies inside the margin, so the method gives no more than the crop. **breaks**: it "
    "predicts worse. **undecided**: the targets do not show any of these. Differences are tested over "
    "documents by sign flips and by a studentised bootstrap; both must reject, Holm-corrected over all methods and "
    "lengths.",
    "**Retrieval**: four pairs of a key and a value stand in the text, which ends with one of the keys; the pair lies "
    "past the training length. The answer is the most likely of the four values. A crop cannot see the pair.",
)


def write(result: ExtensionResult, out: Path, command: Sequence[str]) -> None:
    """Write extension.json, extension.png, extension.svg and report.html."""
    out.mkdir(parents=True, exist_ok=True)
    write_result(out / "extension.json", {"command": shlex.join(command), **result.to_json()})
    panel = draw.perplexity_lines(
        [draw.Line(name, None, list(x), list(y), list(y), list(y), result.train_length) for name, x, y in lines(result)]
    )
    for ending in ("png", "svg"):
        draw.save(draw.figure_of(panel), out / f"extension.{ending}")
    replace_text(out / "report.html", page(result, shlex.join(command)))


def page(result: ExtensionResult, command: str) -> str:
    """The HTML report."""
    name = result.about["model"]["name"]
    tints = draw.tints([None] * (1 + len(result.methods)))
    series = [
        report.Series(label, list(x), list(y), colour, marker)
        for (label, x, y), (colour, marker) in zip(lines(result), tints, strict=True)
    ]
    chart = report.Chart(
        "Perplexity by context length",
        report.Axis("tokens", log=True, format="tokens"),
        report.Axis("perplexity", toggle=True),
        series,
        [report.Mark(result.train_length, f"trained at {result.train_length:,}")],
        "All points use the same targets.",
    )
    blocks: list[report.Block] = [
        report.Note("info", result.advice()),
        chart,
        *(_table(table) for table in result.tables()),
        report.Heading("What these numbers mean"),
        report.Text(MEANING),
        report.Heading("How to reproduce this report"),
        report.Code(command, "Command"),
        report.Details("Provenance", [report.DataTable(["key", "value"], flat(_provenance(result)))]),
    ]
    subtitle = f"{result.about['targets']} targets from {result.about['data']['corpus']}"
    footer = {"made with": f"fieldlens {result.about['versions']['fieldlens']}"}
    return report.page(f"{name} past its training length of {result.train_length:,} tokens", subtitle, blocks, footer)


def _table(table: Table) -> report.Block:
    copies = {"Markdown": table.markdown(), "LaTeX": table.latex()}
    return report.DataTable(table.columns, table.rows, table.title, table.notes, copies, table.right)


def _provenance(result: ExtensionResult) -> dict[str, object]:
    return {key: value for key, value in result.about.items() if key not in ("results", "methods", "refused")}
