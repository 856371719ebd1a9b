"""The command line: one file per verb, each a thin call of the library; heavy libraries are imported inside."""

import inspect
import os
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from fieldlens.cli.compare import compare
from fieldlens.cli.corpus import corpus
from fieldlens.cli.doctor import doctor
from fieldlens.cli.evaluate import evaluate
from fieldlens.cli.explore import explore
from fieldlens.cli.extend import extend
from fieldlens.cli.generate import generate
from fieldlens.cli.installed import versions
from fieldlens.cli.measure import measure
from fieldlens.cli.paper import paper
from fieldlens.cli.runs import runs
from fieldlens.cli.schemes import schemes
from fieldlens.cli.study import WorkerOptions, study
from fieldlens.cli.train import Changes, train
from fieldlens.core.device import Machine
from fieldlens.core.errors import explain
from fieldlens.training.recipe import RunOptions

EPILOGUE = """\
fieldlens measure openai-community/gpt2    how far back does it look?
fieldlens train --out runs/first           train a small decoder"""
OLD_FLAGS = {"--vocabulary": "--vocab-size"}
"""Flag names of version 0.1, accepted for one more release."""
DEBUG = "--debug shows the traceback of an error."


app = App(
    name="fieldlens",
    help="Measure how far back a language model looks, and how far it extrapolates.",
    version=versions,
    help_epilogue=EPILOGUE,
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
    suppress_keyboard_interrupt=False,  # handled in __main__
)


def flowing(text: str) -> str:
    """Join the lines of each paragraph of a docstring, so that the terminal wraps them."""
    lines: list[str] = []
    for line in inspect.cleandoc(text).splitlines():
        inside = bool(lines) and _is_prose(lines[-1]) and _is_prose(line)
        if inside and _indent(lines[-1]) == _indent(line):
            lines[-1] += f" {line.strip()}"
        else:
            lines.append(line)
    return "\n".join(lines)


def _is_prose(line: str) -> bool:
    """Whether a line is neither blank nor the underline of a heading."""
    return bool(line.strip(" -"))


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


VERBS = (measure, explore, evaluate, extend, compare, generate, train, runs, schemes, corpus, study, paper, doctor)
for documented in (Machine, RunOptions, Changes, WorkerOptions, *VERBS):
    documented.__doc__ = flowing(documented.__doc__ or "")
for position, verb in enumerate(VERBS):
    app.command(verb, sort_key=position, help_epilogue=DEBUG)  # type: ignore[call-overload]
app.register_install_completion_command(show=False, help_epilogue=DEBUG)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command. Errors that a user can fix are printed in one line, with the exit code of their kind."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if debug:
        words.remove("--debug")
    words = [_renamed(word) for word in words]
    try:
        app(words, exit_on_error=False, print_error=False, result_action="return_none")
        if sys.stdout is not None:  # None if it was closed before the start
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of the pipe has exited
        sys.exit(141)
    except Exception as error:
        usage = (" ".join(str(error).split()), 2) if isinstance(error, CycloptsError) else None
        explanation = usage or explain(error)
        if debug or explanation is None:
            raise
        message, code = explanation
        print(f"fieldlens: {message}", file=sys.stderr)
        sys.exit(code)


def _renamed(word: str) -> str:
    """Replace an old flag by its current name."""
    flag, equals, value = word.partition("=")
    return f"{OLD_FLAGS[flag]}{equals}{value}" if flag in OLD_FLAGS else word
