"""Building blocks of HTML reports: one self-contained file with interactive charts, in light and dark."""

import base64
import hashlib
import html
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, ClassVar, Literal, NamedTuple


class Card(NamedTuple):
    """A large number with a label, in the colour of its model."""

    value: str
    label: str
    detail: str = ""
    colour: str | None = None


class Axis(NamedTuple):
    """An axis of a chart; percents are fractions; `toggle` adds a switch between linear and log."""

    label: str
    log: bool = False
    toggle: bool = False
    format: Literal["number", "percent", "tokens"] = "number"
    low: float | None = None
    high: float | None = None


class Series(NamedTuple):
    """One line, with a band between `low` and `high`; one legend entry toggles all series of a group."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    marker: str = ""
    low: Sequence[float | None] | None = None
    high: Sequence[float | None] | None = None
    dash: bool | Literal["dots"] = False
    group: str = ""


class Mark(NamedTuple):
    """A dotted line at a value of an axis; omitted if the value is outside the axis."""

    at: float
    label: str
    axis: Literal["x", "y"] = "x"


class Block(ABC):
    """A block of a report."""

    script: ClassVar[str] = ""
    style: ClassVar[str] = ""
    connects: ClassVar[bool] = False
    """Whether its script asks the server that sent the page."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The block as the script reads it."""


@dataclass(frozen=True)
class Scripted(Block):
    """A block with a script and a style of its own; the script adds a builder of its kind to `fieldlensBlocks`."""

    data: Mapping[str, Any]
    kind: ClassVar[str]

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.data}


@dataclass(frozen=True)
class Heading(Block):
    """A heading of level 2 to 4; the page title has level 1."""

    text: str
    level: Literal[2, 3, 4] = 2

    def to_json(self) -> dict[str, Any]:
        return {"kind": "heading", "text": self.text, "level": self.level}


@dataclass(frozen=True)
class Text(Block):
    """Paragraphs; **bold** and `code` are rendered."""

    paragraphs: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "text", "paragraphs": list(self.paragraphs)}


@dataclass(frozen=True)
class Note(Block):
    """A highlighted box; **bold** and `code` are rendered."""

    tone: Literal["info", "warning"]
    paragraphs: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "note", "tone": self.tone, "paragraphs": list(self.paragraphs)}


@dataclass(frozen=True)
class Lead(Block):
    """The conclusion of a page in large letters, with paragraphs and a command below it."""

    headline: str
    paragraphs: Sequence[str] = ()
    command: str = ""
    purpose: str = ""

    def to_json(self) -> dict[str, Any]:
        text = {"headline": self.headline, "paragraphs": list(self.paragraphs)}
        return {"kind": "lead", **text, "command": self.command, "purpose": self.purpose}


@dataclass(frozen=True)
class Cards(Block):
    """Large numbers side by side."""

    items: Sequence[Card]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "cards", "items": [item._asdict() for item in self.items]}


@dataclass(frozen=True)
class Chart(Block):
    """A line chart with legend, tooltip and linear/log switches."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    marks: Sequence[Mark] = ()
    caption: str = ""

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "chart",
            "title": self.title,
            "x": self.x._asdict() | {"low": _number(self.x.low), "high": _number(self.x.high)},
            "y": self.y._asdict() | {"low": _number(self.y.low), "high": _number(self.y.high)},
            "series": [_line(line) for line in self.series],
            "marks": [mark._asdict() | {"at": _number(mark.at)} for mark in self.marks],
            "caption": self.caption,
        }


@dataclass(frozen=True)
class DataTable(Block):
    """A table; the first column holds the row headings; `copies` maps button labels to text for the clipboard."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    notes: Sequence[str] = ()
    copies: Mapping[str, str] = field(default_factory=dict)
    right: Sequence[bool] | None = None
    """Which columns are right-aligned; those of numbers if None."""

    def to_json(self) -> dict[str, Any]:
        assert all(len(row) == len(self.columns) for row in self.rows)
        columns = range(len(self.columns))
        numbers = [index > 0 and _numeric([row[index] for row in self.rows]) for index in columns]
        return {
            "kind": "table",
            "columns": list(self.columns),
            "rows": [list(row) for row in self.rows],
            "numeric": numbers if self.right is None else list(self.right),
            "title": self.title,
            "notes": list(self.notes),
            "copies": [list(pair) for pair in self.copies.items()],
        }


