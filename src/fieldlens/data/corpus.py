"""Corpora: text files, JSONL files and Hugging Face datasets as documents in three splits.

A corpus is a built-in name (`stdlib`, `fieldlens`), a path or a Hugging Face dataset id. A plain text file, a line of
JSONL and a row of a dataset are one document each. Files named train.*, validation.*, test.* keep their split.
Otherwise documents are ranked by the hash of their text: the last 5 % are test, the 5 % before are validation.
"""

import hashlib
import json
import os
import platform
import re
import sysconfig
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.documents import File, Part, Source, list_files, refuse_json, split_roles
from fieldlens.data.hf_datasets import hub, parquet, saved

SPLITS = ("train", "validation", "test")
BUILT_IN = {
    "stdlib": "sources of the running Python's standard library, without its tests",
    "fieldlens": "sources of this library, all of them in the test split: for models that were not trained on them",
}

_RULE = 1  # version of the splitting rule; a new version changes every fingerprint
_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_ARCHIVE = re.compile(r"\.(tar(\.\w+)?|tgz|zip|7z|rar)$", re.IGNORECASE)
_DATA = (".txt", ".jsonl", ".json", ".gz", ".zst", ".parquet")
_TESTS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


@dataclass(frozen=True)
class _DocumentIndex:
    """The split (index into SPLITS) and the size in bytes of every document."""

    splits: np.ndarray
    bytes: np.ndarray


