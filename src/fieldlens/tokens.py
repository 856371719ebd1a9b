"""Tokens: a tokenizer, and memory-mapped tokens with their manifest.

Both live in the cache, in folders named by the content they are made from. A folder is written beside its place,
fsynced and renamed, and its manifest holds the hash of every file, so that what is there is whole.
"""

import hashlib
import json
import math
import os
import secrets
import shutil
import sys
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from tokenizers import Tokenizer

from fieldlens.corpus import SPLITS, Corpus
from fieldlens.errors import BadInput, unknown

END = "<|endoftext|>"

_FORMAT = 1  # of the folders below; a change makes every cached one anew
_BYTES = 256
_PIECE = 1 << 12
_BATCH = 1 << 20
_LARGEST = 1 << 24
_CHEAP = 1 << 28
_MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Split:
    """The tokens of a split, each document followed by the end-of-text token, and where each document starts."""

    ids: np.ndarray
    starts: np.ndarray

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
    def vocabulary(self) -> int:
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
        return _digest(files)

    def split(self, name: str) -> Split:
        """The tokens of one split, mapped into memory; an absent split has none."""
        if name not in SPLITS:
            raise unknown("split", name, SPLITS)
        mode: Any = "r" if self.manifest["splits"][name]["tokens"] else None  # an empty array cannot be mapped
        ids = np.load(self.folder / f"{name}.npy", mmap_mode=mode)
        return Split(ids, np.load(self.folder / f"{name}.starts.npy"))


def cache_folder() -> Path:
    """FIELDLENS_CACHE, or fieldlens in the user's cache folder."""
    if given := os.environ.get("FIELDLENS_CACHE"):
        return Path(given).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fieldlens"


def train_tokenizer(corpus: Corpus, vocabulary: int, max_bytes: int | None = None) -> Path:
    """A byte-level BPE of the train split, as a Hugging Face folder in the cache."""
    if vocabulary < _BYTES + 1:
        raise BadInput(f"vocabulary is {vocabulary}: at least {_BYTES + 1} is needed, every byte and the end of text")
    recipe = {
        "format": _FORMAT,
        "corpus": corpus.fingerprint(),
        "vocabulary": vocabulary,
        "max_bytes": max_bytes,
    }
    folder = cache_folder() / "tokenizers" / _digest(recipe)[:32]
    if _intact(folder) is None:
        if not corpus.size("train")[0]:  # reads everything, before anything is written
            raise BadInput(f"corpus '{corpus.name}' has no train split to train a tokenizer on")
        _build(folder, recipe, lambda place: _train_into(place, corpus, vocabulary, max_bytes))
    return folder


