"""Tables for the terminal, Markdown, LaTeX and CSV."""

import csv
import html
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import Any

from fieldlens.core.errors import BadInput

_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    "±": r"$\pm$", "†": r"$^\dagger$", "*": r"$^\ast$", "≥": r"$\geq$", "<": r"$<$", ">": r"$>$", "–": "--",
    "Δ": r"$\Delta$", "×": r"$\times$", "·": r"$\cdot$", "→": r"$\rightarrow$", "|": r"$|$", "d̄": r"$\bar d$",
}  # fmt: skip
_CHARACTER = re.compile("d̄|.", re.DOTALL)
READABLE = 20
"""Minimum width of a text column, in characters."""
PAGE = 40
"""Rows per page: a longer LaTeX table is a longtable."""


@dataclass(frozen=True)
class Table:
    """A table of strings; the first column holds the row headings."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def right(self) -> list[bool]:
        """Which columns are right-aligned: those with numbers, never the first."""
        count = len(self.columns)
        cells = [[row[index] for row in self.rows if index < len(row)] for index in range(count)]
        return [index > 0 and _is_numeric(column) for index, column in enumerate(cells)]

    def markdown(self) -> str:
        """The table in Markdown."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|").replace("*", "\\*") for cell in cells) + " |"

        rule = "|" + "|".join("--:" if right else "---" for right in self.right) + "|"
        heading = [f"**{self.title}**", ""] if self.title else []
        notes = [text for note in self.notes for text in ("", note)]
        return "\n".join([*heading, line(self.columns), rule, *map(line, self.rows), *notes]) + "\n"

    def latex(self) -> str:
        """The table in LaTeX, with booktabs rules."""

        def line(cells: Sequence[str]) -> str:
            return " & ".join(map(escaped, cells)) + r" \\"

        form = "longtable" if len(self.rows) > PAGE else "tabular"
        body = [line(self.columns), r"\midrule", *map(line, self.rows)]
        needs = f"% needs the package booktabs{' and longtable' * (form == 'longtable')}"
        head = rf"\begin{{{form}}}{{{''.join('r' if right else 'l' for right in self.right)}}}"
        title = [rf"\par\noindent\textbf{{{escaped(self.title)}}}\par"] if self.title else []
        notes = [rf"\par {escaped(note)}" for note in self.notes]
        return "\n".join([*title, needs, head, r"\toprule", *body, r"\bottomrule", rf"\end{{{form}}}", *notes]) + "\n"

    def html(self) -> str:
        """The table as HTML, for notebooks."""

        def line(cells: Sequence[str], tag: str) -> str:
            aligned = zip(cells, self.right, strict=True)
            return "".join(
                f'<{tag} style="text-align:{"right" if right else "left"}">{html.escape(cell)}</{tag}>'
                for cell, right in aligned
            )

        caption = f"<caption>{html.escape(self.title)}</caption>" if self.title else ""
        rows = "".join(f"<tr>{line(row, 'td')}</tr>" for row in self._padded_rows)
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in self.notes)
        return f"<table>{caption}<thead><tr>{line(self.columns, 'th')}</tr></thead><tbody>{rows}</tbody></table>{notes}"

    _repr_html_ = html

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        """Render a table, or one block per row if the terminal is too narrow. Numbers are never truncated."""
        from rich.measure import Measurement

        wide, narrow = self._table(narrow=False), self._table(narrow=True)
        unlimited = options.update(max_width=10_000)
        if Measurement.get(console, unlimited, wide).maximum <= options.max_width:
            yield wide
        elif Measurement.get(console, unlimited, narrow).minimum <= options.max_width:
            yield narrow
        else:
            yield self._blocks()

    @property
    def _padded_rows(self) -> list[list[str]]:
        """Rows with empty cells added up to the number of columns."""
        return [[*row, *[""] * (len(self.columns) - len(row))] for row in self.rows]

    def _table(self, narrow: bool) -> Any:
        """The rich table. If narrow, text columns shrink, and other columns break only between words or numbers."""
        from rich.markup import escape
        from rich.table import Table

        rows = [[cell.replace(" · ", " ·\n") if narrow else cell for cell in row] for row in self._padded_rows]
        table = Table(box=None, pad_edge=False, title=escape(self.title) or None, title_justify="left")
        for index, column in enumerate(self.columns):
            fixed = narrow and (self.right[index] or not any(" " in row[index].strip() for row in self._padded_rows))
            widest = max((len(part) for row in rows for part in row[index].split("\n")), default=0)
            heading = "\n".join(wrap(column, max(widest, 1), break_long_words=False)) if fixed else column
            table.add_column(
                escape(heading),
                justify="right" if self.right[index] else "left",
                min_width=widest if fixed else min(widest, READABLE),
                no_wrap=fixed,
                overflow="fold",
                vertical="top",
            )
        for row in rows:
            table.add_row(*map(escape, row))
        return table

    def _blocks(self) -> Any:
        """One block of lines per row."""
        from rich.text import Text

        width = max(map(len, self.columns))
        lines = [self.title] if self.title else []
        for row in self._padded_rows:
            lines.append(f"{self.columns[0]} {row[0].strip()}".strip())
            cells = zip(self.columns[1:], row[1:], strict=True)
            lines += [f"  {name:{width}} {cell.strip()}" for name, cell in cells if cell.strip()]
        return Text("\n".join(lines))


def _is_numeric(cells: Sequence[str]) -> bool:
    """Whether cells are numbers; single words such as "diverged" are allowed among them."""
    words = [cell for cell in cells if cell.strip()[:1].isalpha() or len(re.findall(r"[^\W\d_]{2,}", cell)) > 1]
    return len(words) < len(cells) and all(cell.strip().isalpha() for cell in words)


def figure(value: float, digits: int) -> str:
    """Format with this many significant digits; larger numbers below a million are rounded to integers."""
    return f"{value:.0f}" if 10**digits <= abs(value) < 1e6 else f"{value:.{digits}g}"


def to_frame(records: Sequence[dict[str, Any]]) -> Any:
    """Records as a pandas DataFrame, one row each."""
    try:
        import pandas
    except ImportError:
        raise BadInput("to_frame() needs pandas: pip install pandas") from None
    return pandas.DataFrame(list(records))


def records_csv(records: Sequence[dict[str, Any]]) -> str:
    """Records as CSV: one row per record, one column per key, numbers at full precision."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, keys, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue()


def escaped(text: str) -> str:
    """Escape text for LaTeX."""
    return _CHARACTER.sub(lambda match: _LATEX.get(match[0], match[0]), text)
