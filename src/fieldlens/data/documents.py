"""Documents in text and JSONL files, plain or compressed; every stream is read to its end."""

import hashlib
import json
import os
import re
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from io import BufferedReader, BytesIO
from pathlib import Path
from typing import Any, Protocol

from fieldlens.core.errors import BadInput
from fieldlens.core.format import format_bytes
from fieldlens.core.limits import document_bytes

ROLE = re.compile(r"(train|validation|valid|val|test)(-\d+-of-\d+)?(\..+)?")
DATA = re.compile(r"\w+(-\d+-of-\d+)?\.(txt|jsonl)(\.(gz|zst))?")
JSON = re.compile(r"\.json(\.gz|\.zst)?$", re.IGNORECASE)
ASIDE = re.compile(r"(readme|licen[cs]e)\b.*", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"
_CHUNK, _COMPRESSED_CHUNK = 1 << 16, 1 << 10
"""Bytes read at once; fewer of a compressed file, where each may stand for many thousands."""


@dataclass(frozen=True)
class Source:
    """An input file: path relative to the corpus, size and hash."""

    name: str
    bytes: int
    sha256: str


class Part(Protocol):
    """A group of documents with the same split; None if the corpus is split by document."""

    @property
    def split(self) -> str | None: ...
    @property
    def form(self) -> str: ...
    def documents(self) -> Iterator[str]: ...
    def sources(self) -> list[Source]: ...


def list_files(root: Path, skip: Collection[str] = ()) -> list[tuple[str, Path]]:
    """List the files below a folder with their relative paths, sorted.

    Hidden files and folders are skipped. Symbolic links are followed, and each folder is visited once.
    """

    def fail(error: OSError) -> None:
        raise error

    paths, visited = [], {root.resolve()}
    for folder, subfolders, names in os.walk(root, onerror=fail, followlinks=True):
        candidates = [name for name in sorted(subfolders) if not name.startswith(".") and name not in skip]
        subfolders.clear()
        for name in candidates:
            target = Path(folder, name).resolve()
            if target not in visited:
                subfolders.append(name)
                visited.add(target)
        paths += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((path.relative_to(root).as_posix(), path) for path in paths)


def split_roles(names: Iterable[str]) -> dict[str, str] | None:
    """Map each file to the split named by the file or its first folder; None unless every file has one.

    If there are data files for train and another split, a file without a split is an error: splitting everything by
    document because of it would put test text into train.
    """
    roles: dict[str, str] = {}
    unassigned, data_splits = list[str](), set[str]()
    for name in names:
        parts = name.split("/")
        match = ROLE.fullmatch(parts[-1]) or ROLE.fullmatch(parts[0])
        if match:
            roles[name] = {"train": "train", "test": "test"}.get(match[1], "validation")
            data_splits |= {roles[name]} if DATA.fullmatch(name) else set()
        elif not ASIDE.fullmatch(parts[-1]):
            unassigned.append(name)
    if unassigned and {"train"} < data_splits:
        raise BadInput(
            f"{unassigned[0]} belongs to no split, but the corpus has train and {max(data_splits - {'train'})} files: "
            "move it elsewhere"
        )
    return None if unassigned else roles or None


def refuse_json(name: str) -> None:
    """Reject .json files: an array of texts would be read as one text, including brackets and escapes."""
    if JSON.search(name):
        raise BadInput(f"{name} may be JSONL or plain text: rename it to .jsonl (one object per line) or .txt")


@dataclass(frozen=True)
class File:
    """A text or JSONL file, optionally compressed."""

    name: str
    path: Path
    split: str | None
    piped: bytes | None = None
    """Content read from a pipe, which can be read only once."""

    @property
    def form(self) -> str:
        name, suffix = self.name.lower(), self.path.suffix.lower()
        compressed = suffix in (".gz", ".zst")
        kind = "jsonl" if (name.removesuffix(suffix) if compressed else name).endswith(".jsonl") else "text"
        return kind + suffix if compressed else kind

    def sources(self) -> list[Source]:
        with self._open() as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return [Source(self.name, file.tell(), digest)]

    def documents(self) -> Iterator[str]:
        if not self.form.startswith("jsonl"):
            yield self._decode(b"".join(self._limited(self._chunks())), 0)
            return
        offset = 0
        for number, line in enumerate(_lines(self._chunks(), self.path), 1):
            text = self._decode(line, offset)
            if text.strip():
                yield self._parse(text, number)
            offset += len(line) + 1

    def _limited(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        """The chunks of one document; an error as soon as it is larger than allowed."""
        size, limit = 0, document_bytes.get()
        for chunk in chunks:
            size += len(chunk)
            if size > limit:
                raise too_large(self.path)
            yield chunk

    def _decode(self, data: bytes, offset: int) -> str:
        skipped = len(_BOM) if not offset and data.startswith(_BOM) else 0
        try:
            return data[skipped:].decode()
        except UnicodeDecodeError as error:
            suffix = " of the decompressed data" if self.form.endswith(("gz", "zst")) else ""
            position = offset + skipped + error.start
            raise BadInput(f"{self.path}: invalid UTF-8 at byte {position}{suffix}") from None

    def _parse(self, line: str, number: int) -> str:
        """Return the text of one line of JSONL."""
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{self.path}, line {number}: not JSON ({error})") from None
        text = record.get("text") if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise BadInput(f"{self.path}, line {number}: expected an object with a string 'text'")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{self.path}, line {number}: 'text' contains an unpaired surrogate") from None
        return text

    def _chunks(self) -> Iterator[bytes]:
        """Yield the decompressed bytes; the stream must be complete, with nothing after it."""
        suffix = self.path.suffix.lower()
        if suffix == ".gz":
            return self._decompressed(lambda: zlib.decompressobj(wbits=31), zlib.error)
        if suffix == ".zst":
            import zstandard

            return self._decompressed(
                zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj, zstandard.ZstdError
            )
        return self._raw()

    def _open(self) -> BufferedReader | BytesIO:
        return self.path.open("rb") if self.piped is None else BytesIO(self.piped)

    def _raw(self, size: int = _CHUNK) -> Iterator[bytes]:
        with self._open() as file:
            while chunk := file.read(size):
                yield chunk

    def _decompressed(self, start: Callable[[], Any], failure: type[Exception]) -> Iterator[bytes]:
        stream = start()
        for chunk in self._raw(_COMPRESSED_CHUNK):
            data = chunk
            while data:
                if stream.eof:
                    stream = start()
                try:
                    yield stream.decompress(data)
                except failure as error:
                    raise BadInput(f"{self.path}: damaged, or followed by uncompressed data ({error})") from None
                data = stream.unused_data if stream.eof else b""
        if not stream.eof:
            raise BadInput(f"{self.path}: truncated, the compressed stream is incomplete")


def _lines(chunks: Iterable[bytes], name: object = "the input") -> Iterator[bytes]:
    """Split at newlines only; a line may be as large as a document."""
    pending: list[bytes] = []
    size, limit = 0, document_bytes.get()
    for chunk in chunks:
        *complete, rest = chunk.split(b"\n")
        for line in complete:
            yield b"".join([*pending, line])
            pending, size = [], 0
        pending.append(rest)
        size += len(rest)
        if size > limit:
            raise too_large(f"a line of {name}")
    if last := b"".join(pending):
        yield last


def too_large(name: object) -> BadInput:
    """Error for a document that is larger than allowed."""
    size = format_bytes(document_bytes.get())
    return BadInput(
        f"{name} is larger than {size}, the limit for one document: split it, or raise --max-document-bytes"
    )
