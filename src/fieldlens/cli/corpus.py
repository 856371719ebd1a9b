"""fieldlens corpus: lists the built-in corpora, or prints the statistics of one."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from fieldlens.cli.console import console
from fieldlens.core.device import Machine

if TYPE_CHECKING:
    from fieldlens.data.tokens import TokenizedCorpus

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
SHOWN = ("10%", "50%", "90%", "100%")


def corpus(
    name: str | None = None,
    /,
    *,
    vocab_size: int = 4096,
    tokenizer: Path | None = None,
    baseline: bool = False,
    lengths: str = "16,32,64,128,256,512,1024",
    targets: int = 2000,
    split: str = "validation",
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """List the built-in corpora, or inspect one.

    Example: fieldlens corpus stdlib

    For one corpus, prints the number of documents, bytes and tokens of each split, and quantiles of document lengths.
    With --baseline, also prints the perplexity of a 4-gram model with a copy cache by context length: how much context
    helps a model that only counts and copies, without a neural network.

    Parameters
    ----------
    name
        Built-in name, text or JSONL file (.gz, .zst), folder of such files, or Hugging Face dataset. Default: list the
        built-in corpora.
    vocab_size
        Vocabulary size of the byte-level BPE tokenizer that is trained on the train split.
    tokenizer
        Folder of a tokenizer to use instead of training one.
    baseline
        Evaluate the copy baseline.
    lengths
        Context lengths of the baseline, separated by commas.
    targets
        Number of targets of the baseline.
    split
        Split that the baseline is evaluated on.
    as_json
        Print JSON.
    """
    from fieldlens.data.corpus import BUILT_IN

    machine.start()
    if name is None:
        _print_names(BUILT_IN, as_json)
        return
    report, tokens = _report(name, vocab_size, tokenizer)
    if baseline:
        from fieldlens.cli.evaluate import parse_lengths
        from fieldlens.evaluation.baseline import evaluate_baseline

        report["baseline"] = evaluate_baseline(tokens, parse_lengths(lengths), targets, split)
    _print(report, as_json)


def _report(name: str, vocab_size: int, tokenizer: Path | None) -> tuple[dict[str, Any], "TokenizedCorpus"]:
    """Statistics of one corpus, and its tokens."""
    from fieldlens.data.corpus import SPLITS, open_corpus
    from fieldlens.data.tokens import tokenize

    tokens = tokenize(open_corpus(name), vocab_size, tokenizer, progress=True)
    manifest = tokens.manifest
    rows = {split: {**manifest["splits"][split], "lengths": _quantiles(tokens.split(split))} for split in SPLITS}
    report = {
        "name": manifest["name"],
        "about": manifest["about"],
        "files": len(manifest["sources"]),
        "vocabulary": tokens.vocab_size,
        "splits": rows,
        "fingerprint": tokens.fingerprint,
        "tokenizer": str(tokens.tokenizer),
        "folder": str(tokens.folder),
    }
    return report, tokens


def _quantiles(split: Any) -> dict[str, int]:
    """Quantiles of document lengths in tokens, without interpolation; empty if the split has no documents."""
    import numpy as np

    lengths = split.lengths()
    if not len(lengths):
        return {}
    values = np.quantile(lengths, QUANTILES, method="inverted_cdf")
    return {f"{quantile:.0%}": int(value) for quantile, value in zip(QUANTILES, values, strict=True)}


def _print_names(names: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"corpora": names}, indent=2))
        return
    screen = console()
    for name, description in names.items():
        screen.print(f"[bold]{name}[/bold]  {description}")
    screen.print("or the path of a text or JSONL file, of a folder of them, or a Hugging Face dataset", style="dim")


def _print(report: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(report, indent=2))
        return
    from fieldlens.reporting.table import Table

    screen = console()
    about = ", ".join(f"{key} {value}" for key, value in report["about"].items() if value)
    heading = f"{report['name']}: {report['files']} files, vocabulary {report['vocabulary']}, {about}"
    screen.print(heading, markup=False)
    rows = []
    for split, row in report["splits"].items():
        counts = [row["documents"], row["bytes"], row["tokens"], *(row["lengths"].get(key) for key in SHOWN)]
        rows.append([split, *("" if count is None else f"{count:,}" for count in counts)])
    screen.print(Table(["split", "documents", "bytes", "tokens", *SHOWN], rows))
    screen.print("percentages: quantiles of document lengths in tokens", style="dim")
    screen.print(f"fingerprint {report['fingerprint']}", soft_wrap=True)
    if "baseline" in report:
        _print_baseline(report["baseline"])


def _print_baseline(baseline: dict[str, Any]) -> None:
    from fieldlens.reporting.table import Table

    title = (
        f"4-gram model with a copy cache: {baseline['targets']:,} targets in {baseline['documents']} documents of the "
        f"{baseline['split']} split"
    )
    rows = [
        [
            f"{row['length']:,}",
            f"{row['perplexity']:.2f}",
            "" if row["change"] is None else f"{row['change']:+.1%}",
            f"{row['copyable']:.1%}",
        ]
        for row in baseline["results"]
    ]
    notes = [
        "copyable: share of targets for which at least the last two tokens of the context occur earlier in it, and "
        "most of these occurrences are followed by the target"
    ]
    screen = console()
    screen.print(Table(["context", "perplexity", "change", "copyable"], rows, title, notes))
    screen.print(notes[0], style="dim")
