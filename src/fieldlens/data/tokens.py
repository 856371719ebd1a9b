"""Tokens: a corpus as memory-mapped token ids, in the cache with their manifest."""

import json
import math
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.corpus import SPLITS, Corpus
from fieldlens.data.tokenizer import FORMAT, Coder, train_tokenizer
from fieldlens.storage.atomic import MANIFEST
from fieldlens.storage.content_cache import build, cache_folder, digest, verified_manifest

_BATCH = 1 << 20
_WIDEST = (1 << 16) - 1


@dataclass(frozen=True)
class Split:
    """The tokens of a split, each document followed by the end-of-text token, and where each document starts."""

    ids: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray | None = None
    """The bytes of text that each token stands for, where they were asked for."""

    def lengths(self) -> np.ndarray:
        """The number of tokens of each document, without its end-of-text token."""
        return np.diff(self.starts, append=len(self.ids)) - 1


@dataclass(frozen=True)
class TokenizedCorpus:
    """A corpus as tokens: a folder in the cache, what its manifest says, and the tokenizer's folder."""

    folder: Path
    manifest: dict[str, Any]
    tokenizer: Path

    @property
    def vocab_size(self) -> int:
        """One more than the largest id, special tokens included."""
        return self.manifest["tokenizer"]["vocabulary"]

    @property
    def end(self) -> int:
        """The id of the end-of-text token."""
        return self.manifest["tokenizer"]["end"]

    @property
    def fingerprint(self) -> str:
        """Names the tokens exactly: equal fingerprints are equal files."""
        files = sorted((name, about["sha256"]) for name, about in self.manifest["files"].items())
        return digest(files)

    def split(self, name: str) -> Split:
        """The tokens of one split, mapped into memory; an absent split has none."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        assert name in self.manifest["splits"], f"the split {name} was not asked for"
        mode: Any = "r" if self.manifest["splits"][name]["tokens"] else None  # an empty array cannot be mapped
        ids = np.load(self.folder / f"{name}.npy", mmap_mode=mode)
        sizes = self.folder / f"{name}.sizes.npy"
        return Split(ids, np.load(self.folder / f"{name}.starts.npy"), np.load(sizes) if sizes.exists() else None)


def tokenize(
    corpus: Corpus,
    vocab_size: int,
    tokenizer: Path | None = None,
    max_bytes: int | None = None,
    progress: bool = False,
    only: str | None = None,
) -> TokenizedCorpus:
    """The corpus as tokens, from the cache or made now.

    A tokenizer of that vocabulary is trained unless one is given, whose own vocabulary then counts. max_bytes limits
    the train split, and an eighth of it validation and test. With `only` one split is read, and the bytes of each token
    are kept beside it.
    """
    if only is not None and only not in SPLITS:
        raise unknown("split", only, SPLITS)
    if max_bytes is not None and max_bytes < 1:
        raise BadInput(f"max_bytes is {max_bytes}: at least 1 is needed")
    home = Path(tokenizer) if tokenizer is not None else train_tokenizer(corpus, vocab_size, max_bytes)
    coder = Coder(home)
    recipe = {
        "format": FORMAT,
        "corpus": corpus.fingerprint(),
        "tokenizer": {"sha256": coder.sha256, "vocabulary": coder.vocab_size, "end": coder.end},
        "max_bytes": max_bytes,
        **({"only": only} if only else {}),
        **({"cut": False} if coder.exact and not coder.cuttable else {}),
    }
    folder = cache_folder() / "tokens" / digest(recipe)[:32]
    manifest = verified_manifest(folder)
    if manifest is None:
        corpus.check()  # before anything is written
        build(folder, recipe, lambda place: _tokenize_into(place, corpus, coder, max_bytes, progress, only))
        manifest = json.loads((folder / MANIFEST).read_bytes())
    return TokenizedCorpus(folder, manifest, home)


def _tokenize_into(
    place: Path, corpus: Corpus, coder: Coder, max_bytes: int | None, progress: bool, only: str | None
) -> dict[str, Any]:
    limits = {name: max_bytes if name == "train" or not max_bytes else max(1, max_bytes // 8) for name in SPLITS}
    expected = {name: min(corpus.size(name)[1], limits[name] or sys.maxsize) for name in SPLITS}
    splits = {}
    names = [name for name in SPLITS if only in (None, name)]
    with _bar(sum(expected[name] for name in names), progress) as advance:
        for name in names:
            documents = corpus.documents(name, limits[name])
            splits[name] = _write_split(place, name, documents, coder, advance, sizes=only is not None)
            seen = (splits[name]["documents"], splits[name]["bytes"])
            if seen != corpus.size(name) and (limits[name] is None or seen[1] < expected[name]):
                raise BadInput(f"corpus '{corpus.name}' changed while it was read: split {name}")
    sources = [{"name": one.name, "bytes": one.bytes, "sha256": one.sha256} for one in corpus.sources()]
    return {"name": corpus.name, "about": corpus.about, "sources": sources, "splits": splits}


def _write_split(
    place: Path, name: str, documents: Iterator[str], coder: Coder, advance: Callable[[int], None], sizes: bool
) -> dict[str, Any]:
    starts, taken, accounted, count = array("q", [0]), 0, 0, 0
    end = np.array([coder.end], coder.dtype).tobytes()
    widths = array("H")
    with (place / f"{name}.npy").open("wb") as file:
        _header(file, coder.dtype, 0)
        for batch in _batches(documents, coder):
            encoded = coder.encode([piece for piece, _ in batch])
            for (ids, their), (_, last) in zip(encoded, batch, strict=True):
                file.write(ids.tobytes() + (end if last else b""))
                accounted += int(their.sum())
                count += len(ids) + last
                if sizes:
                    widths.extend([*their.clip(max=_WIDEST).tolist(), *([0] if last else [])])
                if last:
                    starts.append(count)
            size = sum(len(piece.encode()) for piece, _ in batch)
            taken += size
            advance(size)
        file.seek(0)
        _header(file, coder.dtype, count)
    np.save(place / f"{name}.starts.npy", np.array(starts[:-1], np.int64))
    if sizes:
        np.save(place / f"{name}.sizes.npy", np.array(widths, np.uint16))
    if coder.exact and accounted != taken:
        raise BadInput(f"{coder.file} loses text: {taken} bytes in, {accounted} accounted for")
    row = {"documents": len(starts) - 1, "bytes": taken, "tokens": count}
    return {**row, "bytes_accounted": accounted if coder.exact else None}


def _header(file: BinaryIO, dtype: np.dtype, count: int) -> None:
    """The head of an .npy file; NumPy leaves room in it for the count to grow, so it can be written twice."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    )
    assert file.tell() == 128


