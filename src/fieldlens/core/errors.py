"""What can go wrong through no fault of ours, and the exit code each kind ends in."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class FieldlensError(Exception):
    """Something a user can cause and mend; the command line prints it in one line."""

    exit_code = 2


class BadInput(FieldlensError, ValueError):
    """What was asked for cannot be done as asked."""

    exit_code = 2


class NonFiniteResult(FieldlensError):
    """A model gave a number that is none."""

    exit_code = 3


class OutOfMemory(FieldlensError):
    """What was asked for does not fit, however it is cut."""

    exit_code = 4


def unknown(kind: str, given: str, allowed: Iterable[str], more: str = "") -> BadInput:
    """Name what was given and what is allowed, with a guess at what was meant."""
    names = sorted(allowed)
    near = difflib.get_close_matches(given, names, n=1)
    guess = f"did you mean '{near[0]}'? " if near else ""
    return BadInput(f"unknown {kind} '{given}': {guess}allowed: {', '.join(names) or 'none'}{more}")


@contextmanager
def reraise_as_bad_input(what: str) -> Iterator[None]:
    """Whatever goes wrong in a file that we did not write, in one line."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:
        raise BadInput(f"{what}: {type(error).__name__}: {' '.join(str(error).split())}") from error
