"""Attention windows: number of keys a query sees, itself included. Any scheme can have one."""

from collections.abc import Sequence

from fieldlens.core.errors import BadInput

MAX_WINDOW = 2**40


def check_window(window: int | None) -> None:
    """Raise `BadInput` unless the window is None or from 1 to `MAX_WINDOW` - 1."""
    if window is not None and window < 1:
        raise BadInput(f"window must be at least 1, got {window}: a query always sees itself")
    if window is not None and window >= MAX_WINDOW:
        raise BadInput(f"window must be less than {MAX_WINDOW}, got {window}: omit it for full attention")


def window_reach(windows: Sequence[int | None]) -> int | None:
    """Number of most recent tokens that the last output of layers with these windows can depend on; None for all."""
    widths = [width for width in windows if width is not None]
    return sum(width - 1 for width in widths) + 1 if len(widths) == len(windows) else None


def min_window(window: int | None, other: int | None) -> int | None:
    """The smaller of two windows, where None means no window."""
    return min((w for w in (window, other) if w is not None), default=None)
