"""Tokenized corpora: memory-mapped token ids in the cache, with a manifest."""

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
from fieldlens.storage.content_cache import build, cache_folder
from fieldlens.storage.folders import verified_manifest
from fieldlens.storage.sealed import digest

_BATCH = 1 << 20
_WIDEST = (1 << 16) - 1


@dataclass(frozen=True)
class Split:
    """The tokens of a split, each document followed by the end-of-text token, and the start of each document."""

    ids: np.ndarray
    starts: np.ndarray
    sizes: np.ndarray | None = None
    """The number of bytes of each token, if they were requested."""

    def lengths(self) -> np.ndarray:
        """Return the number of tokens of each document, without its end-of-text token."""
        return np.diff(self.starts, append=len(self.ids)) - 1


@dataclass(frozen=True)
class TokenizedCorpus:
    """A tokenized corpus: its folder in the cache, its manifest, and the folder of the tokenizer."""

    folder: Path
    manifest: dict[str, Any]
    tokenizer: Path

    @property
    def vocab_size(self) -> int:
        """The largest id plus one, including special tokens."""
        return self.manifest["tokenizer"]["vocabulary"]

    @property
    def end(self) -> int:
        """The id of the end-of-text token."""
        return self.manifest["tokenizer"]["end"]

    @property
    def fingerprint(self) -> str:
        """A hash of the tokens: equal fingerprints mean equal files."""
        files = sorted((name, about["sha256"]) for name, about in self.manifest["files"].items())
        return digest(files)

    def split(self, name: str) -> Split:
        """Memory-map the tokens of a split; an absent split has none."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        assert name in self.manifest["splits"], f"split {name} was not tokenized"
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
    """Tokenize a corpus, or load it from the cache.

    Without a tokenizer, one with vocab_size tokens is trained; with one, vocab_size is ignored. max_bytes limits the
    train split, and max_bytes / 8 limits validation and test. With `only`, a single split is tokenized, and the number
    of bytes of each token is stored too.
    """
    if only is not None and only not in SPLITS:
        raise unknown("split", only, SPLITS)
    if max_bytes is not None and max_bytes < 1:
        raise BadInput(f"max_bytes must be at least 1, got {max_bytes}")
    tokenizer_folder = Path(tokenizer) if tokenizer is not None else train_tokenizer(corpus, vocab_size, max_bytes)
    coder = Coder(tokenizer_folder)
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
        build(folder, recipe, lambda target: _tokenize_into(target, corpus, coder, max_bytes, progress, only))
        manifest = verified_manifest(folder)
        assert manifest is not None
    return TokenizedCorpus(folder, manifest, tokenizer_folder)


def _tokenize_into(
    folder: Path, corpus: Corpus, coder: Coder, max_bytes: int | None, progress: bool, only: str | None
) -> dict[str, Any]:
    limits = {name: max_bytes if name == "train" or not max_bytes else max(1, max_bytes // 8) for name in SPLITS}
    expected = {name: min(corpus.size(name)[1], limits[name] or sys.maxsize) for name in SPLITS}
    splits = {}
    names = [name for name in SPLITS if only in (None, name)]
    with _progress_bar(sum(expected[name] for name in names), progress) as advance:
        for name in names:
            documents = corpus.documents(name, limits[name])
            splits[name] = _write_split(folder, name, documents, coder, advance, with_sizes=only is not None)
            size = (splits[name]["documents"], splits[name]["bytes"])
            if size != corpus.size(name) and (limits[name] is None or size[1] < expected[name]):
                raise BadInput(f"split {name} of corpus '{corpus.name}' changed while it was being read")
    sources = [{"name": source.name, "bytes": source.bytes, "sha256": source.sha256} for source in corpus.sources()]
    return {"name": corpus.name, "about": corpus.about, "sources": sources, "splits": splits}


def _write_split(
    folder: Path, name: str, documents: Iterator[str], coder: Coder, advance: Callable[[int], None], with_sizes: bool
) -> dict[str, Any]:
    starts, text_bytes, token_bytes, count = array("q", [0]), 0, 0, 0
    end = np.array([coder.end], coder.dtype).tobytes()
    all_sizes = array("H")
    with (folder / f"{name}.npy").open("wb") as file:
        _write_header(file, coder.dtype, 0)
        for batch in _batches(documents, coder):
            encoded = coder.encode([piece for piece, _ in batch])
            for (ids, sizes), (_, last) in zip(encoded, batch, strict=True):
                file.write(ids.tobytes() + (end if last else b""))
                token_bytes += int(sizes.sum())
                count += len(ids) + last
                if with_sizes:
                    all_sizes.extend([*sizes.clip(max=_WIDEST).tolist(), *([0] if last else [])])
                if last:
                    starts.append(count)
            batch_bytes = sum(len(piece.encode()) for piece, _ in batch)
            text_bytes += batch_bytes
            advance(batch_bytes)
        file.seek(0)
        _write_header(file, coder.dtype, count)
    np.save(folder / f"{name}.starts.npy", np.array(starts[:-1], np.int64))
    if with_sizes:
        np.save(folder / f"{name}.sizes.npy", np.array(all_sizes, np.uint16))
    if coder.exact and token_bytes != text_bytes:
        raise BadInput(
            f"{coder.file} does not preserve text: the text has {text_bytes} bytes, its tokens {token_bytes}"
        )
    row = {"documents": len(starts) - 1, "bytes": text_bytes, "tokens": count}
    return {**row, "bytes_accounted": token_bytes if coder.exact else None}


def _write_header(file: BinaryIO, dtype: np.dtype, count: int) -> None:
    """Write the header of an .npy file; NumPy pads it, so it can be overwritten with the final count."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    )
    assert file.tell() == 128


def _batches(documents: Iterator[str], coder: Coder) -> Iterator[list[tuple[str, bool]]]:
    """Yield batches of about a million characters: pieces, and whether each is the last of its document."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for text in documents:
        remaining = len(text)
        for piece in coder.pieces(text):
            remaining -= len(piece)
            size += len(piece)
            batch.append((piece, not remaining))
            if size >= _BATCH:
                yield batch
                batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _progress_bar(total: int, progress: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar with rate and remaining time, on a terminal only."""
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
    """Perplexity of the validation split under the unigram distribution of the train split, with add-one smoothing."""
    train_V, validation_V = (_counts(tokenized, name) for name in ("train", "validation"))
    if not validation_V.sum():
        raise BadInput(f"corpus '{tokenized.manifest['name']}' has no validation split to compute a perplexity on")
    loss_V = math.log(train_V.sum() + len(train_V)) - np.log(train_V + 1)
    return math.exp(float(validation_V @ loss_V) / int(validation_V.sum()))


def _counts(tokenized: TokenizedCorpus, name: str) -> np.ndarray:
    ids, counts_V = tokenized.split(name).ids, np.zeros(tokenized.vocab_size, np.int64)
    for start in range(0, len(ids), 1 << 24):  # in chunks: bincount copies its input to int64
        counts_V += np.bincount(ids[start : start + (1 << 24)], minlength=tokenized.vocab_size)
    return counts_V
