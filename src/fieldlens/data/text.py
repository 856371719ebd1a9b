"""Tokenized text for evaluation: a split of a corpus, a file, or standard input."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from fieldlens.core.errors import BadInput
from fieldlens.core.limits import document_bytes
from fieldlens.data.corpus import open_corpus
from fieldlens.data.documents import File, refuse_json, too_large
from fieldlens.data.tokenizer import Coder, find_bos
from fieldlens.data.tokens import tokenize
from fieldlens.storage.records import DataRecord, TextRecord


@dataclass(frozen=True)
class Text:
    """Tokenized documents, with the number of bytes of each token."""

    documents: list[np.ndarray]
    sizes: list[np.ndarray]
    about: TextRecord
    bos: int | None


def read_text(corpus: str, split: str, tokenizer: Path, progress: bool = True, fingerprint: str | None = None) -> Text:
    """Tokenize the documents of a split, or load them from the cache.

    With a fingerprint, raise BadInput if the corpus has another one.
    """
    source = open_corpus(corpus)
    if fingerprint not in (None, source.fingerprint()):
        raise BadInput(
            f"corpus '{corpus}' has changed since the run was trained: pass --corpus {corpus} to use the new text"
        )
    tokens = tokenize(source, 0, tokenizer, progress=progress, only=split)
    tokenized_split = tokens.split(split)
    if not len(tokenized_split.ids):
        raise BadInput(f"corpus '{corpus}' has no {split} split: choose another with --split")
    assert tokenized_split.sizes is not None
    bos = find_bos(tokenizer)
    about: TextRecord = {
        "data": {"corpus": source.name, "split": split, "text": source.fingerprint()},
        "tokenizer": tokens.manifest["tokenizer"]["sha256"],
        "bos_source": bos.source,
    }
    documents = list(split_documents(tokenized_split.ids, tokenized_split.starts))
    sizes = list(split_documents(tokenized_split.sizes, tokenized_split.starts))
    return Text(documents, sizes, about, bos.id)


def open_text(path: Path) -> File:
    """Open the file given by --text; a pipe is read immediately, because it can be read only once."""
    if str(path) == "-":
        return _piped(Path("stdin"), _read_all(Path("stdin"), sys.stdin.buffer))
    if not path.exists() or path.is_dir():
        raise BadInput(f"{path} is not a file: --text takes a text or JSONL file")
    refuse_json(path.name)
    if path.is_file():
        return File(path.name, path, None)
    with path.open("rb") as stream:
        return _piped(path, _read_all(path, stream))


def _read_all(path: Path, stream: BinaryIO) -> bytes:
    """The content of a pipe or device, which may be endless."""
    limit = document_bytes.get()
    chunks, size = [], 0
    while size <= limit and (chunk := stream.read(min(1 << 20, limit + 1 - size))):
        chunks.append(chunk)
        size += len(chunk)
    if size > limit:
        raise too_large(path)
    return b"".join(chunks)


def _piped(path: Path, content: bytes) -> File:
    """Wrap the content of a pipe: plain text unless the name has another suffix; reject JSONL without its suffix."""
    file = File(path.name, path, None, content)
    if file.form == "text" and _is_object(content.lstrip().split(b"\n", 1)[0]):
        raise BadInput(f"{path} contains JSONL but is read as plain text: save it to a file that ends in .jsonl")
    return file


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def read_file(file: File, tokenizer: Path) -> Text:
    """Tokenize the documents of one file; a plain text file is one document."""
    coder, encoded, size = Coder(tokenizer), [], 0
    for document in file.documents():
        size += len(document)
        if size > document_bytes.get():  # all of it is kept in memory
            raise too_large(file.path)
        encoded += [coder.whole(document)] if document else []
    if not encoded:
        raise BadInput(f"{file.path} is empty: it contains no text")
    documents, sizes = map(list, zip(*encoded, strict=True))
    (source,) = file.sources()
    bos = find_bos(tokenizer)
    data: DataRecord = {"corpus": file.name, "split": None, "text": source.sha256}
    about: TextRecord = {"data": data, "tokenizer": coder.sha256, "bos_source": bos.source}
    return Text(documents, sizes, about, bos.id)


def split_documents(ids: np.ndarray, starts: np.ndarray) -> Iterator[np.ndarray]:
    """Yield the documents of a split, each without its end-of-text token."""
    for start, stop in zip(starts, [*starts[1:], len(ids)], strict=True):
        yield ids[start : stop - 1]
