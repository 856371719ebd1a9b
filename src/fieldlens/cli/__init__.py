"""The command line: one file per verb, each a thin call of the library, heavy imports inside."""

import importlib.metadata
import platform
import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter

from fieldlens import __version__
from fieldlens.cli.compare import compare
from fieldlens.cli.corpus import corpus
from fieldlens.cli.evaluate import evaluate
from fieldlens.cli.generate import generate
from fieldlens.cli.measure import measure
from fieldlens.cli.paper import paper
from fieldlens.cli.runs import runs
from fieldlens.cli.schemes import schemes
from fieldlens.cli.study import study
from fieldlens.cli.train import train
from fieldlens.errors import FieldlensError


def versions() -> str:
    """The versions that matter in a bug report."""
    found = [f"fieldlens {__version__}", f"python {platform.python_version()}"]
    return ", ".join(found + [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "transformers")])


app = App(
    name="fieldlens",
    help="How far back does a language model really look, and how far past its training length can you trust it?",
    version=versions,
    help_epilogue="--debug after any command shows the traceback of an error.",
    help_format="plaintext",
    default_parameter=Parameter(negative=()),
)
for verb in (schemes, corpus, train, runs, evaluate, compare, measure, generate, study, paper):
    app.command(verb)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; what a user can mend is said in one line, with the exit code of its kind."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    if debug:
        words.remove("--debug")
    try:
        app(words, exit_on_error=False, print_error=False, result_action="return_none")
    except (FieldlensError, CycloptsError, OSError) as error:
        if debug:
            raise
        print(f"fieldlens: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        sys.exit(130)


def _exit_code(error: Exception) -> int:
    if isinstance(error, FieldlensError):
        return error.exit_code
    return 4 if isinstance(error, OSError) else 2