class Corpus:
    """Documents in three splits. Nothing is read on opening; the first access reads and validates everything once."""

    def __init__(self, name: str, about: dict[str, Any], parts: Sequence[Part]) -> None:
        self.name, self._parts = name, parts
        self._named_splits = any(part.split for part in parts)
        assert all(bool(part.split) == self._named_splits for part in parts)
        self.about = {**about, "split": "as named" if self._named_splits else f"by document, rule {_RULE}"}

    def documents(self, split: str, max_bytes: int | None = None) -> Iterator[str]:
        """Return the non-empty documents of a split in order; an absent split has none.

        With max_bytes, stop after the document that reaches this number of UTF-8 bytes.
        """
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        if max_bytes is not None and max_bytes < 1:
            raise BadInput(f"max_bytes must be at least 1, got {max_bytes}")
        return self._documents(split, max_bytes)

    def check(self) -> None:
        """Read and validate every file to its end; raise BadInput if one is damaged or there is no text."""
        assert len(self._index.splits)

    def size(self, split: str) -> tuple[int, int]:
        """Return the number of documents and of UTF-8 bytes in a split."""
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        mask = self._index.splits == SPLITS.index(split)
        return int(mask.sum()), int(self._index.bytes[mask].sum())

    def sources(self) -> list[Source]:
        """Return every input file with its hash."""
        return [source for sources in self._sources for source in sources]

    def fingerprint(self) -> str:
        """Hash the content, not the location: the hash, format and split of every file."""
        parts = zip(self._parts, self._sources, strict=True)
        content = [[part.split, part.form, [source.sha256 for source in sources]] for part, sources in parts]
        return hashlib.sha256(json.dumps([_RULE, content]).encode()).hexdigest()

    @cached_property
    def _sources(self) -> list[list[Source]]:
        return [part.sources() for part in self._parts]

    @cached_property
    def _index(self) -> _DocumentIndex:
        splits, hashes, lengths = array("B"), array("Q"), array("Q")
        for part, text in self._part_documents():
            data = text.encode()
            lengths.append(len(data))
            if part.split:
                splits.append(SPLITS.index(part.split))
            else:  # 8 of the 32 bytes are enough for ranking and take a quarter of the memory
                hashes.append(int.from_bytes(hashlib.sha256(data).digest()[:8], "big"))
        if not lengths:
            raise BadInput(f"corpus '{self.name}' is empty: it contains no text")
        indices = np.array(splits, np.uint8) if self._named_splits else self._assign(np.array(hashes, np.uint64))
        return _DocumentIndex(indices, np.array(lengths, np.uint64))

    def _assign(self, hashes: np.ndarray) -> np.ndarray:
        """Assign splits by hash: the last 5 % test, the 5 % before validation, at least one text each.

        Documents with the same text go to the same split.
        """
        texts, text_indices, copies = np.unique(hashes, return_inverse=True, return_counts=True)
        if len(texts) < 3:
            documents = "1 document" if len(texts) == 1 else f"{len(texts)} documents"
            duplicates = " (duplicates count once)" if len(texts) < len(hashes) else ""
            raise BadInput(
                f"corpus '{self.name}' has {documents}{duplicates}, but splitting needs at least 3: "
                "use a folder with train, validation and test files such as train.txt; "
                "for evaluation, a folder with a test.txt or --text FILE is enough"
            )
        minimum, splits, stop = max(1, len(hashes) // 20), np.zeros(len(texts), np.uint8), len(texts)
        for split in (2, 1):
            count = int(np.searchsorted(copies[:stop][::-1].cumsum(), minimum)) + 1
            start = max(split, stop - count)  # leave one text for each remaining split
            splits[start:stop], stop = split, start
        return splits[text_indices]

    def _part_documents(self, split: str | None = None) -> Iterator[tuple[Part, str]]:
        """Yield every non-empty document; with a split, only from the parts that may contain it."""
        parts = (part for part in self._parts if split is None or part.split in (None, split))
        return ((part, text) for part in parts for text in part.documents() if text)

    def _documents(self, split: str, max_bytes: int | None) -> Iterator[str]:
        mask, size = self._index.splits == SPLITS.index(split), 0
        if self._named_splits:
            mask = mask[mask]
        for selected, (_, text) in zip(mask, self._part_documents(split), strict=False):
            if selected:
                yield text
                size += len(text) if text.isascii() else len(text.encode())
            if max_bytes is not None and size >= max_bytes:
                return


def open_corpus(text: str) -> Corpus:
    """Open a corpus by built-in name, path or Hugging Face dataset id."""
    if text in BUILT_IN:
        return _stdlib() if text == "stdlib" else _own_sources()
    path = Path(text)
    if not text.strip() or not path.exists():
        # if a folder with the owner's name exists, this is a mistyped path: do not query the network
        if _HUB.fullmatch(text) and path.suffix.lower() not in _DATA and not path.parent.exists():
            return Corpus(text, *hub(text))
        if "/" in text or os.sep in text or path.suffix:
            raise BadInput(f"corpus '{text}' does not exist")
        raise BadInput(f"{unknown('corpus', text, BUILT_IN)}, or the path of a file or folder")
    name = path.resolve().name
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return Corpus(name, *saved(path))
    files = list_files(path) if path.is_dir() else [(path.name, path)]
    _check_files(text, files)
    roles = split_roles([relative for relative, _ in files]) if path.is_dir() else None
    for relative in roles or ([] if path.is_dir() else [path.name]):
        refuse_json(relative)
    if any(file.suffix.lower() == ".parquet" for _, file in files):
        return Corpus(name, *parquet(text, files, roles))
    if roles:
        return Corpus(
            name, {}, [File(relative, file, roles[relative]) for relative, file in files if relative in roles]
        )
    return Corpus(name, {}, [File(relative, file, None) for relative, file in files])


def _check_files(text: str, files: list[tuple[str, Path]]) -> None:
    """Reject empty folders, archives and special files."""
    if not files:
        raise BadInput(f"corpus '{text}' is empty: the folder contains no files")
    if archive := next((name for name, _ in files if _ARCHIVE.search(name)), None):
        raise BadInput(f"{archive} is an archive: unpack it first")
    if special := next((path for _, path in files if not path.is_file()), None):
        raise BadInput(f"{special} is neither a file nor a folder")


def _stdlib() -> Corpus:
    root = Path(sysconfig.get_paths()["stdlib"])
    parts = [
        File(name, path, None) for name, path in list_files(root, _TESTS) if path.suffix == ".py" and path.is_file()
    ]
    if not parts:
        raise BadInput("corpus 'stdlib' is empty: this Python installation has no standard library sources")
    return Corpus("stdlib", {"python": platform.python_version()}, parts)


def _own_sources() -> Corpus:
    root = Path(__file__).parents[1]
    parts = [File(name, path, "test") for name, path in list_files(root) if path.suffix == ".py" and path.is_file()]
    if not parts:
        raise BadInput("corpus 'fieldlens' is empty: this installation has no sources")
    return Corpus("fieldlens", {}, parts)
