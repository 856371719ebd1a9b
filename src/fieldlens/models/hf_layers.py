"""The layers of a decoder in the terms of a transformers configuration."""

from typing import Any

from fieldlens.schemes.base import Scheme
from fieldlens.schemes.spec import cycle, parse

LAYER_KEYS = ("layer_types", "sliding_window", "no_rope_layers")
"""Keys of config.json that follow from the scheme: other programs read them, we do not."""


def layer_facts(scheme: str, layers: int) -> dict[str, Any]:
    """`layer_types` and `sliding_window` if any layer has a window, `no_rope_layers` if only some layers rotate.

    Transformers has one `sliding_window` for all layers: the largest, so that its caches keep enough tokens; layers
    with a smaller window mask the rest. `no_rope_layers` is 1 for layers that rotate, as in Llama 4 and SmolLM3.
    """
    pattern = cycle(scheme)
    entries = [parse(pattern[number % len(pattern)]) for number in range(layers)]
    windows = [values.get("window") for _, values in entries]
    rotates = [int(cls.angles is not Scheme.angles) for cls, _ in entries]
    facts: dict[str, Any] = {}
    if any(windows):
        facts["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
        facts["sliding_window"] = max(window for window in windows if window)
    if len(set(rotates)) > 1:
        facts["no_rope_layers"] = rotates
    return facts
