"""Windows: how many keys a query sees, itself included. Any scheme can have one."""

from fieldlens.core.errors import BadInput

WIDEST = 2**40


def check_window(window: int | None) -> None:
    """Refuse a window in which a query would not even see itself, or that no position can reach."""
    if window is not None and window < 1:
        raise BadInput(f"window is {window}: a query sees at least itself, so at least 1")
    if window is not None and window >= WIDEST:
        raise BadInput(f"window is {window}: less than {WIDEST} is needed; leave it out to see everything")


def min_window(window: int | None, other: int | None) -> int | None:
    """The smaller of two windows, either of which may be absent."""
    return min((w for w in (window, other) if w is not None), default=None)
