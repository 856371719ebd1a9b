"""fieldlens: how far back a language model really looks, and how far past its training length to trust it."""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0.dev0"

if TYPE_CHECKING:
    from fieldlens import schemes as schemes
    from fieldlens.evaluation.compare import compare as compare
    from fieldlens.evaluation.evaluate import perplexity as perplexity
    from fieldlens.evaluation.result import Evaluation as Evaluation
    from fieldlens.generation.generate import generate as generate
    from fieldlens.generation.sampling import Sampling as Sampling
    from fieldlens.kernels.attention import attention as attention
    from fieldlens.models.decoder import Config as Config
    from fieldlens.models.decoder import Decoder as Decoder
    from fieldlens.models.loading import load_model as load_model
    from fieldlens.receptive.explorer.notebook import explore as explore
    from fieldlens.receptive.field import ReceptiveField as ReceptiveField
    from fieldlens.receptive.field import receptive_field as receptive_field
    from fieldlens.schemes.base import Scheme as Scheme
    from fieldlens.schemes.spec import scheme as scheme
    from fieldlens.training.loop import train as train
    from fieldlens.training.recipe import Recipe as Recipe

# Every public name and its module, imported when first used: `fieldlens --help` must not wait for torch.
_MODULES = {
    "Scheme": "schemes.base",
    "scheme": "schemes.spec",
    "attention": "kernels.attention",
    "Config": "models.decoder",
    "Decoder": "models.decoder",
    "load_model": "models.loading",
    "train": "training.loop",
    "Recipe": "training.recipe",
    "perplexity": "evaluation.evaluate",
    "Evaluation": "evaluation.result",
    "compare": "evaluation.compare",
    "receptive_field": "receptive.field",
    "ReceptiveField": "receptive.field",
    "explore": "receptive.explorer.notebook",
    "generate": "generation.generate",
    "Sampling": "generation.sampling",
}

__all__ = [
    "Config",
    "Decoder",
    "Evaluation",
    "ReceptiveField",
    "Recipe",
    "Sampling",
    "Scheme",
    "__version__",
    "attention",
    "compare",
    "explore",
    "generate",
    "load_model",
    "perplexity",
    "receptive_field",
    "scheme",
    "schemes",
    "train",
]


def __getattr__(name: str) -> Any:
    if name == "schemes":
        return importlib.import_module("fieldlens.schemes")
    if name not in _MODULES:
        raise AttributeError(f"module 'fieldlens' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"fieldlens.{_MODULES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
