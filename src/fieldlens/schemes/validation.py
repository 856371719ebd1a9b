"""Checks the outputs of a user-defined scheme before a model is trained with it."""

from copy import deepcopy

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, reraise_as_bad_input
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.discovery import is_built_in
from fieldlens.schemes.spec import cycle, scheme

METHODS = ("embedding", "angles", "bias")
"""Where a scheme can act."""

TOKENS = 4
"""Number of positions and distances in the check."""


def check_scheme(spec: str, heads: int, head_width: int) -> None:
    """Raise `BadInput` if a scheme adds nothing, or returns wrong shapes, NaN, or values outside of its state dict.

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
    if all(_table(original, method) is None for method in METHODS):
        raise BadInput(
            f"scheme '{spec}' would train as 'none': it returns nothing from embedding(), angles() and bias(); "
            "override at least one of these methods (is a name misspelled?)"
        )
    shapes = {"embedding": (TOKENS, heads * head_width), "angles": (TOKENS, head_width // 2), "bias": (heads, TOKENS)}
    for method, expected in shapes.items():
        table, copied_table = (_table(module, method) for module in (original, copy))
        source = f"{method}() of scheme '{original.name}'"
        if table is None or copied_table is None:
            continue
        if table.shape not in (expected, (1, TOKENS) if method == "bias" else expected):
            raise BadInput(f"{source} returned shape {tuple(table.shape)} for {TOKENS} tokens, expected {expected}")
        masks = method == "bias" and bool((table < torch.inf).all() and table[:, 0].isfinite().all())
        if not table.isfinite().all() and not masks:  # a bias of -inf masks a key, but never the query's own
            raise BadInput(f"{source} returned NaN or inf: {table.flatten()[:TOKENS].tolist()}")
        if not torch.equal(table, copied_table):
            raise BadInput(f"{source} uses values that are neither parameters nor buffers: they would not be saved")


def unused_parameters(spec: str, heads: int, head_width: int) -> list[str]:
    """Names of learned parameters of a user-defined scheme that get no gradient from any of its tables."""
    names = []
    for entry in dict.fromkeys(cycle(spec)):
        module = scheme(entry, heads, head_width)
        if is_built_in(type(module)):
            continue
        tables = [table for method in METHODS if (table := getattr(module, method)(torch.arange(TOKENS))) is not None]
        total = sum((table[table.isfinite()].sum() for table in tables if table.requires_grad), torch.zeros(()))
        if total.requires_grad:
            total.backward()
        names += [name for name, value in module.named_parameters() if value.requires_grad and value.grad is None]
    return list(dict.fromkeys(names))


def _table(module: Scheme, method: str) -> Tensor | None:
    with reraise_as_bad_input(f"{method}() of scheme '{module.name}' failed"), torch.no_grad():
        table = getattr(module, method)(torch.arange(TOKENS))
    if table is not None and not isinstance(table, Tensor):
        raise BadInput(f"{method}() of scheme '{module.name}' must return a tensor or None, got {type(table).__name__}")
    return table
