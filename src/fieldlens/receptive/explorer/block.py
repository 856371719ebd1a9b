"""The explorer as a block of a page, with its own script and style; light, so that a page is served at once."""

from importlib.resources import files
from typing import ClassVar

from fieldlens.reporting.blocks import Scripted

_FOLDER = files("fieldlens.receptive.explorer")


class Explorer(Scripted):
    """A text, the shares of its tokens for a target, and their cumulative curve: the data that `data.py` makes."""

    kind: ClassVar[str] = "explorer"
    script: ClassVar[str] = _FOLDER.joinpath("explorer.js").read_text("utf-8")
    style: ClassVar[str] = _FOLDER.joinpath("explorer.css").read_text("utf-8")


class ServedExplorer(Explorer):
    """An explorer that asks the server that sent the page: its data has `server` and what the page begins with."""

    connects: ClassVar[bool] = True
