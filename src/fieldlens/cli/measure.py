"""fieldlens measure: how far back a model looks."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from fieldlens.cli.console import console
from fieldlens.cli.progress import Watcher
from fieldlens.core.device import Machine
from fieldlens.core.events import Warned

if TYPE_CHECKING:
    import torch

    from fieldlens.receptive.result import Measurement

MINUTES = 10.0
"""Default time budget on a terminal."""

OUT = Path("lens")
"""Default output folder."""

HALF_PRECISION = (
    "--dtype {} is not used: gradients in half precision are mostly round-off, so the model is measured in float32"
)


def measure(
    *models: str,
    text: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    corpus: str | None = None,
    length: int | None = None,
    segments: int | None = None,
    target: Literal["log-likelihood", "top-logit"] = "log-likelihood",
    average: Literal["shares", "norms"] = "shares",
    window: int | None = None,
    method: str | None = None,
    sinks: int | None = None,
    plain: bool = False,
    probe: bool = False,
    check: bool = False,
    targets: int | None = None,
    windows: str | None = None,
    minutes: float | None = None,
    target_seed: int = 0,
    train_length: int | None = None,
    margin: float = 0.02,
    cache_dtype: str | None = None,
    split: str = "test",
    out: Path = OUT,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Measure how far back a model looks, and write a report.

    Example: fieldlens measure runs/sandwich --length 1024 --out lens

    Works with any causal language model. For each segment, the gradient of the prediction with respect to every input
    embedding is computed. The report shows the number of most recent tokens that account for 50, 90, 95 and 99 % of
    the total gradient norm, and how to interpret these numbers. An interrupted measurement resumes: finished segments
    are kept in the output folder.

    Parameters
    ----------
    models
        Run folders, Hugging Face folders or ids, GGUF files; several models share one report.
    text
        Text or JSONL file, used in full; - reads plain text from standard input. Cannot be combined with --corpus.
    corpus
        Name or path of a corpus. Default: the corpus that the given runs were trained on, or stdlib (the source
        code of the Python standard library) if none of the models is a run folder.
    length
        Number of input tokens before each target. Default: 2048, or fewer if the model or the text requires it.
    segments
        Number of segments to draw, with one target each. Default: 20, or fewer if --minutes requires it.
    target
        Quantity to differentiate: log-likelihood of the true next token, or the largest logit.
    average
        shares: normalise each segment, then average; norms: average gradient norms, then normalise.
    window
        Limit attention in every layer to this many keys.
    method
        Extension method to run the model with, such as self-extend or yarn:factor=4; see fieldlens extend.
    sinks
        With --window: also keep this many first keys; short for --method streaming:sinks=S,window=W.
    plain
        Skip the per-layer receptive fields and the extra passage in the report's explorer; this halves the time.
    probe
        Also truncate the context and measure how the prediction changes.
    check
        Also evaluate perplexity by context length and by window, and compare it with what the gradients predict.
    targets
        Number of targets for --check, up to 32 consecutive ones per segment. Default: 1600, or fewer if --minutes
        requires it.
    windows
        Comma-separated windows for --check. Default: powers of two, or fewer if --minutes requires it.
    minutes
        Time budget, including loading. If necessary, the length and the numbers of segments, targets and windows are
        reduced, unless they are set. The values used are printed as a command that draws the same targets on any
        machine. 0: no limit. Default: 10 on a terminal, else no limit.
    target_seed
        Seed for drawing the targets.
    train_length
        Training length of the models, if their configuration does not state it or is wrong.
    margin
        With --check: largest relative change of perplexity that counts as no change.
    cache_dtype
        With --check: dtype of the key-value cache at inference, used only to compute its size: float32, bfloat16,
        float16, float8, int8 or int4. Default: the dtype in the model's configuration, float16 for a GGUF file.
    split
        Split of the corpus to measure on.
    out
        Output folder for receptive-field.json, figures and report.html.
    as_json
        Print JSON.
    """
    start = time.monotonic()
    from fieldlens.cli.evaluate import parse_lengths
    from fieldlens.core.errors import BadInput

    if not models:
        raise BadInput("no model: give a run folder, a Hugging Face folder or id, or a .gguf file")
    screen = console(stderr=True)
    if screen.is_terminal and not as_json:
        screen.print("starting …")  # importing torch takes seconds

    from fieldlens.receptive.budget import Budget
    from fieldlens.receptive.measure_models import measure_all
    from fieldlens.receptive.request import MeasureRequest
    from fieldlens.storage.writable import check_folder

    widths = parse_lengths(windows, "--windows") if windows else None
    counts: dict[str, Any] = {"segments": segments, "targets": targets, "windows": widths}
    fixed = {name: value for name, value in counts.items() if value is not None}
    request = MeasureRequest(
        corpus=corpus, text=text, length=length, target=target, average=average, window=window, method=method,
        sinks=sinks, plain=plain, probe=probe, check=check, target_seed=target_seed, train_length=train_length,
        split=split, margin=margin, cache_dtype=cache_dtype, **fixed,
    )  # fmt: skip
    limit = (MINUTES if screen.is_terminal else 0) if minutes is None else minutes
    budget = Budget(limit, frozenset(fixed), start) if limit else None
    check_folder(out)
    with Watcher(screen, quiet=as_json) as watcher:
        device, dtype = _start(machine, watcher)
        measurements = measure_all(
            models, request, device=device, dtype=dtype, watch=watcher.watch, journals=out, budget=budget,
            options=_options(out if len(models) == 1 else OUT, machine),
        )  # fmt: skip

    _report(measurements, out, as_json)


def _options(out: Path, machine: Machine) -> list[str]:
    """The options that are not part of the request, as far as they were given."""
    words = [] if out == OUT else ["--out", str(out)]
    for field in dataclasses.fields(machine):
        value = getattr(machine, field.name)
        words += [] if value == field.default else [f"--{field.name.replace('_', '-')}", str(value)]
    return words


def _start(machine: Machine, watcher: Watcher) -> "tuple[torch.device, torch.dtype]":
    """The device, and a dtype of at least single precision."""
    import torch

    device, dtype = machine.start()
    if dtype.itemsize >= 4:
        return device, dtype
    if machine.dtype != "auto":
        watcher.watch(Warned(HALF_PRECISION.format(machine.dtype)))
    return device, torch.float32


def _report(measurements: "list[Measurement]", out: Path, as_json: bool) -> None:
    """Write and print the results. The exit code is 3 if no model has a receptive field."""
    from fieldlens.receptive.measure_models import remove_journals
    from fieldlens.receptive.report import write

    write(measurements, out, ["fieldlens", *sys.argv[1:]])
    remove_journals(out)
    _print(measurements, out, as_json)
    if all(measurement.field.status for measurement in measurements):
        sys.exit(3)


def _print(measurements: "list[Measurement]", out: Path, as_json: bool) -> None:
    from fieldlens.receptive.report import comparisons, summary

    if as_json:
        print(json.dumps([measurement.to_json() for measurement in measurements], ensure_ascii=False))
        return
    table, screen = summary(measurements), console()
    screen.print(table)
    for comparison in comparisons(measurements):
        screen.print(comparison)
    for note in table.notes:
        screen.print(note, markup=False)
    screen.print(f"report: {out / 'report.html'}", soft_wrap=True, markup=False)
