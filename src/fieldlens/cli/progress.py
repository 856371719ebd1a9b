"""Progress of long computations: an estimate, then a progress bar on a terminal or a line every ten seconds."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

EVERY = 10.0


class Watcher:
    """Prints progress events: stage, estimate, amount done, warning."""

    def __init__(self, console: Console, quiet: bool) -> None:
        self.console, self.quiet = console, quiet
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=quiet or not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=None)
        self.stage, self.last = "", time.monotonic()
        self.start: tuple[float, float] | None = None
        """Time of the first report of a stage, and the amount done by then."""

    def __enter__(self) -> "Watcher":
        self.progress.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self.progress.__exit__(*details)

    def watch(self, event: dict[str, Any]) -> None:
        from fieldlens.core.format import format_bytes, format_duration

        if "warning" in event:
            self.console.print(f"warning: {event['warning']}", markup=False)
        if self.quiet:
            return
        if "stage" in event:
            self.stage, self.start = event["stage"], None
            self.progress.reset(self.task, description=self.stage, total=None)
        if "estimate" in event:
            duration, memory = format_duration(event["estimate"]), format_bytes(event["memory"])
            self.console.print(f"{self.stage}: about {duration}, {memory} in addition to the weights", markup=False)
        if "done" in event:
            text = f"{self.stage}  {event.get('what', '')}"
            self.progress.update(self.task, completed=event["done"], total=event["total"], description=text)
            now = time.monotonic()
            self.start = self.start or (now, event["done"])
            if not self.console.is_terminal and now - self.last > EVERY and event["done"] > self.start[1]:
                self.last = now
                left = (now - self.start[0]) * (event["total"] - event["done"]) / (event["done"] - self.start[1])
                share = event["done"] / event["total"]
                self.console.print(f"{text}: {share:.0%} done, {format_duration(left)} left", markup=False)
