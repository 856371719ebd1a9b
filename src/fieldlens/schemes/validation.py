"""Seams: what a scheme of somebody else's gives a decoder, asked before anything is trained with it."""

from copy import deepcopy

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, reraise_as_bad_input
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.discovery import is_built_in
from fieldlens.schemes.spec import scheme

FEW = 4
"""Positions and distances that are asked for."""


def check_scheme(spec: str, heads: int, head_width: int) -> None:
    """Refuse a scheme that no decoder can use: wrong shapes, no numbers, or numbers that its weights do not hold."""
    one = scheme(spec, heads, head_width).eval()
    if is_built_in(type(one)):
        return  # the tests have asked
    again, state = scheme(spec, heads, head_width).eval(), deepcopy(one.state_dict())
    for built in (one, again):  # both: loading also projects
        built.load_state_dict(state)
    shapes = {"embedding": (FEW, heads * head_width), "angles": (FEW, head_width // 2), "bias": (heads, FEW)}
    for method, wanted in shapes.items():
        table, loaded = (_ask(built, method) for built in (one, again))
        what = f"{method}() of scheme '{one.name}'"
        if table is None or loaded is None:
            continue
        if table.shape not in (wanted, (1, FEW) if method == "bias" else wanted):
            raise BadInput(f"{what} gives the shape {tuple(table.shape)} for {FEW} tokens: {wanted} is needed")
        if table.isnan().any() or (method == "bias" and not table[:, 0].isfinite().all()):
            raise BadInput(f"{what} gives no numbers: {table.flatten()[:FEW].tolist()}")
        if not torch.equal(table, loaded):
            raise BadInput(
                f"{what} uses numbers that are neither parameters nor buffers: a model folder would lose them"
            )


def _ask(one: Scheme, method: str) -> Tensor | None:
    with reraise_as_bad_input(f"{method}() of scheme '{one.name}' does not work"), torch.no_grad():
        found = getattr(one, method)(torch.arange(FEW))
    if found is not None and not isinstance(found, Tensor):
        raise BadInput(f"{method}() of scheme '{one.name}' gives {type(found).__name__}: a tensor is needed, or None")
    return found
