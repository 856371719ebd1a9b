"""Corpora: text in any form -> documents -> splits.

A corpus is named (`stdlib`) or lies at a path. A plain text file is one document, a line of JSONL is one document, a
row of a Hugging Face dataset is one document. Files named train.*, validation.*, test.* keep their split; anything
else is split by document: ranked by the hash of their text, the last 5 % are test, the 5 % before are validation.
"""

import glob
import hashlib
import importlib
import json
import os
import platform
import re
import sysconfig
import zlib
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from fieldlens.errors import BadInput, unknown

SPLITS = ("train", "validation", "test")
BUILT_IN = {"stdlib": "sources of the running Python's standard library, without its tests"}

_RULE = 1  # which document goes to which split; a change of the rule changes every fingerprint
_BOM = b"\xef\xbb\xbf"
_CHUNK = 1 << 16
_ROLE = re.compile(r"(train|validation|valid|val|test)(-\d+-of-\d+)?(\..+)?")
_ASIDE = re.compile(r"(readme|licen[cs]e)\b.*", re.IGNORECASE)
_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_DATA = (".txt", ".jsonl", ".json", ".gz", ".zst", ".parquet")
_TESTS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


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


@dataclass(frozen=True)
class _Census:
    """What one pass over everything finds: a home (index into SPLITS) and a length for each document."""

    homes: np.ndarray
    bytes: np.ndarray


