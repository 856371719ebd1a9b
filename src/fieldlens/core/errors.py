"""Exceptions for errors that a user can fix, and their exit codes."""

import difflib
import errno
from collections.abc import Callable, Iterable, Iterator
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


def in_one_line(error: BaseException) -> str:
    """The class of an exception and its message."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def message_only(error: BaseException) -> str:
    """The message of an exception, shortened; its class if it has none."""
    return " ".join(str(error).split())[:300] or type(error).__name__


@contextmanager
def reraise_as_bad_input(
    message: str,
    catch: tuple[type[Exception], ...] = (Exception,),
    explain: Callable[[BaseException], str] = in_one_line,
) -> Iterator[None]:
    """Turn an exception of user code or of a library into one line that starts with `message`.

    It becomes a `BadInput`. Our own errors and faults of the machine (memory, disk space) stay what they are.
    """
    try:
        yield
    except FieldlensError:
        raise
    except BaseException as error:
        # sys.exit() in user code and a panic of a library written in Rust are no Exceptions
        anything = Exception in catch and not isinstance(error, KeyboardInterrupt | GeneratorExit)
        if not isinstance(error, catch) and not anything:
            raise
        if fault := machine_fault(error):
            raise fault from error
        raise BadInput(f"{message}: {explain(error)}") from error


def explain(error: Exception) -> tuple[str, int] | None:
    """The one-line message and the exit code of an error that a user or the machine caused; None for a bug."""
    fault = None if isinstance(error, FieldlensError) else machine_fault(error)
    if not (fault or isinstance(error, FieldlensError | OSError)):
        return None
    code = error.exit_code if isinstance(error, FieldlensError) else 4
    return " ".join(_message(fault or error).split()), code


def _message(error: Exception) -> str:
    """The error message; for a full disk, with what to do."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        location = f" at {error.filename}" if error.filename else ""
        advice = "free some space or write elsewhere, then re-run the command (train: with --resume)"
        return f"the disk is full{location}: {advice}"
    if isinstance(error, MemoryError):
        return f"not enough memory: give smaller sizes, or free some memory ({str(error)[:200] or 'MemoryError'})"
    return str(error)
