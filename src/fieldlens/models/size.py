"""The least memory that a model needs, estimated from its configuration or its files before anything is allocated."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fieldlens.core.errors import OutOfMemory
from fieldlens.core.format import format_bytes
from fieldlens.core.memory import total_memory

LAYER_BYTES = 16 << 10
"""What the modules of a layer take without their weights."""

_KEYS = {
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers"),
    "width": ("hidden_size", "n_embd", "d_model", "dim", "width"),
    "vocab_size": ("vocab_size",),
}
"""Names that configurations have for the sizes of a model."""


def least_parameters(layers: int, width: int, vocab_size: int) -> int:
    """A lower bound of the parameters of any transformer of this size: queries, outputs and embeddings."""
    return layers * 2 * width**2 + vocab_size * width


def check_memory(name: str, needed: float, device: torch.device, advice: str) -> None:
    """Raise OutOfMemory if something needs more memory than the machine has."""
    available = total_memory(device)
    if needed > available:
        raise OutOfMemory(
            f"{name} needs at least {format_bytes(needed)} of memory, but only {format_bytes(available)} can be used: "
            f"{advice}"
        )


def check_config(name: str, config: dict[str, Any], dtype: torch.dtype) -> None:
    """Refuse a configuration whose model cannot fit in memory, as a mistyped or hostile one may describe."""
    text = config.get("text_config")
    for part in (config, text) if isinstance(text, dict) else (config,):
        layers, width, vocab_size = (_first(part, keys) for keys in _KEYS.values())
        needed = least_parameters(layers, width, vocab_size) * dtype.itemsize + layers * LAYER_BYTES
        sizes = f"{layers:,} layers of width {width:,} and a vocabulary of {vocab_size:,}"
        check_memory(f"{name}, with {sizes},", needed, torch.device("cpu"), "check its config.json")


def _first(config: dict[str, Any], keys: Iterable[str]) -> int:
    values = (config.get(key) for key in keys)
    return next((value for value in values if isinstance(value, int) and value > 0), 0)


def check_weights(name: str, folder: Path, dtype: torch.dtype) -> None:
    """Refuse weights in safetensors files that do not fit in memory in this dtype."""
    elements = sum(_elements(file) for file in folder.glob("*.safetensors"))
    needed = float(elements * dtype.itemsize)
    check_memory(f"{name}, with {elements:,} weights,", needed, torch.device("cpu"), "use a smaller model or --dtype")


def _elements(file: Path) -> int:
    """Number of weights in the header of a safetensors file; 0 if it cannot be read, which loading reports."""
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 0 < length <= file.stat().st_size:
            return 0
        header = stream.read(length)
    try:
        entries = json.loads(header).items()
        shapes = [entry["shape"] for key, entry in entries if key != "__metadata__"]
        return sum(_product(shape) for shape in shapes)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return 0


def _product(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= int(size)
    return count