def _train_into(place: Path, corpus: Corpus, vocabulary: int, max_bytes: int | None) -> dict[str, Any]:
    from tokenizers import decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # in pieces, because the time of training is quadratic in the longest word: a megabyte of letters takes an hour
    pieces = (piece for text in corpus.documents("train", max_bytes) for piece in _pieces(text))
    tokenizer.train_from_iterator(pieces, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(place)
    return {}


def _pieces(text: str, size: int = _PIECE) -> Iterator[str]:
    """Cut a document where no token can be: before the first space after a word, else before a newline, else hard."""
    start = 0
    while len(text) - start > size:
        cut = _last_gap(text, " ", start, start + size) or _last_gap(text, "\n", start, start + size) or start + size
        yield text[start:cut]
        start = cut
    yield text[start:]


def _last_gap(text: str, gap: str, start: int, end: int) -> int | None:
    """The last place in (start, end] of this character after something that is not white."""
    at = text.rfind(gap, start + 1, end + 1)
    while at > start and text[at - 1].isspace():
        at = text.rfind(gap, start + 1, at)
    return at if at > start else None


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, set to encode all of a text and to read no special token out of it."""
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        raise BadInput(f"{folder} is not a tokenizer folder: there is no tokenizer.json")
    _refuse_prefix(file)
    with _panics(file), _silence():
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        tokenizer.encode("Does it 1, run?\n", add_special_tokens=False)
    if _vocabulary(tokenizer) > _LARGEST:
        raise BadInput(f"{file}: the largest id is {_vocabulary(tokenizer) - 1}, allowed: less than {_LARGEST}")
    return tokenizer


def _refuse_prefix(file: Path) -> None:
    """A crafted prefix of subwords makes the library abort the process, which nothing can catch."""
    try:
        model = json.loads(file.read_bytes()).get("model") or {}
        prefix = model.get("continuing_subword_prefix") if "merges" in model else None
    except (ValueError, AttributeError, RecursionError) as error:
        raise BadInput(f"{file} is not a tokenizer ({error})") from None
    if prefix:
        raise BadInput(f"{file}: BPE with the subword prefix '{prefix}' is not supported")


@contextmanager
def _panics(file: Path) -> Iterator[None]:
    """The library's panics are no Exceptions; say what a user can mend."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise BadInput(f"{file} is not a tokenizer that runs ({error})") from None
        raise


@contextmanager
def _silence() -> Iterator[None]:
    """Keep a panic from printing its backtrace: it writes to the file descriptor, past sys.stderr."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _vocabulary(tokenizer: Tokenizer) -> int:
    """Ids may have holes, so the largest counts."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def end_id(folder: Path) -> int:
    """The id of the end-of-text token, or of the eos_token that tokenizer_config.json names."""
    return _end(load_tokenizer(folder), Path(folder))


def _end(tokenizer: Tokenizer, folder: Path) -> int:
    token: Any = END
    config = folder / "tokenizer_config.json"
    if tokenizer.token_to_id(token) is None and config.is_file():
        try:
            token = json.loads(config.read_bytes()).get("eos_token")
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadInput(f"{config} cannot be read ({error})") from None
        token = token.get("content") if isinstance(token, dict) else token
    found = tokenizer.token_to_id(token) if isinstance(token, str) else None
    if found is None:
        raise BadInput(f"{folder}: the tokenizer has neither '{END}' nor an eos_token in tokenizer_config.json")
    return found


def tokenize(
    corpus: Corpus,
    vocabulary: int,
    tokenizer: Path | None = None,
    max_bytes: int | None = None,
    progress: bool = False,
) -> TokenizedCorpus:
    """The corpus as tokens, from the cache or made now.

    A tokenizer of that vocabulary is trained unless one is given, whose own vocabulary then counts. max_bytes limits
    the train split, and an eighth of it validation and test.
    """
    if max_bytes is not None and max_bytes < 1:
        raise BadInput(f"max_bytes is {max_bytes}: at least 1 is needed")
    home = Path(tokenizer) if tokenizer is not None else train_tokenizer(corpus, vocabulary, max_bytes)
    coder = _Coder(home)
    recipe = {
        "format": _FORMAT,
        "corpus": corpus.fingerprint(),
        "tokenizer": {"sha256": coder.sha256, "vocabulary": coder.vocabulary, "end": coder.end},
        "max_bytes": max_bytes,
    }
    folder = cache_folder() / "tokens" / _digest(recipe)[:32]
    manifest = _intact(folder)
    if manifest is None:
        corpus.check()  # before anything is written
        _build(folder, recipe, lambda place: _tokenize_into(place, corpus, coder, max_bytes, progress))
        manifest = json.loads((folder / _MANIFEST).read_bytes())
    return TokenizedCorpus(folder, manifest, home)


class _Coder:
    """A tokenizer, and how many bytes each of its tokens stands for if it is byte-level."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokenizer.json"
        self.tokenizer = load_tokenizer(folder)
        self.sha256 = _hash(self.file)
        self.vocabulary, self.end = _vocabulary(self.tokenizer), _end(self.tokenizer, folder)
        self.dtype = np.dtype(np.uint16 if self.vocabulary <= 1 << 16 else np.uint32)
        self._bytes = self._lengths() if _byte_level(json.loads(self.tokenizer.to_str())) else None

    def _lengths(self) -> np.ndarray:
        lengths = np.zeros(self.vocabulary, np.int64)
        for token, number in self.tokenizer.get_vocab(with_added_tokens=False).items():
            lengths[number] = len(token)  # each character stands for one byte
        for number, added in self.tokenizer.get_added_tokens_decoder().items():
            lengths[number] = len(added.content.encode())
        return lengths

    def encode(self, pieces: list[str]) -> list[np.ndarray]:
        with _panics(self.file):
            found = self.tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
        return [np.array(one.ids, self.dtype) for one in found]

    def accounted(self, ids: np.ndarray) -> int | None:
        """The bytes these tokens stand for; None if that cannot be said."""
        return None if self._bytes is None else int(self._bytes[ids].sum())


def _byte_level(description: dict[str, Any]) -> bool:
    """BPE over bytes that neither changes the text first nor puts a space before it."""
    first = description.get("pre_tokenizer") or {}
    steps = first.get("pretokenizers", [first])
    level = [step for step in steps if step.get("type") == "ByteLevel"]
    plain = bool(level) and not any(step.get("add_prefix_space") for step in level)
    return plain and description["model"].get("type") == "BPE" and description.get("normalizer") is None


def _tokenize_into(place: Path, corpus: Corpus, coder: _Coder, max_bytes: int | None, progress: bool) -> dict[str, Any]:
    limits = {name: max_bytes if name == "train" or not max_bytes else max(1, max_bytes // 8) for name in SPLITS}
    expected = {name: min(corpus.size(name)[1], limits[name] or sys.maxsize) for name in SPLITS}
    splits = {}
    with _bar(sum(expected.values()), progress) as advance:
        for name in SPLITS:
            splits[name] = _write_split(place, name, corpus.documents(name, limits[name]), coder, advance)
            seen = (splits[name]["documents"], splits[name]["bytes"])
            if seen != corpus.size(name) and (limits[name] is None or seen[1] < expected[name]):
                raise BadInput(f"corpus '{corpus.name}' changed while it was read: split {name}")
    sources = [{"name": one.name, "bytes": one.bytes, "sha256": one.sha256} for one in corpus.sources()]
    return {"name": corpus.name, "about": corpus.about, "sources": sources, "splits": splits}


def _write_split(
    place: Path, name: str, documents: Iterator[str], coder: _Coder, advance: Callable[[int], None]
) -> dict[str, Any]:
    starts, taken, accounted, count = array("q", [0]), 0, 0, 0
    end = np.array([coder.end], coder.dtype).tobytes()
    with (place / f"{name}.npy").open("wb") as file:
        _header(file, coder.dtype, 0)
        for batch in _batches(documents):
            encoded = coder.encode([piece for piece, _ in batch])
            for ids, (_, last) in zip(encoded, batch, strict=True):
                file.write(ids.tobytes() + (end if last else b""))
                accounted += coder.accounted(ids) or 0
                count += len(ids) + last
                if last:
                    starts.append(count)
            size = sum(len(piece.encode()) for piece, _ in batch)
            taken += size
            advance(size)
        file.seek(0)
        _header(file, coder.dtype, count)
    np.save(place / f"{name}.starts.npy", np.array(starts[:-1], np.int64))
    exact = coder.accounted(np.zeros(0, coder.dtype)) is not None
    if exact and accounted != taken:
        raise BadInput(f"{coder.file} loses text: {taken} bytes in, {accounted} accounted for")
    row = {"documents": len(starts) - 1, "bytes": taken, "tokens": count}
    return {**row, "bytes_accounted": accounted if exact else None}


def _header(file: BinaryIO, dtype: np.dtype, count: int) -> None:
    """The head of an .npy file; NumPy leaves room in it for the count to grow, so it can be written twice."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    )
    assert file.tell() == 128


def _batches(documents: Iterator[str]) -> Iterator[list[tuple[str, bool]]]:
    """Pieces, and whether each is the last of its document, about a megabyte at a time."""
    batch: list[tuple[str, bool]] = []
    size = 0
    for text in documents:
        left = len(text)
        for piece in _pieces(text):
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
    ids, counts_V = tokenized.split(name).ids, np.zeros(tokenized.vocabulary, np.int64)
    for start in range(0, len(ids), 1 << 24):  # bincount makes a wide copy of what it is given
        counts_V += np.bincount(ids[start : start + (1 << 24)], minlength=tokenized.vocabulary)
    return counts_V


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _intact(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder whose files are as it says; hashes are compared where that is cheap."""
    try:
        manifest = json.loads((folder / _MANIFEST).read_bytes())
        for name, about in manifest["files"].items():
            size = (folder / name).stat().st_size
            if size != about["bytes"] or (size < _CHEAP and _hash(folder / name) != about["sha256"]):
                return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return manifest


def _build(folder: Path, recipe: dict[str, Any], write: Callable[[Path], dict[str, Any]]) -> None:
    """Write a folder beside its place, with a manifest, and rename it there; nothing is left if that fails."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    place = folder.with_name(f".building-{folder.name}-{secrets.token_hex(8)}")
    place.mkdir()  # not mkdtemp, which would lock out everybody with whom the cache is shared
    try:
        found = write(place)
        files = {
            path.name: {"bytes": path.stat().st_size, "sha256": _hash(path)}
            for path in sorted(path for path in place.iterdir() if path.is_file())
        }
        (place / _MANIFEST).write_text(json.dumps({**recipe, **found, "files": files}, indent=2))
        for path in (*place.iterdir(), place):
            _sync(path)
        _put(place, folder)
        _sync(folder.parent)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _put(place: Path, folder: Path) -> None:
    if folder.exists() and _intact(folder) is None:
        damaged = place.with_name(f"{place.name}-damaged")
        with suppress(FileNotFoundError):  # another process may have done so already
            folder.rename(damaged)
        shutil.rmtree(damaged, ignore_errors=True)
    try:
        place.rename(folder)
    except OSError:
        if _intact(folder) is None:  # else another process was faster, and its folder is the same
            raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
