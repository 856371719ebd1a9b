"""Console for commands: colours and wrapped lines on a terminal, plain unwrapped lines in a pipe."""

import os
from typing import Any

from rich.console import Console

UNFOLDED = 10_000


class Screen(Console):
    """Console that raises BrokenPipeError on stdout, but only falls silent on stderr, so that work continues."""

    def on_broken_pipe(self) -> None:
        if not self.stderr:
            raise BrokenPipeError
        self.quiet = True


def console(stderr: bool = False) -> Console:
    """Return a console as wide as the terminal; in a pipe lines are not wrapped unless COLUMNS is set."""
    screen = Screen(stderr=stderr, highlight=False)
    if not screen.is_terminal and not os.environ.get("COLUMNS"):
        screen.width = UNFOLDED
    return screen


def show(screen: Console, table: Any) -> None:
    """Print a table with its notes below it."""
    screen.print(table)
    for note in table.notes:
        screen.print(note, style="dim", markup=False)
