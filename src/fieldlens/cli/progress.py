"""Progress of long computations: an estimate, then a progress bar on a terminal or a line per change."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from fieldlens.core import events
from fieldlens.core.events import Event
from fieldlens.core.format import format_bytes, format_duration

EVERY = 10.0
"""Seconds between lines, at least."""
STEP = 0.1
"""Share of a computation after which a line is printed, if its part has not changed before."""


class Watcher:
    """Prints the events of a training, an evaluation or a measurement; if quiet, only warnings."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self.console, self.quiet = console, quiet
        self.progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=None)
        self.stage, self.last = "", time.monotonic()
        self.printed = ("", 0.0)
        """Part and share done in the last line of a stage."""
        self.start: tuple[float, float] | None = None
        """Time of the first report of a part, and the amount done by then."""
        self.done = 0.0

    def __enter__(self) -> "Watcher":
        self.progress.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self.progress.__exit__(*details)

    def watch(self, event: Event) -> None:
        if isinstance(event, events.Warned):
            self.console.print(f"warning: {event.text}", markup=False)
        if self.quiet:
            return
        match event:
            case events.Note(text):
                self.console.print(text, style="dim", markup=False, soft_wrap=True)  # a command can be copied
            case events.Stage(name, activity):
                self.stage, self.start, self.printed = name, None, ("", 0.0)
                self.progress.reset(self.task, description=str(event), total=None)
                if activity and not self.console.is_terminal:
                    self.console.print(f"{event} …", markup=False)
            case events.Estimate(seconds, memory, with_weights):
                kind = "of memory" if with_weights else "in addition to the weights"
                self._print(f"about {format_duration(seconds)}, {format_bytes(memory)} {kind}")
            case events.Progress():
                self._show_progress(event)
            case events.TrainingStep():
                self._show_step(event)

    def _print(self, text: str) -> None:
        self.console.print(f"{self.stage}: {text}" if self.stage else text, markup=False)

    def _line_is_due(self) -> bool:
        """Whether a line should be printed now, because there is no progress bar."""
        if self.console.is_terminal or time.monotonic() - self.last <= EVERY:
            return False
        self.last = time.monotonic()
        return True

    def _show_progress(self, event: events.Progress) -> None:
        text = f"{self.stage}  {event.part}"
        now = time.monotonic()
        if self.start is None or event.done < self.done:  # another part with a count of its own
            self.start = (now, event.done)
            self.progress.reset(self.task)  # else the bar remains finished, with no time left
        self.progress.update(self.task, completed=event.done, total=event.total, description=text)
        self.done = event.done
        share, (part, before) = event.done / event.total, self.printed
        changed = event.part != part or share >= before + STEP
        if event.done > self.start[1] and changed and self._line_is_due():
            self.printed = (event.part, share)
            left = (now - self.start[0]) * (event.total - event.done) / (event.done - self.start[1])
            self.console.print(f"{text}: {share:.0%} done, {format_duration(left)} left", markup=False)

    def _show_step(self, event: events.TrainingStep) -> None:
        text = f"loss {event.loss:.3f}  {event.tokens_per_second:,.0f} tokens/s"
        bar = f"step {event.step} of {event.steps}  {text}"
        self.progress.update(self.task, completed=event.step, total=event.steps, description=bar)
        if event.validation_perplexity is not None:
            self._print(f"step {event.step}: {text}  validation perplexity {event.validation_perplexity:.2f}")
        elif self._line_is_due():
            self._print(f"step {event.step} of {event.steps}: {text}  {format_duration(event.seconds_left)} left")