class Corpus:
    """Documents in three splits. Opening one reads nothing; the first question reads everything once and checks it."""

    def __init__(self, name: str, about: dict[str, Any], parts: Sequence[Part]) -> None:
        self.name, self._parts = name, parts
        self._kept = any(part.split for part in parts)
        assert all(bool(part.split) == self._kept for part in parts)
        self.about = {**about, "split": "as named" if self._kept else f"by document, rule {_RULE}"}

    def documents(self, split: str, max_bytes: int | None = None) -> Iterator[str]:
        """The non-empty documents of a split, in their order; none of an absent split.

        With max_bytes stop after the document that reaches this many bytes of UTF-8.
        """
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        if max_bytes is not None and max_bytes < 1:
            raise BadInput(f"max_bytes is {max_bytes}: at least 1 is needed")
        return self._documents(split, max_bytes)

    def check(self) -> None:
        """Read everything once: every stream to its end, every character, and something in it."""
        assert len(self._census.homes)

    def size(self, split: str) -> tuple[int, int]:
        """How many documents and bytes of UTF-8 the split has."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        here = self._census.homes == SPLITS.index(split)
        return int(here.sum()), int(self._census.bytes[here].sum())

    def sources(self) -> list[Source]:
        """Every input file and its hash."""
        return [source for found in self._sources for source in found]

    def fingerprint(self) -> str:
        """Names the content, not the place: the files' hashes, how they are read, and how they are split."""
        parts = zip(self._parts, self._sources, strict=True)
        content = [[part.split, part.form, [source.sha256 for source in found]] for part, found in parts]
        return hashlib.sha256(json.dumps([_RULE, content]).encode()).hexdigest()

    @cached_property
    def _sources(self) -> list[list[Source]]:
        return [part.sources() for part in self._parts]

    @cached_property
    def _census(self) -> _Census:
        homes, ranks, lengths = array("B"), array("Q"), array("Q")
        for part, text in self._walk():
            data = text.encode()
            lengths.append(len(data))
            if part.split:
                homes.append(SPLITS.index(part.split))
            else:  # 8 of the 32 bytes rank as well, in a quarter of the memory
                ranks.append(int.from_bytes(hashlib.sha256(data).digest()[:8], "big"))
        if not lengths:
            raise BadInput(f"corpus '{self.name}' is empty: there is no text in it")
        found = np.array(homes, np.uint8) if self._kept else self._homes(np.array(ranks, np.uint64))
        return _Census(found, np.array(lengths, np.uint64))

    def _homes(self, ranks: np.ndarray) -> np.ndarray:
        """The last 5 % by hash are test, the 5 % before validation, at least one each."""
        count = len(ranks)
        if count < 3:
            documents = "1 document" if count == 1 else f"{count} documents"
            raise BadInput(
                f"corpus '{self.name}' has {documents}, and splitting needs at least 3: "
                "give a folder with train, validation and test files, such as train.txt"
            )
        held = max(1, count // 20)
        order = np.argsort(ranks, kind="stable")
        homes = np.zeros(count, np.uint8)
        homes[order[-2 * held : -held]], homes[order[-held:]] = 1, 2
        return homes

    def _walk(self, split: str | None = None) -> Iterator[tuple[Part, str]]:
        """Every document; with a split, only of the parts that can hold it."""
        parts = (part for part in self._parts if split is None or part.split in (None, split))
        return ((part, text) for part in parts for text in part.documents() if text)

    def _documents(self, split: str, max_bytes: int | None) -> Iterator[str]:
        homes, taken = self._census.homes == SPLITS.index(split), 0
        if self._kept:
            homes = homes[homes]
        for mine, (_, text) in zip(homes, self._walk(split), strict=False):
            if mine:
                yield text
                taken += len(text) if text.isascii() else len(text.encode())
            if max_bytes is not None and taken >= max_bytes:
                return


def open_corpus(text: str) -> Corpus:
    """The corpus that a name or a path or a Hugging Face id means."""
    if text == "stdlib":
        return _stdlib()
    path = Path(text)
    if not text.strip() or not path.exists():
        # a folder of that owner's name here means a mistyped path: do not go and ask the network for it
        if _HUB.fullmatch(text) and path.suffix.lower() not in _DATA and not path.parent.exists():
            return _hub(text)
        if "/" in text or os.sep in text or path.suffix:
            raise BadInput(f"corpus '{text}' does not exist")
        raise BadInput(f"{unknown('corpus', text, BUILT_IN)}, or the path of a file or folder")
    name = path.resolve().name
    if path.is_dir():
        if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
            return Corpus(name, *_saved(path))
        files = _files(path)
    else:
        files = [(path.name, path)]
    if not files:
        raise BadInput(f"corpus '{text}' is empty: a folder without files")
    if odd := next((file for _, file in files if not file.is_file()), None):
        raise BadInput(f"{odd} is neither a file nor a folder")
    roles = _roles([file for file, _ in files]) if path.is_dir() else None
    if any(file.suffix.lower() == ".parquet" for _, file in files):
        return Corpus(name, *_parquet(text, files, roles))
    if roles:
        return Corpus(name, {}, [_File(file, where, roles[file]) for file, where in files if file in roles])
    return Corpus(name, {}, [_File(file, where, None) for file, where in files])


def _stdlib() -> Corpus:
    root = Path(sysconfig.get_paths()["stdlib"])
    parts = [_File(name, path, None) for name, path in _files(root, _TESTS) if path.suffix == ".py" and path.is_file()]
    if not parts:
        raise BadInput("corpus 'stdlib' is empty: this Python comes without the sources of its standard library")
    return Corpus("stdlib", {"python": platform.python_version()}, parts)


def _files(root: Path, skip: Collection[str] = ()) -> list[tuple[str, Path]]:
    """The files of a folder by relative path, sorted; hidden ones are not seen."""

    def refuse(error: OSError) -> None:
        raise error

    found = []
    for folder, folders, names in os.walk(root, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in skip]
        found += [Path(folder, name) for name in names if not name.startswith(".")]
    return sorted((path.relative_to(root).as_posix(), path) for path in found)


def _roles(names: Iterable[str]) -> dict[str, str] | None:
    """The split that each file's name, or else its first folder's, stands for; None unless every file has one."""
    roles = {}
    for name in names:
        parts = name.split("/")
        match = _ROLE.fullmatch(parts[-1]) or _ROLE.fullmatch(parts[0])
        if match:
            roles[name] = {"train": "train", "test": "test"}.get(match[1], "validation")
        elif not _ASIDE.fullmatch(parts[-1]):
            return None
    return roles or None


@dataclass(frozen=True)
class _File:
    """A text or JSONL file, perhaps compressed."""

    name: str
    path: Path
    split: str | None

    @property
    def form(self) -> str:
        stem, compressed = self.name.lower(), self.path.suffix.lower()
        packed = compressed in (".gz", ".zst")
        kind = "jsonl" if (stem.removesuffix(compressed) if packed else stem).endswith(".jsonl") else "text"
        return kind + compressed if packed else kind

    def sources(self) -> list[Source]:
        with self.path.open("rb") as file:
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

            return self._decompressed(zstandard.ZstdDecompressor().decompressobj, zstandard.ZstdError)
        return self._raw()

    def _raw(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
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


@dataclass(frozen=True)
class _Table:
    """One split of a Hugging Face dataset; files are its local files, none for one from the hub."""

    what: str
    split: str | None
    rows: Any
    files: Sequence[tuple[str, Path]]
    form: str = "table"

    def documents(self) -> Iterator[str]:
        try:
            for number, row in enumerate(self.rows, 1):
                if not isinstance(row.get("text"), str):
                    reason = "is not a string" if "text" in row else f"is missing, there are: {', '.join(sorted(row))}"
                    raise BadInput(f"{self.what}, row {number}: column 'text' {reason}")
                yield row["text"]
        except BadInput:
            raise
        except Exception as error:  # Arrow has many ways to say that a file is damaged
            raise _unreadable(self.what, error) from error

    def sources(self) -> list[Source]:
        if self.files:
            return [source for name, path in self.files for source in _File(name, path, None).sources()]
        digest, count = hashlib.sha256(), 0
        for text in self.documents():
            data = text.encode()
            digest.update(len(data).to_bytes(8, "big") + data)
            count += len(data)
        return [Source(self.what, count, digest.hexdigest())]


def _datasets(what: str) -> Any:
    """The library, which is an extra."""
    try:
        return importlib.import_module("datasets")
    except ImportError:
        raise BadInput(f"{what} is read by the datasets library: pip install 'fieldlens[data]'") from None


def _unreadable(what: str, error: Exception) -> BadInput:
    return BadInput(f"{what} cannot be read: {' '.join(str(error).split()) or type(error).__name__}")


def _hub(text: str) -> Corpus:
    what = f"corpus '{text}', which is not a path here but may be a Hugging Face dataset,"
    library = _datasets(what)
    try:
        loaded = library.load_dataset(text)
    except Exception as error:  # no network, no such dataset, no permission: each library has its own classes
        raise _unreadable(what, error) from error
    return Corpus(text, *_tables(library, text, loaded, lambda split: []))


def _saved(path: Path) -> tuple[dict[str, Any], list[Part]]:
    """A folder written by save_to_disk; its Arrow files are what is hashed."""
    library = _datasets(str(path))
    try:
        loaded = library.load_from_disk(str(path))
    except Exception as error:
        raise _unreadable(str(path), error) from error
    arrow = [(name, file) for name, file in _files(path) if file.suffix == ".arrow"]
    inside = (path / "dataset_dict.json").is_file()
    return _tables(
        library, str(path), loaded, lambda split: [one for one in arrow if not inside or one[0].startswith(f"{split}/")]
    )


def _tables(
    library: Any, what: str, loaded: Any, files: Callable[[str], Sequence[tuple[str, Path]]]
) -> tuple[dict[str, Any], list[Part]]:
    """A part for each named split; `train` alone is what the library calls a dataset without splits."""
    tables = dict(loaded) if isinstance(loaded, dict) else {"train": loaded}
    names = [name for name in tables if _ROLE.fullmatch(name)]
    kept = _roles(names) if "train" in names and len(names) > 1 else None
    parts: list[Part] = [
        _Table(what, kept[name] if kept else None, _text_only(tables[name]), files(name)) for name in (kept or tables)
    ]
    return {"datasets": library.__version__, "left out": sorted(set(tables) - set(kept or tables))}, parts


def _text_only(rows: Any) -> Any:
    """Leave the other columns unread."""
    return rows.select_columns("text") if "text" in (rows.column_names or ()) else rows


def _parquet(
    text: str, files: Sequence[tuple[str, Path]], roles: dict[str, str] | None
) -> tuple[dict[str, Any], list[Part]]:
    """Parquet files, streamed: nothing is copied into the library's own cache."""
    library = _datasets(text)
    for name, path in files:
        if path.suffix.lower() != ".parquet" and not _ASIDE.fullmatch(path.name):
            raise BadInput(f"corpus '{text}' mixes Parquet and other files: {name}")
    parts: list[Part] = []
    for name, path in files:
        if path.suffix.lower() == ".parquet":
            try:
                found = {"all": glob.escape(str(path.resolve()))}
                rows = library.load_dataset("parquet", data_files=found, split="all", streaming=True)
            except Exception as error:
                raise _unreadable(str(path), error) from error
            parts.append(_Table(str(path), roles[name] if roles else None, _text_only(rows), [(name, path)]))
    return {"datasets": library.__version__}, parts