def _batches(documents: Iterator[str], coder: Coder) -> Iterator[list[tuple[str, bool]]]:
    """Pieces, or whole documents, and whether each is the last of its document, about a megabyte at a time."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for text in documents:
        left = len(text)
        for piece in coder.pieces(text):
            left -= len(piece)
            size += len(piece)
            batch.append((piece, not left))
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _bar(total: int, progress: bool) -> Iterator[Callable[[int], None]]:
    """A bar with rate and time left on a terminal, nothing elsewhere."""
    if not (progress and sys.stderr.isatty()):
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (TextColumn("tokenize"), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("tokenize", total=total)
        yield lambda size: bar.advance(task, size)


def unigram_perplexity(tokenized: TokenizedCorpus) -> float:
    """Perplexity of the validation split under the train split's token counts, each plus one."""
    train_V, validation_V = (_counts(tokenized, name) for name in ("train", "validation"))
    if not validation_V.sum():
        raise BadInput(f"corpus '{tokenized.manifest['name']}' has no validation split to take a perplexity of")
    surprise_V = math.log(train_V.sum() + len(train_V)) - np.log(train_V + 1)
    return math.exp(float(validation_V @ surprise_V) / int(validation_V.sum()))


def _counts(tokenized: TokenizedCorpus, name: str) -> np.ndarray:
    ids, counts_V = tokenized.split(name).ids, np.zeros(tokenized.vocab_size, np.int64)
    for start in range(0, len(ids), 1 << 24):  # bincount makes a wide copy of what it is given
        counts_V += np.bincount(ids[start : start + (1 << 24)], minlength=tokenized.vocab_size)
    return counts_V
