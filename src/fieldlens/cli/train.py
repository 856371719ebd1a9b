"""fieldlens train: trains a decoder."""

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
    """Train a decoder from a preset; flags override its values.

    Example: fieldlens train --preset glance --scheme sandwich --out runs/sandwich

    With several processes: torchrun --nproc-per-node 2 -m fieldlens train …

    Parameters
    ----------
    out
        Output folder of the run.
    preset
        Preset to start from: smoke (seconds), glance (1.5 minutes), pocket (about 12 minutes) or paper (162 M
        parameters).
    resume
        Resume from the newest intact checkpoint; start from scratch if there is none.
    as_json
        Print the final status of the run as JSON.
    """
    chosen_recipe = recipe(preset, **dataclasses.asdict(changes))
    from fieldlens.storage.run_dir import Run
    from fieldlens.training.loop import train as train_decoder
    from fieldlens.training.trainer import Diverged

    screen = console(stderr=True)
    with Watcher(screen, chosen_recipe, quiet=as_json) as watcher, _compiler():
        try:
            status = train_decoder(
                chosen_recipe, out, resume=resume, machine=machine, options=options, watch=watcher.watch
            )
        except Diverged:
            if not as_json or os.environ.get("RANK", "0") != "0":
                raise
            status = Run(out).read(Run(out).status)
    if not status:
        return  # only the process of rank 0 reports
    config = Run(out).read(Run(out).config)
    model = str(out / "model") if status["state"] == "finished" else None
    status = {**status, "unigram_perplexity": config["unigram_perplexity"], "model": model}
    if as_json:
        print(json.dumps(status))
    else:
        _summary(status)
    if status["state"] == "diverged":
        sys.exit(3)


@contextmanager
def _compiler() -> Iterator[None]:
    """Turn an error of torch.compile, such as a missing C++ compiler, into a one-line message."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.split(".")[:2] not in (["torch", "_inductor"], ["torch", "_dynamo"]):
            raise
        from fieldlens.core.errors import BadInput

        message = str(error).strip().splitlines()[0]
        raise BadInput(f"torch.compile failed ({message}): run without --compile") from error


def _summary(status: dict[str, Any]) -> None:
    if status["state"] == "diverged":
        print(f"diverged: {status['reason']}")
        return
    validation, unigram = status["validation_perplexity"], status["unigram_perplexity"]
    print(f"validation perplexity {validation:.2f}; unigram perplexity {unigram:.1f}")
    print(f"model folder: {status['model']}")


class Watcher:
    """Prints training progress: a progress bar on a terminal, plain lines otherwise."""

    def __init__(self, console: Console, recipe: Recipe, quiet: bool) -> None:
        self.console, self.recipe, self.quiet = console, recipe, quiet
        self.progress = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeRemainingColumn(),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self.task = self.progress.add_task("", total=recipe.steps)
        self.last = 0.0
        self.first: tuple[float, int] | None = None
        """Time and number of the first step, which is left out of the estimate: it includes the warm-up."""
        self.estimated = False

    def __enter__(self) -> "Watcher":
        self.progress.__enter__()
        return self

    def __exit__(self, *details: Any) -> None:
        self.progress.__exit__(*details)

    def watch(self, row: dict[str, Any]) -> None:
        """Print a step, a validation or a warning."""
        if "warning" in row:
            self.console.print(f"warning: {row['warning']}", markup=False)
            return
        if self.quiet:
            return
        from fieldlens.core.format import format_duration

        self._introduce(row)
        text = f"loss {row['loss']:.3f}  {row['tokens_per_second']:,.0f} tokens/s"
        self.progress.update(self.task, completed=row["step"], description=text)
        if row.get("validation_perplexity") is not None:
            self.console.print(f"step {row['step']}: {text}  validation perplexity {row['validation_perplexity']:.2f}")
        elif not self.console.is_terminal and time.monotonic() - self.last > 10:
            self.last = time.monotonic()
            left = (row["steps"] - row["step"]) * self.recipe.batch * self.recipe.length / row["tokens_per_second"]
            self.console.print(f"step {row['step']} of {row['steps']}: {text}  {format_duration(left)} left")

    def _introduce(self, row: dict[str, Any]) -> None:
        """Print the recipe after the first step, and an estimate of time and memory after the second."""
        from fieldlens.core.format import format_bytes, format_duration
        from fieldlens.core.memory import peak_memory

        now = time.monotonic()
        if self.first is None:
            self.first = (now, row["step"])
            fields = " ".join(f"{key}={value}" for key, value in dataclasses.asdict(self.recipe).items())
            self.console.print(f"recipe: {fields}", style="dim", markup=False)
        elif not self.estimated:
            self.estimated = True
            left = (now - self.first[0]) / (row["step"] - self.first[1]) * (row["steps"] - row["step"])
            self.console.print(f"about {format_duration(left)}, {format_bytes(peak_memory())} of memory", markup=False)
