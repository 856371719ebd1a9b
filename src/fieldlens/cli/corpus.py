"""fieldlens corpus: what text there is, and how long its documents are."""

import json
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from fieldlens.cli.console import console
from fieldlens.core.device import Machine

QUANTILES = (0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0)
SHOWN = ("10%", "50%", "90%", "100%")


def corpus(
    name: str | None = None,
    /,
    *,
    vocab_size: int = 4096,
    tokenizer: Path | None = None,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """List the built-in corpora, or inspect one.

    Example: fieldlens corpus stdlib

    Of one corpus it says documents, bytes, tokens and lengths of each split.

    Parameters
    ----------
    name
        A built-in name, a text or JSONL file (.gz, .zst), a folder of them, or a Hugging Face dataset.
    vocab_size
        Size of the byte-level BPE that is trained on the train split.
    tokenizer
        Use this tokenizer folder instead of training one.
    as_json
        Print JSON.
    """
    from fieldlens.data.corpus import BUILT_IN

    machine.start()
    if name is None:
        _print_names(BUILT_IN, as_json)
    else:
        _print(_report(name, vocab_size, tokenizer), as_json)


def _report(name: str, vocab_size: int, tokenizer: Path | None) -> dict[str, Any]:
    """What is said of one corpus."""
    from fieldlens.data.corpus import SPLITS, open_corpus
    from fieldlens.data.tokens import tokenize

    tokens = tokenize(open_corpus(name), vocab_size, tokenizer, progress=True)
    manifest = tokens.manifest
    rows = {split: {**manifest["splits"][split], "lengths": _quantiles(tokens.split(split))} for split in SPLITS}
    return {
        "name": manifest["name"],
        "about": manifest["about"],
        "files": len(manifest["sources"]),
        "vocabulary": tokens.vocab_size,
        "splits": rows,
        "fingerprint": tokens.fingerprint,
        "tokenizer": str(tokens.tokenizer),
        "folder": str(tokens.folder),
    }


def _quantiles(split: Any) -> dict[str, int]:
    """Lengths in tokens that documents really have; none of an absent split."""
    import numpy as np

    lengths = split.lengths()
    if not len(lengths):
        return {}
    found = np.quantile(lengths, QUANTILES, method="inverted_cdf")
    return {f"{quantile:.0%}": int(length) for quantile, length in zip(QUANTILES, found, strict=True)}


def _print_names(names: dict[str, str], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"corpora": names}, indent=2))
        return
    screen = console()
    for name, what in names.items():
        screen.print(f"[bold]{name}[/bold]  {what}")
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
        counts = [row["documents"], row["bytes"], row["tokens"], *(row["lengths"].get(one) for one in SHOWN)]
        rows.append([split, *("" if count is None else f"{count:,}" for count in counts)])
    screen.print(Table(["split", "documents", "bytes", "tokens", *SHOWN], rows))
    screen.print("percentages: documents of at most so many tokens", style="dim")
    screen.print(f"fingerprint {report['fingerprint']}", soft_wrap=True)
