"""The shape that a JSON object must have before its values are used: which keys, and of which types."""

from collections.abc import Callable
from typing import Any

Shape = type | dict[str, Any] | list[Any] | tuple[Any, ...] | Callable[[Any], bool] | None
"""A type, a table of keys (those with a ? may be missing), a list of one shape, a choice of shapes, or a test."""


def positive(value: Any) -> bool:
    """Whether a value is an integer of at least 1 that fits in 64 bits."""
    return type(value) is int and 1 <= value < 2**63


def check_shape(value: Any, shape: Shape, name: str = "it") -> None:
    """Raise TypeError, with the place of the value, if it has another shape."""
    if isinstance(shape, tuple):
        if not any(_fits(value, choice) for choice in shape):
            raise TypeError(f"{name} is {value!r:.40}")
    elif isinstance(shape, dict):
        if not isinstance(value, dict):
            raise TypeError(f"{name} is {value!r:.40}, not an object")
        for key, inner in shape.items():
            plain = key.removesuffix("?")
            if plain in value:
                check_shape(value[plain], inner, plain)
            elif plain == key:
                raise TypeError(f"{name} has no '{key}'")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise TypeError(f"{name} is {value!r:.40}, not a list")
        for item in value:
            check_shape(item, shape[0], name)
    elif not _fits(value, shape):
        raise TypeError(f"{name} is {value!r:.40}")


def _fits(value: Any, shape: Shape) -> bool:
    if shape is None:
        return value is None
    if isinstance(shape, type):
        return type(value) is shape or (shape is float and type(value) is int)
    if callable(shape):
        return shape(value)
    try:
        check_shape(value, shape)
    except TypeError:
        return False
    return True
