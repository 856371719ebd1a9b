"""fieldlens: how far back a language model really looks, and how far past its training length to trust it."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fieldlens.attend import attention as attention
    from fieldlens.decoder import Config as Config
    from fieldlens.decoder import Decoder as Decoder
    from fieldlens.generation import generate as generate
    from fieldlens.receptive import receptive_field as receptive_field
    from fieldlens.schemes import scheme as scheme
    from fieldlens.scoring import perplexity as perplexity

# Each public name and its module, imported when first used: `fieldlens --help` must not wait for torch.
_HOMES = {
    "scheme": "schemes",
    "attention": "attend",
    "Config": "decoder",
    "Decoder": "decoder",
    "perplexity": "scoring",
    "receptive_field": "receptive",
    "generate": "generation",
}

__all__ = ["Config", "Decoder", "__version__", "attention", "generate", "perplexity", "receptive_field", "scheme"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fieldlens' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"fieldlens.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
