"""A sheet: one table, for a terminal, Markdown, LaTeX or a spreadsheet."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "†": r"$^\dagger$", "*": r"$^\ast$", "≥": r"$\geq$", "<": r"$<$", ">": r"$>$", "–": "--",
    "Δ": r"$\Delta$", "×": r"$\times$", "·": r"$\cdot$", "→": r"$\rightarrow$", "|": r"$|$",
}  # fmt: skip


@dataclass(frozen=True)
class Sheet:
    """Cells of text; the first column names the rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    def text(self) -> Any:
        """For rich's console."""
        from rich.markup import escape
        from rich.table import Table

        table = Table(box=None, pad_edge=False, title=escape(self.title) or None, title_justify="left")
        for index, column in enumerate(self.columns):
            table.add_column(escape(column), justify="left" if not index else "right", overflow="fold")
        for row in self.rows:
            table.add_row(*map(escape, row))
        return table

    def markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"

        rule = "|" + "|".join(["---", *["--:"] * (len(self.columns) - 1)]) + "|"
        heading = [f"**{self.title}**", ""] if self.title else []
        notes = ["", *self.notes] if self.notes else []
        return "\n".join([*heading, line(self.columns), rule, *map(line, self.rows), *notes]) + "\n"

    def latex(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(_escaped, cells)) + r" \\"

        body = [line(self.columns), r"\midrule", *map(line, self.rows)]
        head = rf"\begin{{tabular}}{{l{'r' * (len(self.columns) - 1)}}}"
        title = [f"% {self.title}"] if self.title else []
        notes = [rf"\par {_escaped(note)}" for note in self.notes]
        return "\n".join([*title, head, r"\toprule", *body, r"\bottomrule", r"\end{tabular}", *notes]) + "\n"


def records_csv(records: Sequence[dict[str, Any]]) -> str:
    """Records as a spreadsheet reads them: full numbers, one line each, every key a column."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def _escaped(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in text)
