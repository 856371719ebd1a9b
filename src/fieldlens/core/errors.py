"""Exceptions for errors that a user can fix, and their exit codes."""

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from fieldlens.core.faults import machine_fault


class FieldlensError(Exception):
    """Base class of errors that a user can fix; the command line prints the message in one line."""

    exit_code = 2


class BadInput(FieldlensError, ValueError):
    """An argument, option or file is invalid."""

    exit_code = 2


class NonFiniteResult(FieldlensError):
    """A model produced NaN or inf."""

    exit_code = 3


class OutOfMemory(FieldlensError):
    """The computation does not fit in memory."""

    exit_code = 4


def unknown(kind: str, name: str, allowed: Iterable[str], hint: str = "") -> BadInput:
    """Error for a name that is not among the allowed ones, with the closest match as a suggestion."""
    names = sorted(allowed)
    matches = difflib.get_close_matches(name, names, n=1)
    suggestion = f"did you mean '{matches[0]}'? " if matches else ""
    return BadInput(f"unknown {kind} '{name}': {suggestion}allowed: {', '.join(names) or 'none'}{hint}")


@contextmanager
def reraise_as_bad_input(message: str) -> Iterator[None]:
    """Turn any exception raised by user code into a one-line `BadInput` that starts with `message`."""
    try:
        yield
    except FieldlensError:
        raise
    except Exception as error:
        if fault := machine_fault(error):
            raise fault from error
        raise BadInput(f"{message}: {type(error).__name__}: {' '.join(str(error).split())}") from error
