"""Corpora: text in any form -> documents -> splits.

A corpus is named (`stdlib`) or lies at a path. A plain text file is one document, a line of JSONL is one document, a
row of a Hugging Face dataset is one document. Files named train.*, validation.*, test.* keep their split; anything
else is split by document: ranked by the hash of their text, the last 5 % are test, the 5 % before are validation.
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
BUILT_IN = {"stdlib": "sources of the running Python's standard library, without its tests"}

_RULE = 1  # which document goes to which split; a change of the rule changes every fingerprint
_HUB = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_ARCHIVE = re.compile(r"\.(tar(\.\w+)?|tgz|zip|7z|rar)$", re.IGNORECASE)
_DATA = (".txt", ".jsonl", ".json", ".gz", ".zst", ".parquet")
_TESTS = {"test", "tests", "idle_test", "site-packages", "dist-packages"}


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
        """The last 5 % by hash are test, the 5 % before validation, at least one each; equal texts stay together."""
        texts, text_of, copies = np.unique(ranks, return_inverse=True, return_counts=True)
        if len(texts) < 3:
            documents = "1 document" if len(texts) == 1 else f"{len(texts)} documents"
            copies_too = " (copies count once)" if len(texts) < len(ranks) else ""
            raise BadInput(
                f"corpus '{self.name}' has {documents}{copies_too}, and splitting needs at least 3: "
                "give a folder with train, validation and test files, such as train.txt; "
                "to evaluate, one with a test.txt will do, or --text FILE"
            )
        held, homes, last = max(1, len(ranks) // 20), np.zeros(len(texts), np.uint8), len(texts)
        for home in (2, 1):
            enough = int(np.searchsorted(copies[:last][::-1].cumsum(), held)) + 1
            first = max(home, last - enough)  # the splits that follow need a text each
            homes[first:last], last = home, first
        return homes[text_of]

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
            return Corpus(text, *hub(text))
        if "/" in text or os.sep in text or path.suffix:
            raise BadInput(f"corpus '{text}' does not exist")
        raise BadInput(f"{unknown('corpus', text, BUILT_IN)}, or the path of a file or folder")
    name = path.resolve().name
    if (path / "dataset_dict.json").is_file() or (path / "state.json").is_file():
        return Corpus(name, *saved(path))
    files = list_files(path) if path.is_dir() else [(path.name, path)]
    _check_files(text, files)
    roles = split_roles([file for file, _ in files]) if path.is_dir() else None
    named = roles or ([] if path.is_dir() else [path.name])
    for file in named:
        refuse_json(file)
    if any(file.suffix.lower() == ".parquet" for _, file in files):
        return Corpus(name, *parquet(text, files, roles))
    if roles:
        return Corpus(name, {}, [File(file, where, roles[file]) for file, where in files if file in roles])
    return Corpus(name, {}, [File(file, where, None) for file, where in files])


def _check_files(text: str, files: list[tuple[str, Path]]) -> None:
    """Refuse what holds no text that could be read."""
    if not files:
        raise BadInput(f"corpus '{text}' is empty: a folder without files")
    if packed := next((file for file, _ in files if _ARCHIVE.search(file)), None):
        raise BadInput(f"{packed} is an archive of files: unpack it")
    if odd := next((file for _, file in files if not file.is_file()), None):
        raise BadInput(f"{odd} is neither a file nor a folder")


def _stdlib() -> Corpus:
    root = Path(sysconfig.get_paths()["stdlib"])
    parts = [
        File(name, path, None) for name, path in list_files(root, _TESTS) if path.suffix == ".py" and path.is_file()
    ]
    if not parts:
        raise BadInput("corpus 'stdlib' is empty: this Python comes without the sources of its standard library")
    return Corpus("stdlib", {"python": platform.python_version()}, parts)
