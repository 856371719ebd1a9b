"""Checks the outputs of a user-defined scheme before a model is trained with it."""

from copy import deepcopy
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, reraise_as_bad_input
from fieldlens.schemes.base import Scheme, ScoreBlock
from fieldlens.schemes.discovery import is_built_in
from fieldlens.schemes.spec import cycle, scheme

TOKENS = 4
"""Number of positions and distances in the check."""


def check_scheme(spec: str, heads: int, head_width: int, train_length: int | None = None) -> None:
    """Raise `BadInput` if a scheme overrides nothing, or returns wrong shapes, NaN, or values it does not save.

    Of a layer pattern, every scheme is checked.
    """
    for entry in dict.fromkeys(cycle(spec)):
        original = scheme(entry, heads, head_width, train_length).eval()
        if not is_built_in(type(original)):  # these are covered by the test suite
            _check_outputs(original, scheme(entry, heads, head_width, train_length).eval())


def _check_outputs(original: Scheme, copy: Scheme) -> None:
    state = deepcopy(original.state_dict())
    for module in (original, copy):  # both, because loading also projects
        module.load_state_dict(state)
    arguments = _arguments(original)
    if original.score_factor == 1 and not arguments:
        raise BadInput(
            f"scheme '{original.spec}' would train as 'none': it overrides neither embedding(), angles(), bias() nor "
            "another method of Scheme; override at least one of them (is a name misspelled?)"
        )
    for method, (inputs, expected) in arguments.items():
        table, copied_table = (_table(module, method, inputs) for module in (original, copy))
        source = f"{method}() of scheme '{original.name}'"
        if table is None or copied_table is None:
            continue
        shape = tuple(table.shape)
        if shape[: len(expected)] != expected and not (method == "bias" and shape == (1, TOKENS)):
            raise BadInput(f"{source} returned shape {shape} for {TOKENS} tokens, expected {expected}")
        masks = method == "bias" and bool((table < torch.inf).all() and table[:, 0].isfinite().all())
        if not table.isfinite().all() and not masks:  # a bias of -inf masks a key, but never the query's own
            raise BadInput(f"{source} returned NaN or inf: {table.flatten()[:TOKENS].tolist()}")
        if not torch.equal(table, copied_table):
            raise BadInput(f"{source} uses values that are neither parameters nor buffers: they would not be saved")


def scheme_warnings(spec: str, heads: int, head_width: int, train_length: int | None = None) -> list[str]:
    """What is valid but may be a mistake: parameters without a gradient, methods that all return None."""
    warnings = []
    if names := unused_parameters(spec, heads, head_width, train_length):
        warnings.append(f"'{spec}' has parameters without a gradient: {', '.join(names)}")
    for entry in dict.fromkeys(cycle(spec)):
        module = scheme(entry, heads, head_width, train_length).eval()
        arguments = {} if is_built_in(type(module)) else _arguments(module)
        if arguments and all(_table(module, method, inputs) is None for method, (inputs, _) in arguments.items()):
            methods = ", ".join(f"{method}()" for method in arguments)
            warnings.append(f"'{entry}' adds nothing to {TOKENS} tokens: {methods} returned None")
    return warnings


def unused_parameters(spec: str, heads: int, head_width: int, train_length: int | None = None) -> list[str]:
    """Names of learned parameters of a user-defined scheme that get no gradient from any of its outputs."""
    names = []
    for entry in dict.fromkeys(cycle(spec)):
        module = scheme(entry, heads, head_width, train_length)
        if is_built_in(type(module)):
            continue
        calls = [getattr(module, method)(*inputs) for method, (inputs, _) in _arguments(module, grad=True).items()]
        tables = [table for table in calls if table is not None and table.requires_grad]
        total = sum((table[table.isfinite()].sum() for table in tables), torch.zeros(()))
        if total.requires_grad:
            total.backward()
        names += [name for name, value in module.named_parameters() if value.requires_grad and value.grad is None]
    return [name for name in dict.fromkeys(names) if not name.startswith("softmax_options.")]


def _arguments(module: Scheme, grad: bool = False) -> dict[str, tuple[tuple[Any, ...], tuple[int, ...]]]:
    """For each method that the scheme overrides: arguments for `TOKENS` tokens, and the first sizes of its result."""
    heads, width = module.heads, module.head_width
    positions, visible = torch.arange(TOKENS), torch.arange(1, TOKENS + 1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    x_BSD = torch.randn(1, TOKENS, heads * width, generator=generator)
    q_BHtK, k_BHsK = torch.randn(2, 1, heads, TOKENS, width, generator=generator)
    scores_BHts, visible_Bts = q_BHtK @ k_BHsK.transpose(2, 3), (positions[:, None] >= positions)[None]
    q_features, k_features = (_table(module, method, (x_BSD,), grad) for method in ("query_features", "key_features"))
    block = ScoreBlock(
        scores_BHts, q_BHtK, k_BHsK, q_features, k_features, positions[None], positions[None], visible_Bts
    )
    by_token, by_pair = (1, heads, TOKENS), (1, heads, TOKENS, TOKENS)
    rotation = (positions, torch.tensor([TOKENS])) if module.by_length else (positions,)
    arguments: dict[str, tuple[tuple[Any, ...], tuple[int, ...]]] = {
        "embedding": ((positions,), (TOKENS, heads * width)),
        "angles": (rotation, (TOKENS, width // 2)),
        "magnitudes": ((positions,), (TOKENS, width // 2)),
        "bias": ((positions,), (heads, TOKENS)),
        "query_scale": ((positions[None, None], visible[None, None]), ()),
        "key_bias": ((x_BSD,), by_token),
        "log_decay": ((x_BSD,), by_token),
        "sink_logit": ((), (heads,)),
        "query_features": ((x_BSD,), by_token),
        "key_features": ((x_BSD,), by_token),
        "attention_logits": ((block,), by_pair),
        "attention_weights": ((scores_BHts, visible_Bts), by_pair),
    }
    return {method: pair for method, pair in arguments.items() if module.overrides(method)}


def _table(module: Scheme, method: str, inputs: tuple[Any, ...], grad: bool = False) -> Tensor | None:
    with reraise_as_bad_input(f"{method}() of scheme '{module.name}' failed"), torch.set_grad_enabled(grad):
        table = getattr(module, method)(*inputs)
    if table is not None and not isinstance(table, Tensor):
        raise BadInput(f"{method}() of scheme '{module.name}' must return a tensor or None, got {type(table).__name__}")
    return table
