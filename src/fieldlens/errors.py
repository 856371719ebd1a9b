"""What can go wrong through no fault of ours, and the exit code each kind ends in."""

import difflib
from collections.abc import Iterable


class FieldlensError(Exception):
    """Something a user can cause and mend; the command line prints it in one line."""

    exit_code = 2


class BadInput(FieldlensError, ValueError):
    """What was asked for cannot be done as asked."""

    exit_code = 2


class Undefined(FieldlensError):
    """A model gave a number that is none."""

    exit_code = 3


class NoMemory(FieldlensError):
    """What was asked for does not fit, however it is cut."""

    exit_code = 4


def unknown(kind: str, given: str, allowed: Iterable[str], more: str = "") -> BadInput:
    """Name what was given and what is allowed, with a guess at what was meant."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=1)
    guess = f"did you mean '{near[0]}'? " if near else ""
    return BadInput(f"unknown {kind} '{given}': {guess}allowed: {', '.join(names) or 'none'}{more}")
