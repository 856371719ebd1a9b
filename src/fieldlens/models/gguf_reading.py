"""Reads a GGUF file once: while it loads a model, transformers asks the gguf package hundreds of times for the same."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np


@contextmanager
def read_once() -> Iterator[None]:
    """Context in which a file is parsed once and the names of an architecture's tensors are listed once."""
    import gguf

    reader, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader, gguf.get_tensor_name_map = cache(_with_plain_arrays(reader)), cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, names


def _with_plain_arrays(reader: type) -> type:
    """The reader on a plain array over the same file: slicing a memory map takes several times as long."""

    class PlainReader(reader):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, np.asarray(value) if name == "data" else value)

    return PlainReader
