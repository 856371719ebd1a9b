"""Documents: what files hold, plain or compressed, text or JSONL; every stream read to its end."""

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

ROLE = re.compile(r"(train|validation|valid|val|test)(-\d+-of-\d+)?(\..+)?")
DATA = re.compile(r"\w+(-\d+-of-\d+)?\.(txt|jsonl)(\.(gz|zst))?")
JSON = re.compile(r"\.json(\.gz|\.zst)?$", re.IGNORECASE)
ASIDE = re.compile(r"(readme|licen[cs]e)\b.*", re.IGNORECASE)
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16


@dataclass(frozen=True)
class Source:
    """One input file, by its path relative to the corpus, and its content."""

    name: str
    bytes: int
    sha256: str


class Part(Protocol):
    """A run of documents that share a split, or wait to be split (None)."""

    @property
    def split(self) -> str | None: ...
    @property
    def form(self) -> str: ...
    def documents(self) -> Iterator[str]: ...
    def sources(self) -> list[Source]: ...


def list_files(root: Path, skip: Collection[str] = ()) -> list[tuple[str, Path]]:
    """The files of a folder by relative path, sorted; hidden ones are not seen, folders that are linked twice once."""

    def refuse(error: OSError) -> None:
        raise error

    found, seen = [], {root.resolve()}
    for folder, folders, names in os.walk(root, onerror=refuse, followlinks=True):
        wanted = [name for name in sorted(folders) if not name.startswith(".") and name not in skip]
        folders.clear()
        for name in wanted:
            place = Path(folder, name).resolve()
            if place not in seen:
                folders.append(name)
                seen.add(place)
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((path.relative_to(root).as_posix(), path) for path in found)


def split_roles(names: Iterable[str]) -> dict[str, str] | None:
    """The split that each file's name, or else its first folder's, stands for; None unless every file has one.

    Where data files for train and another split stand side by side, a file that belongs to none is refused: to split
    all anew because of it would put the test's text into train.
    """
    roles: dict[str, str] = {}
    odd, data = list[str](), set[str]()
    for name in names:
        parts = name.split("/")
        match = ROLE.fullmatch(parts[-1]) or ROLE.fullmatch(parts[0])
        if match:
            roles[name] = {"train": "train", "test": "test"}.get(match[1], "validation")
            data |= {roles[name]} if DATA.fullmatch(name) else set()
        elif not ASIDE.fullmatch(parts[-1]):
            odd.append(name)
    if odd and {"train"} < data:
        raise BadInput(
            f"{odd[0]} is in no split, and stands beside files of train and {max(data - {'train'})}: move it"
        )
    return None if odd else roles or None


def refuse_json(name: str) -> None:
    """An array of texts would be read as one text, brackets and escapes included."""
    if JSON.search(name):
        raise BadInput(f"{name} may be lines of JSON or a plain text: name it .jsonl, one object per line, or .txt")


@dataclass(frozen=True)
class File:
    """A text or JSONL file, perhaps compressed."""

    name: str
    path: Path
    split: str | None
    piped: bytes | None = None
    """What a pipe brought, which can be read only once."""

    @property
    def form(self) -> str:
        stem, compressed = self.name.lower(), self.path.suffix.lower()
        packed = compressed in (".gz", ".zst")
        kind = "jsonl" if (stem.removesuffix(compressed) if packed else stem).endswith(".jsonl") else "text"
        return kind + compressed if packed else kind

    def sources(self) -> list[Source]:
        with self._open() as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return [Source(self.name, file.tell(), digest)]

    def documents(self) -> Iterator[str]:
        if not self.form.startswith("jsonl"):
            yield self._decode(b"".join(self._chunks()), 0)
            return
        offset = 0
        for number, line in enumerate(_lines(self._chunks()), 1):
            text = self._decode(line, offset)
            if text.strip():
                yield self._text_of(text, number)
            offset += len(line) + 1

    def _decode(self, data: bytes, offset: int) -> str:
        skipped = len(_BOM) if not offset and data.startswith(_BOM) else 0
        try:
            return data[skipped:].decode()
        except UnicodeDecodeError as error:
            where = " of what is compressed" if self.form.endswith(("gz", "zst")) else ""
            at = offset + skipped + error.start
            raise BadInput(f"{self.path}: invalid UTF-8 at byte {at}{where}") from None

    def _text_of(self, line: str, number: int) -> str:
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{self.path}, line {number}: not JSON ({error})") from None
        text = value.get("text") if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise BadInput(f"{self.path}, line {number}: not an object with a string 'text'")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise BadInput(f"{self.path}, line {number}: 'text' has half of a surrogate pair") from None
        return text

    def _chunks(self) -> Iterator[bytes]:
        """The bytes, decompressed; a stream must end where its format says, and nothing else may follow."""
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

    def _raw(self) -> Iterator[bytes]:
        with self._open() as file:
            while data := file.read(_CHUNK):
                yield data

    def _decompressed(self, start: Callable[[], Any], failure: type[Exception]) -> Iterator[bytes]:
        stream = start()
        for chunk in self._raw():
            data = chunk
            while data:
                if stream.eof:
                    stream = start()
                try:
                    yield stream.decompress(data)
                except failure as error:
                    raise BadInput(f"{self.path}: damaged, or not all of it is compressed ({error})") from None
                data = stream.unused_data if stream.eof else b""
        if not stream.eof:
            raise BadInput(f"{self.path}: cut short, the compressed stream does not end")


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Split at newlines and nothing else; a line may be as long as it likes."""
    begun: list[bytes] = []
    for chunk in chunks:
        *whole, rest = chunk.split(b"\n")
        for line in whole:
            yield b"".join([*begun, line])
            begun = []
        begun.append(rest)
    if last := b"".join(begun):
        yield last
