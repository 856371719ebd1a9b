"""The text on which models are evaluated and measured: a file, a corpus, or the training corpus."""

from collections.abc import Sequence
from pathlib import Path

from fieldlens.core.errors import BadInput
from fieldlens.data.text import Text, open_text, read_file, read_text
from fieldlens.models.origin import Origin


def read_texts(origins: Sequence[Origin], file: Path | None, corpus: str | None, split: str) -> dict[Path, Text]:
    """Tokenize the text of --text or --corpus, by default the training corpus of the runs, with each tokenizer."""
    tokenizers = dict.fromkeys(origin.tokenizer for origin in origins if not origin.diverged)
    if file is not None:
        text_file = open_text(file)
        return {tokenizer: read_file(text_file, tokenizer) for tokenizer in tokenizers}
    name, fingerprint = (corpus, None) if corpus else own_corpus(origins)
    return {tokenizer: read_text(name, split, tokenizer, fingerprint=fingerprint) for tokenizer in tokenizers}


def own_corpus(origins: Sequence[Origin]) -> tuple[str, str | None]:
    """The training corpus of the runs and its fingerprint; stdlib without runs. Different corpora are an error."""
    corpora = [origin.trained_on for origin in origins if origin.trained_on]
    names = dict.fromkeys(corpus for corpus, _ in corpora)
    if len(names) > 1:
        raise BadInput(f"these runs were trained on different corpora ({', '.join(names)}): choose one with --corpus")
    return corpora[0] if corpora else ("stdlib", None)
