"""The explorer in a notebook: gradients of some words of a text, computed at once and shown in the cell's output."""

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.tokenizer import Coder, token_texts
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.loading import load_model
from fieldlens.models.token_ids import own_bos, token_ids
from fieldlens.receptive import input_gradients
from fieldlens.receptive.explorer.block import Explorer
from fieldlens.receptive.explorer.data import Target, embed
from fieldlens.receptive.field import receptive_field
from fieldlens.reporting.blocks import page

COLOUR = "#0072B2"
FIRST = 8
"""Minimum number of tokens before a target, where the text is long enough."""


@dataclass(frozen=True)
class Exploration:
    """A page with the text and its targets; a notebook shows it where it is the value of a cell."""

    name: str
    tokens: int
    targets: int
    document: str
    """The HTML of the page."""

    def __repr__(self) -> str:
        return f"Exploration({self.name}, {self.tokens:,} tokens, {self.targets} targets)"

    def _repr_html_(self) -> str:
        # A sandbox: the text comes from anywhere, and the page must not reach the notebook.
        return (
            f'<iframe srcdoc="{html.escape(self.document)}" sandbox="allow-scripts" allow="clipboard-write" '
            f'title="fieldlens explorer" style="width: 100%; height: 760px; border: 0"></iframe>'
        )

    def save(self, path: str | Path) -> None:
        """Write the page as one HTML file that needs nothing else."""
        Path(path).write_text(self.document, encoding="utf-8")


def explore(
    model: Any,
    text: str | Path,
    *,
    targets: int = 24,
    target: input_gradients.Target = "log-likelihood",
) -> Exploration:
    """Show what a model looked at when it predicted words of a text.

    Parameters
    ----------
    model
        What `load_model` returns, or a path or name that it accepts.
    text
        A text, or the path of a text file.
    targets
        Number of words to explain, evenly spaced over the text; the last token is always one. Each one takes a forward
        and a backward pass over the text before it.
    target
        The scalar to differentiate: log p of the word, or the largest logit.
    """
    if target not in get_args(input_gradients.Target):
        raise unknown("target", target, get_args(input_gradients.Target))
    if not isinstance(targets, int) or targets < 1:
        raise BadInput(f"targets must be an integer of at least 1, got {targets}")
    adapter = load_model(model) if isinstance(model, str | Path) else model
    if not isinstance(adapter, ModelAdapter) or adapter.find_tokenizer is None:
        raise BadInput("explore needs a model with its tokenizer: use fieldlens.load_model(path), or pass the path")
    ids_T, bos = token_ids(text, adapter), own_bos(text, adapter)
    if len(ids_T) < 3:
        raise BadInput(f"the text has {len(ids_T)} tokens, at least 3 are needed")
    pieces = token_texts(Coder(adapter.find_tokenizer()).tokenizer, ids_T.tolist())
    rows = [_target(adapter, ids_T[: at + 1], pieces, bos, target) for at in _places(len(ids_T), targets)]
    data = embed([({"name": adapter.name, "colour": COLOUR}, rows[::-1])], target)
    assert data is not None
    document = page(f"What {adapter.name} looked at", f"{len(ids_T):,} tokens", [Explorer(data)], {})
    return Exploration(adapter.name, len(ids_T), len(rows), document)


def _places(tokens: int, count: int) -> list[int]:
    """Positions of targets: evenly spaced, the last token included."""
    return np.unique(np.linspace(min(FIRST, tokens - 1), tokens - 1, count).round().astype(int))[-count:].tolist()


def _target(
    adapter: ModelAdapter, ids_T: torch.Tensor, pieces: list[str], bos: int | None, target: input_gradients.Target
) -> Target:
    """The shares of the context of the last token."""
    field = receptive_field(adapter, ids_T, bos=bos, target=target)
    if field.status:
        raise BadInput(f"token {len(ids_T)} has no receptive field: {field.status}")
    return Target(0, len(ids_T) - 1, pieces[: len(ids_T)], field.shares())
