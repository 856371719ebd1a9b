"""The numbers that the paper prints, with the decimals it prints."""

import json
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

CORPORA = {"arxiv": "ArXiv", "openwebtext2": "OpenWebText2", "github": "GitHub"}
"""The paper's corpora: name in the data, name in the text."""

MARKS = {None: "", "dagger": "†", "asterisk": "*"}


class Cell(NamedTuple):
    """One number of a table."""

    value: Decimal
    deviation: Decimal | None
    mark: str
    """† where the paper finds Sandwich significantly better, * where worse."""

    def __str__(self) -> str:
        spread = f" ± {self.deviation}" if self.deviation is not None else ""
        return f"{self.value}{spread}{self.mark}"


def cells(label: str) -> dict[tuple[str, str, int], Cell]:
    """The numbers of a table, by corpus, model and length."""
    return {(row["corpus"], row["model"], int(row["length"])): _cell(row) for row in _content()[label]}


def facts(label: str) -> dict[tuple[str, str | None], str]:
    """The text cells of a table, by row and column."""
    return {(row["row"], row["column"]): row["value"] for row in _content()[label]}


def receptive_fields() -> dict[tuple[str, str], int]:
    """The ERFs given in the paper's text, by corpus and model."""
    return {(row["corpus"], row["model"]): int(row["erf"]) for row in _content()["erf"]}


def _cell(row: dict[str, Any]) -> Cell:
    deviation = row["deviation"]
    return Cell(Decimal(row["value"]), None if deviation is None else Decimal(deviation), MARKS[row["mark"]])


@cache
def printed_text() -> str:
    """The content of printed.json, unparsed."""
    return files(__package__).joinpath("printed.json").read_text("utf-8")


@cache
def _content() -> dict[str, list[dict[str, Any]]]:
    return json.loads(printed_text(), parse_float=Decimal)
