"""Positional schemes: base class, registry, and specs such as sandwich:dims=64.

A scheme is one file in this folder: a subclass of `Scheme` with a `name`. The model, the command line, the contract
tests, the benchmarks and the plots iterate over `registry()`.

Reading order: window, base, discovery, spec, validation; then the schemes.
"""

import warnings
from typing import Any

from fieldlens.schemes.base import Scheme, ScoreBlock, widest_float
from fieldlens.schemes.discovery import registry
from fieldlens.schemes.spec import canonical, options, parse, scheme

__all__ = ["Scheme", "ScoreBlock", "canonical", "options", "parse", "registry", "scheme", "widest_float"]


def __getattr__(name: str) -> Any:
    """Deprecated names of version 0.1, still used by plugins."""
    if name == "exact":
        warnings.warn("fieldlens.schemes.exact is now called widest_float", DeprecationWarning, stacklevel=2)
        return widest_float
    raise AttributeError(f"module 'fieldlens.schemes' has no attribute '{name}'")
