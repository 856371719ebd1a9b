"""Versions to include in a bug report; imports nothing heavy."""

import importlib.metadata
import os
import platform

from fieldlens import __version__

NEEDED = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
EXTRAS = {
    "data": "datasets",
    "track": "tensorboard",
    "gguf": "gguf",
    "ray": "ray",
    "eval": "lm-eval",
    "explore": "starlette",
    "bench": "x-transformers",
}
"""The package that shows whether an extra is installed."""
KERNEL = "FIELDLENS_KERNEL"


def installed_version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def versions() -> str:
    """Versions, one per line; and the kernel, if one is asked for."""
    lines = [f"fieldlens {__version__}", f"python {platform.python_version()}"]
    lines += [f"{name} {installed_version(name) or 'missing'}" for name in NEEDED]
    lines += [f"{name} {installed_version(name)}" for name in EXTRAS.values() if installed_version(name)]
    lines += [f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"]
    return "\n".join([*lines, f"attention kernel: {os.environ.get(KERNEL) or 'auto'} (fieldlens doctor shows why)"])
