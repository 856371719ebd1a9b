"""fieldlens measure: how far back does a model really look?"""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fieldlens.cli.console import console
from fieldlens.cli.progress import Watcher
from fieldlens.core.device import Machine


def measure(
    *models: str,
    text: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    corpus: str | None = None,
    length: int | None = None,
    segments: int = 20,
    target: Literal["log-likelihood", "top-logit"] = "log-likelihood",
    average: Literal["shares", "norms"] = "shares",
    window: int | None = None,
    plain: bool = False,
    probe: bool = False,
    check: bool = False,
    targets: int = 200,
    target_seed: int = 0,
    train_length: int | None = None,
    split: str = "test",
    out: Path = Path("lens"),
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Measure how far back a model looks, and write a report.

    Example: fieldlens measure runs/sandwich --length 1024 --out lens

    Any causal language model will do. For each segment the gradient of the prediction is taken at every input
    embedding; the report says how many of the most recent tokens hold 50, 90, 95 and 99 % of it, and what that means.

    Parameters
    ----------
    models
        Run folders, Hugging Face folders or ids, GGUF files; several are shown together.
    text
        A text or JSONL file to read whole; - for plain text from standard input. Or --corpus.
    corpus
        A corpus by name or path; the first run's own unless given, else stdlib.
    length
        Input tokens before each target; 2048, or what the model and the text allow.
    segments
        How many targets.
    target
        Differentiate log p of the true next token, or the largest logit.
    average
        Normalise each segment and average the shares, or average the norms and normalise.
    window
        Give every layer a window of so many keys.
    plain
        Leave layers and heat maps out: half the time.
    probe
        Also cut the context and see how the prediction changes.
    check
        Also measure perplexity by context length and by window, and compare with the prediction.
    targets
        How many targets --check evaluates.
    target_seed
        Draws the targets.
    train_length
        The models' training length, if their configuration does not say it or is wrong.
    split
        The split of the corpus that is read.
    out
        Folder for receptive-field.json, figures and report.html.
    as_json
        Print JSON.
    """
    from fieldlens.core.errors import BadInput
    from fieldlens.receptive.command import measure_all
    from fieldlens.receptive.result import MeasureRequest

    if not models:
        raise BadInput("no model: give a run folder, a Hugging Face folder or id, or a .gguf file")
    question = MeasureRequest(
        corpus, text, length, segments, target, average, window, plain, probe, check, targets, target_seed,
        train_length, split,
    )  # fmt: skip
    if out.exists() and not out.is_dir():
        raise BadInput(f"--out {out} is a file: a folder is needed")
    device, dtype = machine.start()
    if dtype.itemsize < 4:
        import torch

        dtype = torch.float32  # gradients in half precision are mostly round-off
    screen = console(stderr=True)
    with Watcher(screen, quiet=as_json) as watcher:
        found = measure_all(list(models), question, device, dtype, watcher.watch)

    from fieldlens.receptive.report import summary, write

    write(found, out, ["fieldlens", *sys.argv[1:]])
    if as_json:
        print(json.dumps([one.to_json() for one in found], ensure_ascii=False))
    else:
        sheet = summary(found)
        screen = console()
        screen.print(sheet)
        for note in sheet.notes:
            screen.print(note, markup=False)
        screen.print(f"report: {out / 'report.html'}", soft_wrap=True, markup=False)
    if all(one.field.status for one in found):
        sys.exit(3)
