"""fieldlens train: trains a decoder."""

import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from cyclopts import Parameter

from fieldlens.cli.console import console
from fieldlens.cli.progress import Watcher
from fieldlens.core.device import Machine
from fieldlens.training.recipe import Recipe, RunOptions, recipe

if TYPE_CHECKING:
    from fieldlens.storage.run_dir import Run

Changes = dataclasses.make_dataclass(
    "Changes", [(name, kind | None, None) for name, kind in get_type_hints(Recipe).items()], frozen=True
)
Changes.__doc__, Changes.__module__ = Recipe.__doc__, __name__


def train(
    *,
    out: Path | None = None,
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

    Without --threads, a run on a CPU uses one thread per core that is free when it starts, and the same number when it
    resumes.

    Parameters
    ----------
    out
        Output folder of the run; required.
    preset
        Preset to start from: smoke (seconds), glance (one to two minutes), pocket (about 12 minutes) or paper (162 M
        parameters).
    resume
        Resume from the newest intact checkpoint; start from scratch if there is none.
    as_json
        Print the final status of the run as JSON.
    """
    from fieldlens.core.errors import BadInput

    chosen_recipe = recipe(preset, **dataclasses.asdict(changes))
    if out is None:  # after the preset: its name is the likelier mistake
        raise BadInput(f"--out is missing: give the folder of the run, such as --out runs/{preset}")
    from fieldlens.storage.run_dir import Run
    from fieldlens.training.loop import train as train_decoder
    from fieldlens.training.update import Diverged

    machine = machine if machine.threads is not None else _with_threads(machine, Run(out))
    with Watcher(console(stderr=True), quiet=as_json) as watcher, _compiler():
        try:
            status = train_decoder(
                chosen_recipe, out, resume=resume, machine=machine, options=options, watch=watcher.watch
            )
        except Diverged:
            if not as_json or os.environ.get("RANK", "0") != "0":
                raise
            status = Run(out).read_status()
    if not status:
        return  # only the process of rank 0 reports
    config = Run(out).read(Run(out).config)
    model = str(out / "model") if status["state"] == "finished" else None
    summary = {**status, "unigram_perplexity": config["unigram_perplexity"], "model": model}
    if as_json:
        print(json.dumps(summary))
    else:
        _print_summary(summary)
    if status["state"] == "diverged":
        sys.exit(3)


def _with_threads(machine: Machine, run: "Run") -> Machine:
    """The machine with as many threads as cores are free; a resumed run keeps its number, which decides round-off."""
    config = run.read(run.config)
    if not config:
        return machine.with_free_cores()
    threads = [config, *config.get("later", [])][-1].get("machine", {}).get("threads")
    return machine if threads is None else machine.with_free_cores(threads)


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


def _print_summary(status: dict[str, Any]) -> None:
    if status["state"] == "diverged":
        print(f"diverged: {status['reason']}")
        return
    validation, unigram = status["validation_perplexity"], status["unigram_perplexity"]
    print(f"validation perplexity {validation:.2f}; unigram perplexity {unigram:.1f}")
    print(f"model folder: {status['model']}")
