"""A text in a tokenizer's tokens: a split of a corpus, a file, or standard input."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fieldlens.core.errors import BadInput
from fieldlens.data.corpus import open_corpus
from fieldlens.data.documents import File, refuse_json
from fieldlens.data.tokenizer import Coder, bos_token_id
from fieldlens.data.tokens import tokenize


@dataclass(frozen=True)
class Text:
    """A split of a corpus in a tokenizer's tokens."""

    documents: list[np.ndarray]
    sizes: list[np.ndarray]
    about: dict[str, Any]
    bos: int | None


def read_text(corpus: str, split: str, tokenizer: Path, progress: bool = True, known: str | None = None) -> Text:
    """The documents of a split, tokenized, from the cache if they are there; `known` is the text that is expected."""
    source = open_corpus(corpus)
    if known not in (None, source.fingerprint()):
        raise BadInput(f"corpus '{corpus}' has changed since the run was trained: --corpus {corpus} takes it as it is")
    tokens = tokenize(source, 0, tokenizer, progress=progress, only=split)
    found = tokens.split(split)
    if not len(found.ids):
        raise BadInput(f"corpus '{corpus}' has no {split} split: --split names another")
    assert found.sizes is not None
    about = {
        "data": {"corpus": source.name, "split": split, "text": source.fingerprint()},
        "tokenizer": tokens.manifest["tokenizer"]["sha256"],
    }
    documents, sizes = (list(split_documents(what, found.starts)) for what in (found.ids, found.sizes))
    return Text(documents, sizes, about, bos_token_id(tokenizer))


def open_text(path: Path) -> File:
    """The file that --text names; what comes through a pipe is read at once, for it comes only once."""
    if str(path) == "-":
        return _piped(Path("stdin"), sys.stdin.buffer.read())
    if not path.exists() or path.is_dir():
        raise BadInput(f"{path} is no file: --text takes a text or JSONL file")
    refuse_json(path.name)
    return File(path.name, path, None) if path.is_file() else _piped(path, path.read_bytes())


def _piped(path: Path, content: bytes) -> File:
    """What a pipe brought: plain text, unless its name says otherwise; JSONL is not read with its braces."""
    file = File(path.name, path, None, content)
    if file.form == "text" and _is_object(content.lstrip().split(b"\n", 1)[0]):
        raise BadInput(f"{path} gives JSONL, and is read as plain text: put it into a file that ends in .jsonl")
    return file


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def read_file(file: File, tokenizer: Path) -> Text:
    """The documents of one file, tokenized; a plain text file is one document."""
    coder = Coder(tokenizer)
    encoded = [coder.whole(document) for document in file.documents() if document]
    if not encoded:
        raise BadInput(f"{file.path} is empty: there is no text in it")
    documents, sizes = map(list, zip(*encoded, strict=True))
    (source,) = file.sources()
    about = {"data": {"corpus": file.name, "split": None, "text": source.sha256}, "tokenizer": coder.sha256}
    return Text(documents, sizes, about, bos_token_id(tokenizer))


def split_documents(ids: np.ndarray, starts: np.ndarray) -> Iterator[np.ndarray]:
    """The documents of a split, each without its end-of-text token."""
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield ids[start : stop - 1]
