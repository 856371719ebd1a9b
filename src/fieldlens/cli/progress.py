"""What a person sees of long work: an estimate, a bar with the time left, or a line now and then."""

import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

EVERY = 10.0


class Watcher:
    """Shows events: a stage, an estimate, how much is done, a warning."""

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
        self.begun: tuple[float, float] | None = None
        """When the first report of a stage came, and how much was done by then."""

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
            self.stage, self.begun = event["stage"], None
            self.progress.reset(self.task, description=self.stage, total=None)
        if "estimate" in event:
            words = f"about {format_duration(event['estimate'])}, {format_bytes(event['memory'])} beside the weights"
            self.console.print(f"{self.stage}: {words}", markup=False)
        if "done" in event:
            text = f"{self.stage}  {event.get('what', '')}"
            self.progress.update(self.task, completed=event["done"], total=event["total"], description=text)
            now = time.monotonic()
            self.begun = self.begun or (now, event["done"])
            if not self.console.is_terminal and now - self.last > EVERY and event["done"] > self.begun[1]:
                self.last = now
                left = (now - self.begun[0]) * (event["total"] - event["done"]) / (event["done"] - self.begun[1])
                share = event["done"] / event["total"]
                self.console.print(f"{text}: {share:.0%} done, {format_duration(left)} left", markup=False)
