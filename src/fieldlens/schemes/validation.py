"""Checks the outputs of a user-defined scheme before a model is trained with it."""

from copy import deepcopy

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, reraise_as_bad_input
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.discovery import is_built_in
from fieldlens.schemes.spec import cycle, scheme

TOKENS = 4
"""Number of positions and distances in the check."""


def check_scheme(spec: str, heads: int, head_width: int) -> None:
    """Raise `BadInput` if a scheme returns wrong shapes, NaN, or values that its state dict does not determine.

    Of a layer pattern, every scheme is checked.
    """
    for entry in dict.fromkeys(cycle(spec)):
        _check_entry(entry, heads, head_width)


def _check_entry(spec: str, heads: int, head_width: int) -> None:
    original = scheme(spec, heads, head_width).eval()
    if is_built_in(type(original)):
        return  # covered by the test suite
    copy, state = scheme(spec, heads, head_width).eval(), deepcopy(original.state_dict())
    for module in (original, copy):  # both, because loading also projects
        module.load_state_dict(state)
    shapes = {"embedding": (TOKENS, heads * head_width), "angles": (TOKENS, head_width // 2), "bias": (heads, TOKENS)}
    for method, expected in shapes.items():
        table, copied_table = (_table(module, method) for module in (original, copy))
        source = f"{method}() of scheme '{original.name}'"
        if table is None or copied_table is None:
            continue
        if table.shape not in (expected, (1, TOKENS) if method == "bias" else expected):
            raise BadInput(f"{source} returned shape {tuple(table.shape)} for {TOKENS} tokens, expected {expected}")
        if table.isnan().any() or (method == "bias" and not table[:, 0].isfinite().all()):
            raise BadInput(f"{source} returned NaN or inf: {table.flatten()[:TOKENS].tolist()}")
        if not torch.equal(table, copied_table):
            raise BadInput(f"{source} uses values that are neither parameters nor buffers: they would not be saved")


def _table(module: Scheme, method: str) -> Tensor | None:
    with reraise_as_bad_input(f"{method}() of scheme '{module.name}' failed"), torch.no_grad():
        table = getattr(module, method)(torch.arange(TOKENS))
    if table is not None and not isinstance(table, Tensor):
        raise BadInput(f"{method}() of scheme '{module.name}' must return a tensor or None, got {type(table).__name__}")
    return table
