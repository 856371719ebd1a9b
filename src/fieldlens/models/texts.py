"""The text that models are evaluated and measured on: a file, a corpus, or the one that they were trained on."""

from collections.abc import Sequence
from pathlib import Path

from fieldlens.core.errors import BadInput
from fieldlens.data.text import Text, open_text, read_file, read_text
from fieldlens.models.origin import Origin


def read_texts(origins: Sequence[Origin], file: Path | None, corpus: str | None, split: str) -> dict[Path, Text]:
    """What --text or --corpus names, or else the runs' own corpus, in the tokens of each tokenizer."""
    tokenizers = dict.fromkeys(origin.tokenizer for origin in origins if not origin.diverged)
    if file is not None:
        given = open_text(file)
        return {tokenizer: read_file(given, tokenizer) for tokenizer in tokenizers}
    name, known = (corpus, None) if corpus else own_corpus(origins)
    return {tokenizer: read_text(name, split, tokenizer, known=known) for tokenizer in tokenizers}


def own_corpus(origins: Sequence[Origin]) -> tuple[str, str | None]:
    """The corpus that the runs were trained on, and its text; without runs stdlib, and with two there is no telling."""
    found = [origin.trained_on for origin in origins if origin.trained_on]
    names = dict.fromkeys(corpus for corpus, _ in found)
    if len(names) > 1:
        raise BadInput(f"these runs were trained on different corpora ({', '.join(names)}): choose one with --corpus")
    return found[0] if found else ("stdlib", None)