@dataclass(frozen=True)
class Tabs(Block):
    """Tabs: one pane of blocks is visible at a time."""

    title: str
    panes: Mapping[str, Sequence[Block]]

    def to_json(self) -> dict[str, Any]:
        panes = [[name, [block.to_json() for block in blocks]] for name, blocks in self.panes.items()]
        return {"kind": "tabs", "title": self.title, "panes": panes}


@dataclass(frozen=True)
class Code(Block):
    """A code listing with a copy button."""

    text: str
    title: str = ""

    def to_json(self) -> dict[str, Any]:
        return {"kind": "code", "text": self.text, "title": self.title}


@dataclass(frozen=True)
class Details(Block):
    """Blocks in a collapsed section with a summary line."""

    summary: str
    blocks: Sequence[Block]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "details", "summary": self.summary, "blocks": [block.to_json() for block in self.blocks]}


def page(title: str, subtitle: str, blocks: Sequence[Block], footer: Mapping[str, str]) -> str:
    """The HTML of a report."""
    template, style, script = _template(), _joined("style.css", blocks), _joined("script.js", blocks)
    data = {"blocks": [block.to_json() for block in blocks], "footer": [list(pair) for pair in footer.items()]}
    parts = {
        "policy": policy(blocks),
        "title": html.escape(title),
        "subtitle": html.escape(subtitle),
        "style": style,
        "script": script,
        "data": _json(data),
    }
    # A single pass, so that a title that contains {{...}} is not expanded.
    document = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)
    # A lone surrogate cannot be encoded as UTF-8; in JSON its replacement \udxxx has the same meaning.
    return document.encode("utf-8", "backslashreplace").decode("utf-8")


def policy(blocks: Sequence[Block]) -> str:
    """The Content-Security-Policy of a page: its own script and style, nothing else."""
    rules = [
        "default-src 'none'",
        f"script-src {_source(_joined('script.js', blocks))}",
        f"style-src {_source(_joined('style.css', blocks))}",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*rules, *(["connect-src 'self'"] if any(block.connects for block in blocks) else [])])


def _template() -> str:
    return files("fieldlens.reporting").joinpath("page.html").read_text("utf-8")


def _joined(name: str, blocks: Sequence[Block]) -> str:
    """The script or the style of a page: those of its blocks, before or after the common one."""
    common = files("fieldlens.reporting").joinpath(name).read_text("utf-8")
    if name == "script.js":
        return "\n".join([*dict.fromkeys(block.script for block in blocks if block.script), common])
    return "\n".join([common, *dict.fromkeys(block.style for block in blocks if block.style)])


_ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}
"""Characters that could end a script element or a line of script; in JSON they occur only within strings."""


def _json(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).translate(_ESCAPES)


def _source(text: str) -> str:
    """The source expression of an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _line(series: Series) -> dict[str, Any]:
    """A series sorted by x, as the binary search of the tooltip requires."""
    assert all(values is None or len(values) == len(series.x) for values in (series.y, series.low, series.high)), (
        series.name
    )
    order = sorted((n for n, x in enumerate(series.x) if math.isfinite(x)), key=lambda n: series.x[n])
    columns = {key: getattr(series, key) for key in ("x", "y", "low", "high")}
    return series._asdict() | {
        key: None if values is None else [_number(values[n]) for n in order] for key, values in columns.items()
    }


def _numeric(cells: Sequence[str]) -> bool:
    """Whether at least half of the cells are numbers, possibly with units; such columns are right-aligned."""

    def is_number(cell: str) -> bool:
        letters = sum(map(str.isalpha, cell))
        return not letters or (letters <= 6 and not cell[0].isalpha() and any(map(str.isdigit, cell)))

    return 2 * sum(map(is_number, cells)) >= len(cells) > 0


def _number(value: float | None) -> float | None:
    """A number for JSON, rounded to the 7 digits of a float32; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    whole = abs(value) < 2**53 and value == int(value)
    return int(value) if whole else float(f"{value:.7g}")
