"""Properties of transformers models beyond the forward pass: lengths, windows, positions, masks.

Capabilities are probed, not inferred from names.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fieldlens.kernels.layout import visible

BLOCK = 256
"""Queries that read the keys of their windows together."""


def configured_train_length(config: Any) -> int | None:
    """Training length according to a transformers configuration, before any RoPE scaling."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    rope_configs = [part for part in (rope, *rope.values()) if isinstance(part, dict)] if isinstance(rope, dict) else []
    originals = [part.get("original_max_position_embeddings") for part in rope_configs]  # layers may differ
    original = min((length for length in originals if isinstance(length, int)), default=None)
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    lengths = [original, *(getattr(config, name, None) for name in names)]
    return next((length for length in lengths if isinstance(length, int) and length > 0), None)


def dynamic_rope_length(model: Any) -> int | None:
    """Length beyond which dynamic or longrope RoPE scaling changes the frequencies; None without such scaling."""
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds = kind.values() if isinstance(kind, dict) else [kind]  # layers may differ
        if "dynamic" in kinds:
            return int(module.original_max_seq_len)
        if "longrope" in kinds:
            return configured_train_length(model.config.get_text_config())
    return None


def reset_dynamic_rope(model: nn.Module) -> None:
    """Restore the original frequencies: dynamic RoPE scaling keeps those of the longest text seen so far."""
    for module in model.modules():
        first = getattr(module, "original_max_seq_len", None)
        for name in [key for key in vars(module) if first is not None and key.endswith("max_seq_len_cached")]:
            kind = name.removesuffix("max_seq_len_cached")
            original, current = (getattr(module, f"{kind}{prefix}inv_freq", None) for prefix in ("original_", ""))
            if original is not None and current is not None and getattr(module, name) > first:
                module.register_buffer(f"{kind}inv_freq", original.to(current.device), persistent=False)
                setattr(module, name, first)


def layer_windows(config: Any) -> tuple[int | None, ...]:
    """Window of each layer in a transformers configuration: number of keys visible to a query, itself included."""
    layers = getattr(config, "num_hidden_layers", None) or 1
    width = getattr(config, "sliding_window", None)
    if not isinstance(width, int) or width < 1 or getattr(config, "use_sliding_window", True) is False:
        return (None,) * layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return tuple(width if kind == "sliding_attention" else None for kind in kinds)


def position_limit(model: Any) -> int | None:
    """Number of positions in a table: learned, in an embedding other than the token embedding, or fixed, in a buffer.

    The table has one row per position, and in some models a few spare rows. None without such a table.
    """
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    tables = [table for name, table in model.named_buffers() if "pos" in name.rpartition(".")[2] and table.ndim == 2]
    if length and any(len(table) == length for table in tables):
        return int(length)
    token_embedding = model.get_input_embeddings()
    others = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not token_embedding]
    candidates = [m for m in others if length and 0 <= m.num_embeddings - length <= 8]
    if not length or not candidates:
        return None
    # some models count positions from padding_idx + 1 and have no spare rows for that
    first = max(0 if m.padding_idx is None else m.padding_idx + 1 for m in candidates)
    return min(length, max(m.num_embeddings for m in candidates) - first)


@contextmanager
def sliding_window_masks(window: int | None) -> Iterator[None]:
    """Context manager: restrict every mask made by transformers to this window as well; the smaller window applies.

    SDPA then runs on blocks of queries, each with the keys that the window leaves it.
    """
    if window is None:
        yield
        return
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS
    from transformers.masking_utils import and_masks
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS as FUNCTIONS

    def inside(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        return visible(query - key, window)

    def banded(make: Callable[..., Any]) -> Callable[..., Any]:
        def mask(*, mask_function: Callable[..., Any], **rest: Any) -> Any:
            return make(mask_function=and_masks(mask_function, inside), **{**rest, "allow_is_causal_skip": False})

        return mask

    names = [name for name in ("eager", "sdpa") if name in MASKS]
    for name in names:
        MASKS[name] = banded(MASKS[name])
    FUNCTIONS["sdpa"] = partial(_attend_in_blocks, FUNCTIONS["sdpa"], window)
    try:
        yield
    finally:
        del FUNCTIONS["sdpa"]
        for name in names:
            del MASKS[name]


def _attend_in_blocks(
    attend: Callable[..., Any],
    window: int,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """An attention function whose mask has a window, by blocks of queries: keys that the mask hides are not read.

    A layer that attends to a cache, or adds a bias, is left alone.
    """
    tokens = query.shape[2]
    shape = None if attention_mask is None else (*attention_mask.shape[-2:], key.shape[2])
    biased = bool(args) or kwargs.get("position_bias") is not None
    if attention_mask is None or shape != (tokens,) * 3 or tokens <= max(window, BLOCK) or biased:
        return attend(module, query, key, value, attention_mask, *args, **kwargs)
    outputs = []
    for start in range(0, tokens, BLOCK):
        rows, keys = slice(start, start + BLOCK), slice(max(0, start - window + 1), start + BLOCK)
        mask = attention_mask[..., rows, keys]
        outputs.append(attend(module, query[:, :, rows], key[:, :, keys], value[:, :, keys], mask, **kwargs)[0])
    return torch.cat(outputs, 1), None
