"""fieldlens extend: does a model use context past its training length, or only crop it?"""

import json
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from fieldlens.cli.console import console, show
from fieldlens.cli.progress import Watcher
from fieldlens.core.device import Machine


def extend(
    model: str,
    *,
    lengths: str,
    method: Annotated[tuple[str, ...], Parameter(negative="")] = (),
    text: Annotated[Path | None, Parameter(allow_leading_hyphen=True)] = None,
    corpus: str | None = None,
    targets: int = 500,
    k: int = 1,
    margin: float = 0.02,
    gradients: int = 4,
    trials: int = 50,
    target_seed: int = 0,
    train_length: int | None = None,
    split: str = "test",
    batch: int | None = None,
    out: Path = Path("extension"),
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Compare methods that run a model past its training length.

    Example: fieldlens extend runs/rotary --lengths 256,512 --method yarn:factor=4 --method self-extend

    The model itself, a crop to its training length and every method predict the same targets. Each method gets an
    outcome per length: uses (better than the crop), crops (equal to it within the margin), breaks (worse) or undecided.
    Existing evaluations in the output folder are reused, and an interrupted one resumes.

    Parameters
    ----------
    model
        Run folder, Hugging Face folder or id, or GGUF file.
    lengths
        Comma-separated context lengths past the training length.
    method
        Extension method, such as yarn:factor=4, linear, ntk, dynamic-ntk, self-extend, rerope:leak=4,
        streaming:sinks=4,window=1024 or window; repeatable. Default: a set that suits the model.
    text
        Text or JSONL file, used in full; - reads plain text from standard input. Cannot be combined with --corpus.
    corpus
        Name or path of a corpus. Default: the training corpus of a run, or stdlib.
    targets
        Number of targets to predict.
    k
        Number of consecutive targets per segment. A method predicts them in one pass, so that more targets cost
        little; the crop is encoded again for each. A target at length L then has L - k + 1 to L tokens of context.
    margin
        Change of perplexity that counts as none: 0.02 is 2 %.
    gradients
        Number of segments on which the share of the gradient beyond the training length is measured; 0 skips this.
    trials
        Number of retrieval trials per method and length; 0 skips them.
    target_seed
        Seed for drawing targets and trials.
    train_length
        Training length of the model, if its configuration does not state it or is wrong.
    split
        Split of the corpus to evaluate on.
    batch
        Maximum batch size. Default: as large as memory allows.
    out
        Output folder for extension.json, evaluations, figures and report.html.
    as_json
        Print JSON.
    """
    from fieldlens.cli.evaluate import parse_lengths
    from fieldlens.receptive.extend_model import extend_model
    from fieldlens.receptive.extend_report import write
    from fieldlens.receptive.extend_request import ExtendRequest

    request = ExtendRequest(
        lengths=parse_lengths(lengths),
        methods=method,
        corpus=corpus,
        text=text,
        targets=targets,
        k=k,
        margin=margin,
        gradients=gradients,
        trials=trials,
        target_seed=target_seed,
        train_length=train_length,
        split=split,
        batch=batch,
    )
    device, dtype = machine.start()
    with Watcher(console(stderr=True), quiet=as_json) as watcher:
        result = extend_model(model, request, out=out, device=device, dtype=dtype, watch=watcher.watch)
    write(result, out, ["fieldlens", *sys.argv[1:]])
    if as_json:
        print(json.dumps(result.to_json(), ensure_ascii=False))
        return
    screen = console()
    for table in result.tables():
        show(screen, table)
    for sentence in result.advice():
        screen.print(sentence, markup=False, soft_wrap=True)
    screen.print(f"report: {out / 'report.html'}", soft_wrap=True, markup=False)
