"""A sheet: one table, for a terminal, Markdown, LaTeX or a spreadsheet."""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "†": r"$^\dagger$", "*": r"$^\ast$", "≥": r"$\geq$", "<": r"$<$", ">": r"$>$", "–": "--",
    "Δ": r"$\Delta$", "×": r"$\times$", "·": r"$\cdot$", "→": r"$\rightarrow$", "|": r"$|$", "d̄": r"$\bar d$",
}  # fmt: skip
_SIGN = re.compile("d̄|.", re.DOTALL)
READABLE = 20
"""Letters that a column of prose keeps, if it has so many."""
PAGE = 40
"""Rows that fit a page: LaTeX breaks a longer table over several."""


@dataclass(frozen=True)
class Table:
    """Cells of text; the first column names the rows."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def right(self) -> list[bool]:
        """Which columns stand to the right: numbers, not words; the first names the rows."""
        cells = [[row[at] for row in self.rows if at < len(row)] for at in range(len(self.columns))]
        return [at > 0 and _is_of_numbers(column) for at, column in enumerate(cells)]

    def markdown(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"

        rule = "|" + "|".join("--:" if right else "---" for right in self.right) + "|"
        heading = [f"**{self.title}**", ""] if self.title else []
        notes = [text for note in self.notes for text in ("", note)]
        return "\n".join([*heading, line(self.columns), rule, *map(line, self.rows), *notes]) + "\n"

    def latex(self) -> str:
        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(escaped, cells)) + r" \\"

        form = "longtable" if len(self.rows) > PAGE else "tabular"
        body = [line(self.columns), r"\midrule", *map(line, self.rows)]
        needs = f"% needs the package booktabs{' and longtable' * (form == 'longtable')}"
        head = rf"\begin{{{form}}}{{{''.join('r' if right else 'l' for right in self.right)}}}"
        title = [rf"\par\noindent\textbf{{{escaped(self.title)}}}\par"] if self.title else []
        notes = [rf"\par {escaped(note)}" for note in self.notes]
        return "\n".join([*title, needs, head, r"\toprule", *body, r"\bottomrule", rf"\end{{{form}}}", *notes]) + "\n"

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """On a terminal: a table, or where it is too narrow for it one block per row. No number is ever cut."""
        from rich.measure import Measurement

        whole, narrow = self._table(narrow=False), self._table(narrow=True)
        room = options.update(max_width=10_000)
        if Measurement.get(console, room, whole).maximum <= options.max_width:
            yield whole
        elif Measurement.get(console, room, narrow).minimum <= options.max_width:
            yield narrow
        else:
            yield self._blocks()

    @property
    def _filled(self) -> list[list[str]]:
        return [[*row, *[""] * (len(self.columns) - len(row))] for row in self.rows]

    def _table(self, narrow: bool) -> Any:
        """With narrow, only columns of prose give way; the others are broken between words, or two numbers."""
        from rich.markup import escape
        from rich.table import Table

        rows = [[cell.replace(" · ", " ·\n") if narrow else cell for cell in row] for row in self._filled]
        table = Table(box=None, pad_edge=False, title=escape(self.title) or None, title_justify="left")
        for index, column in enumerate(self.columns):
            stiff = narrow and (self.right[index] or not any(" " in row[index].strip() for row in self._filled))
            widest = max((len(part) for row in rows for part in row[index].split("\n")), default=0)
            heading = "\n".join(wrap(column, max(widest, 1), break_long_words=False)) if stiff else column
            table.add_column(
                escape(heading),
                justify="right" if self.right[index] else "left",
                min_width=widest if stiff else min(widest, READABLE),
                no_wrap=stiff,
                overflow="fold",
                vertical="top",
            )
        for row in rows:
            table.add_row(*map(escape, row))
        return table

    def _blocks(self) -> Any:
        from rich.text import Text

        width = max(map(len, self.columns))
        lines = [self.title] if self.title else []
        for row in self._filled:
            lines.append(f"{self.columns[0]} {row[0].strip()}".strip())
            cells = zip(self.columns[1:], row[1:], strict=True)
            lines += [f"  {name:{width}} {cell.strip()}" for name, cell in cells if cell.strip()]
        return Text("\n".join(lines))


def _is_of_numbers(cells: Sequence[str]) -> bool:
    """Whether cells hold numbers; a single word, as diverged, may stand for one."""
    worded = [cell for cell in cells if cell.strip()[:1].isalpha() or len(re.findall(r"[^\W\d_]{2,}", cell)) > 1]
    return len(worded) < len(cells) and all(cell.strip().isalpha() for cell in worded)


def figure(value: float, digits: int) -> str:
    """A number with so many digits that count; a larger one whole, not with an exponent, below a million."""
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e6 else f"{value:.{digits}g}"


def records_csv(records: Sequence[dict[str, Any]]) -> str:
    """Records as a spreadsheet reads them: full numbers, one line each, every key a column."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    out = io.StringIO()
    writer = csv.DictWriter(out, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return out.getvalue()


def escaped(text: str) -> str:
    """Text as LaTeX prints it."""
    return _SIGN.sub(lambda found: _LATEX.get(found[0], found[0]), text)
