"""fieldlens train: from text to a trained decoder."""

import dataclasses
import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from cyclopts import Parameter
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fieldlens.cli.console import console
from fieldlens.core.device import Machine
from fieldlens.training.recipe import Recipe, RunOptions, recipe

Changes = dataclasses.make_dataclass(
    "Changes", [(name, kind | None, None) for name, kind in get_type_hints(Recipe).items()], frozen=True
)
Changes.__doc__, Changes.__module__ = Recipe.__doc__, __name__


def train(
    *,
    out: Path,
    preset: str = "glance",
    resume: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    changes: Annotated[Changes, Parameter(name="*")] = Changes(),  # type: ignore[valid-type] # noqa: B008
    options: Annotated[RunOptions, Parameter(name="*")] = RunOptions(),  # noqa: B008
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Train a decoder by a preset; a flag changes any number.

    Example: fieldlens train --preset glance --scheme sandwich --out runs/sandwich

    Several processes: torchrun --nproc-per-node 2 -m fieldlens train …

    Parameters
    ----------
    out
        The run folder.
    preset
        smoke (seconds), glance (a minute and a half), pocket (some twelve minutes), paper (162 M parameters).
    resume
        Go on from the newest checkpoint that verifies; start if there is none.
    as_json
        Print the run's last status as JSON.
    """
    chosen = recipe(preset, **dataclasses.asdict(changes))
    from fieldlens.storage.run_dir import Run
    from fieldlens.training.loop import train as train_decoder
    from fieldlens.training.trainer import Diverged

    screen = console(stderr=True)
    with Watcher(screen, chosen, quiet=as_json) as watcher, _compiler():
        try:
            status = train_decoder(chosen, out, resume=resume, machine=machine, options=options, watch=watcher.watch)
        except Diverged:
            if not as_json or os.environ.get("RANK", "0") != "0":
                raise
            status = Run(out).read(Run(out).status)
    if not status:
        return  # a process that does not lead
    known = Run(out).read(Run(out).config)
    model = str(out / "model") if status["state"] == "finished" else None
    status = {**status, "unigram_perplexity": known["unigram_perplexity"], "model": model}
    if as_json:
        print(json.dumps(status))
    else:
        _summary(status)
    if status["state"] == "diverged":
        sys.exit(3)


@contextmanager
def _compiler() -> Iterator[None]:
    """What torch's compiler says when it lacks one, in one line."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[:2] not in (["torch", "_inductor"], ["torch", "_dynamo"]):
            raise
        from fieldlens.core.errors import BadInput

        said = str(error).strip().splitlines()[0]
        raise BadInput(f"--compile does not work here ({said}): leave it out") from error


def _summary(status: dict[str, Any]) -> None:
    if status["state"] == "diverged":
        print(f"diverged: {status['reason']}")
        return
    print(
        f"validation perplexity {status['validation_perplexity']:.2f}; by unigrams {status['unigram_perplexity']:.1f}"
    )
    print(f"model folder: {status['model']}")


class Watcher:
    """A progress bar on a terminal, plain lines elsewhere."""

    def __init__(self, console: Console, chosen: Recipe, quiet: bool) -> None:
        self.console, self.chosen, self.quiet = console, chosen, quiet
        self.progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=chosen.steps)
        self.last = 0.0
        self.begun: tuple[float, int] | None = None
        """When the first step was done, and its number: that one also warms up."""
        self.told = False

    def __enter__(self) -> "Watcher":
        self.progress.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self.progress.__exit__(*details)

    def watch(self, row: dict[str, Any]) -> None:
        """Show a step, a validation or a warning."""
        if "warning" in row:
            self.console.print(f"warning: {row['warning']}", markup=False)
            return
        if self.quiet:
            return
        from fieldlens.core.format import format_duration

        self._begin(row)
        text = f"loss {row['loss']:.3f}  {row['tokens_per_second']:,.0f} tokens/s"
        self.progress.update(self.task, completed=row["step"], description=text)
        if row.get("validation_perplexity") is not None:
            self.console.print(f"step {row['step']}: {text}  validation perplexity {row['validation_perplexity']:.2f}")
        elif not self.console.is_terminal and time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            left = (row["steps"] - row["step"]) * self.chosen.batch * self.chosen.length / row["tokens_per_second"]
            self.console.print(f"step {row['step']} of {row['steps']}: {text}  {format_duration(left)} left")

    def _begin(self, row: dict[str, Any]) -> None:
        """After the first step the recipe; after the second what all of them will take."""
        from fieldlens.core.format import format_bytes, format_duration
        from fieldlens.core.memory import peak_memory

        now = time.monotonic()
        if self.begun is None:
            self.begun = (now, row["step"])
            fields = " ".join(f"{key}={value}" for key, value in dataclasses.asdict(self.chosen).items())
            self.console.print(f"recipe: {fields}", style="dim", markup=False)
        elif not self.told:
            self.told = True
            left = (now - self.begun[0]) / (row["step"] - self.begun[1]) * (row["steps"] - row["step"])
            self.console.print(f"about {format_duration(left)}, {format_bytes(peak_memory())} of memory", markup=False)
