"""What is asked of a transformers model beside its forward pass: lengths, windows, positions, masks.

Capabilities are probed, never inferred from an architecture's name.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from fieldlens.kernels.layout import visible


def configured_train_length(config: Any) -> int | None:
    """The length that a configuration of transformers says the model was trained at, before any stretching."""
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    each = [one for one in (rope, *rope.values()) if isinstance(one, dict)] if isinstance(rope, dict) else []
    stretched = [one.get("original_max_position_embeddings") for one in each]  # layers may differ
    original = min((value for value in stretched if isinstance(value, int)), default=None)
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length")
    found = [original, *(getattr(config, name, None) for name in names)]
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def dynamic_rope_length(model: Any) -> int | None:
    for module in model.modules():
        kind = getattr(module, "rope_type", None)
        kinds = kind.values() if isinstance(kind, dict) else [kind]  # layers may differ
        if "dynamic" in kinds:
            return int(module.original_max_seq_len)
        if "longrope" in kinds:
            return configured_train_length(model.config.get_text_config())
    return None


def reset_dynamic_rope(model: nn.Module) -> None:
    """Rotary positions that stretch with the text keep the stretch of the longest one: begin anew."""
    for module in model.modules():
        first = getattr(module, "original_max_seq_len", None)
        for name in [key for key in vars(module) if first is not None and key.endswith("max_seq_len_cached")]:
            kind = name.removesuffix("max_seq_len_cached")
            original, now = (getattr(module, f"{kind}{what}inv_freq", None) for what in ("original_", ""))
            if original is not None and now is not None and getattr(module, name) > first:
                module.register_buffer(f"{kind}inv_freq", original.to(now.device), persistent=False)
                setattr(module, name, first)


def _windows(config: Any) -> tuple[int | None, ...]:
    """The window of each layer by a configuration of transformers: how many keys, itself included, a query sees."""
    layers = getattr(config, "num_hidden_layers", None) or 1
    width = getattr(config, "sliding_window", None)
    if not isinstance(width, int) or width < 1 or getattr(config, "use_sliding_window", True) is False:
        return (None,) * layers
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * layers
    return tuple(width if kind == "sliding_attention" else None for kind in kinds)


def _positions(model: Any) -> int | None:
    """The rows of a table of positions: learned, in an embedding that is not the tokens', or fixed, in a buffer.

    It has a row for each position; some keep a few spare.
    """
    length = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    fixed = [one for name, one in model.named_buffers() if "pos" in name.rpartition(".")[2] and one.ndim == 2]
    if length and any(len(one) == length for one in fixed):
        return int(length)
    tokens = model.get_input_embeddings()
    others = [m for m in model.modules() if isinstance(m, nn.Embedding) and m is not tokens]
    fitting = [m for m in others if length and 0 <= m.num_embeddings - length <= 8]
    if not length or not fitting:
        return None
    # some count from behind the padding, and have no rows to spare for that
    first = max(0 if m.padding_idx is None else m.padding_idx + 1 for m in fitting)
    return min(length, max(m.num_embeddings for m in fitting) - first)


@contextmanager
def sliding_window_masks(window: int | None) -> Iterator[None]:
    """While this holds, every mask that transformers makes is cut to a band as well: the smaller window counts."""
    if window is None:
        yield
        return
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as MASKS
    from transformers.masking_utils import and_masks

    def inside(batch: Any, head: Any, query: Tensor, key: Tensor) -> Tensor:
        return visible(query - key, window)

    def banded(make: Callable[..., Any]) -> Callable[..., Any]:
        def mask(*, mask_function: Callable[..., Any], **rest: Any) -> Any:
            return make(mask_function=and_masks(mask_function, inside), **{**rest, "allow_is_causal_skip": False})

        return mask

    names = [name for name in ("eager", "sdpa") if name in MASKS]
    for name in names:
        MASKS[name] = banded(MASKS[name])
    try:
        yield
    finally:
        for name in names:
            del MASKS[name]
