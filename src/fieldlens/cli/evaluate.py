"""fieldlens evaluate: perplexity against context length."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from fieldlens.cli.console import console, show
from fieldlens.cli.progress import Watcher
from fieldlens.core.device import Machine


def evaluate(
    *models: str,
    text: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    corpus: str | None = None,
    lengths: str = "64,128,256,512,1024",
    segments: int = 1000,
    protocol: str = "last-token",
    window: int | None = None,
    k: int | None = None,
    stride: int | None = None,
    target_seed: int = 0,
    train_length: int | None = None,
    split: str = "test",
    align: Literal["tokens", "bytes"] = "tokens",
    batch: int | None = None,
    out: Path = Path("evaluations"),
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Measure perplexity of the same targets against context length.

    Example: fieldlens evaluate runs/sandwich runs/alibi --lengths 128,256,512,1024

    A length is the number of input tokens; the target is one more. Results go to a JSON file per model with the loss of
    every target beside it; one that is there already is not computed again, one that was interrupted goes on.

    Parameters
    ----------
    models
        Run folders, Hugging Face folders or ids, GGUF files.
    text
        A text or JSONL file to read whole; - for plain text from standard input. Or --corpus.
    corpus
        A corpus by name or path; the first run's own unless given, else stdlib.
    lengths
        Context lengths, separated by commas. A training length below the longest is added.
    segments
        How many targets, or stretches of targets, are drawn.
    protocol
        last-token (the paper's), last-k, non-overlapping, sliding or by-position.
    window
        Give every layer a window of so many keys; the smaller counts if the model has one.
    k
        Targets per segment of last-k.
    stride
        Targets per window of sliding.
    target_seed
        Draws the targets; the same for every model.
    train_length
        The models' training length, if their configuration does not say it or is wrong.
    split
        The split of the corpus that is read.
    align
        Draw tokens, or draw bytes to compare models with different tokenizers by bits per byte.
    batch
        Texts at once, at most; as many as memory allows unless given.
    out
        Folder for results and plots.
    as_json
        Print JSON.
    """
    from fieldlens.core.errors import BadInput
    from fieldlens.evaluation.command import EvalRequest, evaluate_all

    if not models:
        raise BadInput("no model: give a run folder, a Hugging Face folder or id, or a .gguf file")
    device, dtype = machine.start()
    question = EvalRequest(
        corpus, _numbers(lengths), segments, protocol, window, {"k": k, "stride": stride}, target_seed, train_length,
        split, align, batch, text,
    )  # fmt: skip
    screen = console(stderr=True)
    with Watcher(screen, quiet=as_json) as watcher:
        found = evaluate_all(list(models), question, out, device, dtype, watcher.watch)
    if as_json:
        print(json.dumps([one.to_json() | {"file": str(path)} for path, one in found], ensure_ascii=False))
    else:
        _print(found, out)


def _numbers(text: str) -> tuple[int, ...]:
    from fieldlens.core.errors import BadInput

    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise BadInput(f"--lengths is '{text}': whole numbers separated by commas are needed") from None


def _print(found: list[tuple[Path, Any]], out: Path) -> None:
    from fieldlens.evaluation.command import summary

    screen = console()
    for sheet in summary([one for _, one in found]):
        show(screen, sheet)
    for path, _ in found:
        screen.print(f"result: {path}", soft_wrap=True, markup=False)
    if any(one.losses for _, one in found):
        screen.print(f"plot: {out / 'perplexity.png'}", soft_wrap=True, markup=False)
