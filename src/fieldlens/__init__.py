"""fieldlens: how far back a language model really looks, and how far past its training length to trust it."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fieldlens.evaluation.evaluate import perplexity as perplexity
    from fieldlens.generation.generate import generate as generate
    from fieldlens.kernels.attention import attention as attention
    from fieldlens.models.decoder import Config as Config
    from fieldlens.models.decoder import Decoder as Decoder
    from fieldlens.receptive.field import receptive_field as receptive_field
    from fieldlens.schemes.spec import scheme as scheme

# Each public name and its module, imported when first used: `fieldlens --help` must not wait for torch.
_HOMES = {
    "scheme": "schemes",
    "attention": "kernels.attention",
    "Config": "models.decoder",
    "Decoder": "models.decoder",
    "perplexity": "evaluation.evaluate",
    "receptive_field": "receptive.field",
    "generate": "generation.generate",
}

__all__ = ["Config", "Decoder", "__version__", "attention", "generate", "perplexity", "receptive_field", "scheme"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fieldlens' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"fieldlens.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
