"""Where commands print: colours and folding on a terminal, plain whole lines in a pipe."""

import os
from typing import Any

from rich.console import Console

UNFOLDED = 10_000


class Screen(Console):
    """A console that leaves a closed pipe to the command line; who no longer reads progress ends no work."""

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        self.quiet = True


def console(stderr: bool = False) -> Console:
    """A console as wide as the terminal; in a pipe lines are left whole, unless COLUMNS says how wide."""
    found = Screen(stderr=stderr, highlight=False)
    if not found.is_terminal and not os.environ.get("COLUMNS"):
        found.width = UNFOLDED
    return found


def show(screen: Console, sheet: Any) -> None:
    """A sheet, and its notes below it."""
    screen.print(sheet)
    for note in sheet.notes:
        screen.print(note, style="dim", markup=False)
