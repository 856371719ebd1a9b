"""fieldlens evaluate: perplexity against context length."""

import json
from dataclasses import asdict, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fieldlens.cli.console import console, show
from fieldlens.cli.progress import Watcher
from fieldlens.core.device import Machine
from fieldlens.evaluation.protocols import options as protocol_options
from fieldlens.evaluation.protocols import registry as protocols

if TYPE_CHECKING:
    from fieldlens.evaluation.result import Evaluation

PROTOCOL_HELP = "Evaluation protocol. " + "; ".join(f"{name}: {cls.help}" for name, cls in protocols().items()) + "."
ProtocolOptions = make_dataclass(
    "ProtocolOptions",
    [
        (name, Annotated[option.kind | None, Parameter(help=option.help)], None)
        for name, option in protocol_options().items()
    ],
    frozen=True,
)
ProtocolOptions.__module__ = __name__


def evaluate(
    *models: str,
    text: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    corpus: str | None = None,
    lengths: str = "64,128,256,512,1024",
    segments: int = 1000,
    protocol: Annotated[str, Parameter(help=PROTOCOL_HELP)] = "last-token",
    window: int | None = None,
    method: str | None = None,
    sinks: int | None = None,
    target_seed: int = 0,
    train_length: int | None = None,
    margin: float = 0.02,
    split: str = "test",
    align: Literal["tokens", "bytes"] = "tokens",
    batch: int | None = None,
    out: Path = Path("evaluations"),
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    options: Annotated[ProtocolOptions, Parameter(name="*")] = ProtocolOptions(),  # type: ignore[valid-type] # noqa: B008
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Evaluate perplexity by context length, on the same targets.

    Example: fieldlens evaluate runs/sandwich runs/alibi --lengths 128,256,512,1024

    A length is the number of input tokens; the target is the token after them. Each model gets a JSON file, with the
    losses of all targets in an .npz file beside it. Existing results are reused, and an interrupted evaluation
    resumes.

    Parameters
    ----------
    models
        Models to evaluate: run folders, Hugging Face folders or ids, GGUF files.
    text
        Text or JSONL file, used in full; - reads plain text from standard input. Cannot be combined with --corpus.
    corpus
        Name or path of a corpus. Default: the corpus that the given runs were trained on, or stdlib (the source
        code of the Python standard library) if none of the models is a run folder.
    lengths
        Comma-separated context lengths. Two lengths are added automatically for the verdict: the training length
        (unless it exceeds the longest length given), and a quarter of it (unless a length that short is already given).
    segments
        Number of segments to draw: one target each for last-token and by-position, several for other protocols.
    window
        Limit attention in every layer to this many keys. If the model has a window too, the smaller one applies.
    method
        Extension method to run the model with, such as self-extend or yarn:factor=4; see fieldlens extend.
    sinks
        With --window: also keep this many first keys; short for --method streaming:sinks=S,window=W.
    target_seed
        Seed for drawing the targets; all models get the same targets.
    train_length
        Training length of the models, if their configuration does not state it or is wrong.
    margin
        Largest relative change of perplexity that counts as no change: for the verdict "holds", the 95 % interval must
        lie within it.
    split
        Split of the corpus to evaluate on.
    align
        What to draw: tokens, or bytes to compare models with different tokenizers by bits per byte.
    batch
        Maximum batch size. Default: as large as memory allows.
    out
        Output folder for results and plots.
    as_json
        Print JSON.
    """
    from fieldlens.core.errors import BadInput
    from fieldlens.evaluation.evaluate_models import evaluate_all
    from fieldlens.evaluation.request import EvalRequest

    if not models:
        raise BadInput("no model: give a run folder, a Hugging Face folder or id, or a .gguf file")
    device, dtype = machine.start()
    request = EvalRequest(
        corpus=corpus,
        lengths=parse_lengths(lengths),
        segments=segments,
        protocol=protocol,
        window=window,
        method=method,
        sinks=sinks,
        options=asdict(options),
        target_seed=target_seed,
        train_length=train_length,
        margin=margin,
        split=split,
        align=align,
        batch=batch,
        text=text,
        with_quarter=True,
    )
    with Watcher(console(stderr=True), quiet=as_json) as watcher:
        results = evaluate_all(list(models), request, out=out, device=device, dtype=dtype, watch=watcher.watch)
    if as_json:
        records = [evaluation.to_json() | {"file": str(path)} for path, evaluation in results]
        print(json.dumps(records, ensure_ascii=False))
    else:
        _print(results, out)


def parse_lengths(text: str, flag: str = "--lengths") -> tuple[int, ...]:
    from fieldlens.core.errors import BadInput

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"{flag} must be integers separated by commas, got '{text}'") from None


def _print(results: "list[tuple[Path, Evaluation]]", out: Path) -> None:
    from fieldlens.evaluation.summary import summary

    screen = console()
    for table in summary([evaluation for _, evaluation in results]):
        show(screen, table)
    for path, _ in results:
        screen.print(f"result: {path}", soft_wrap=True, markup=False)
    if any(evaluation.losses for _, evaluation in results):
        screen.print(f"plot: {out / 'perplexity.png'}", soft_wrap=True, markup=False)
