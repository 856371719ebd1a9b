"""Tokenizers: a byte-level BPE trained on a corpus, or the one in a folder; none is trusted to behave."""

import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders

from fieldlens.core.errors import BadInput
from fieldlens.data.corpus import Corpus
from fieldlens.storage.content_cache import build, cache_folder, digest, hash_of, verified_manifest

END = "<|endoftext|>"

FORMAT = 1
"""Of what the cache holds; a change makes every folder anew."""

_BYTES = 256
_PIECE = 1 << 12
_SPACE = "Ġ"  # as byte-level vocabularies write it
_LARGEST = 1 << 24


def train_tokenizer(corpus: Corpus, vocab_size: int, max_bytes: int | None = None) -> Path:
    """A byte-level BPE of the train split, as a Hugging Face folder in the cache."""
    if vocab_size < _BYTES + 1:
        raise BadInput(f"vocabulary is {vocab_size}: at least {_BYTES + 1} is needed, every byte and the end of text")
    recipe = {
        "format": FORMAT,
        "corpus": corpus.fingerprint(),
        "vocabulary": vocab_size,
        "max_bytes": max_bytes,
    }
    folder = cache_folder() / "tokenizers" / digest(recipe)[:32]
    if verified_manifest(folder) is None:
        if not corpus.size("train")[0]:  # reads everything, before anything is written
            raise BadInput(f"corpus '{corpus.name}' has no train split to train a tokenizer on")
        build(folder, recipe, lambda place: _train_into(place, corpus, vocab_size, max_bytes))
    return folder


def _train_into(place: Path, corpus: Corpus, vocab_size: int, max_bytes: int | None) -> dict[str, Any]:
    from tokenizers import models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # in pieces, because the time of training is quadratic in the longest word: a megabyte of letters takes an hour
    pieces = (piece for text in corpus.documents("train", max_bytes) for piece in pieces_of(text))
    tokenizer.train_from_iterator(pieces, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(place)
    return {}


def pieces_of(text: str, size: int = _PIECE) -> Iterator[str]:
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
    if _vocab_size(tokenizer) > _LARGEST:
        raise BadInput(f"{file}: the largest id is {_vocab_size(tokenizer) - 1}, allowed: less than {_LARGEST}")
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


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each token looks like behind the one before it: some lose their space where a text begins."""
    shown = []
    for before, one in zip([None, *ids], ids, strict=False):
        alone = tokenizer.decode([one], skip_special_tokens=False)
        if before is not None:
            left = tokenizer.decode([before], skip_special_tokens=False)
            both = tokenizer.decode([before, one], skip_special_tokens=False)
            alone = both.removeprefix(left) if both.startswith(left) and both.endswith(alone) else alone
        shown.append(alone)
    return shown


def _vocab_size(tokenizer: Tokenizer) -> int:
    """Ids may have holes, so the largest counts."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def eos_token_id(folder: Path) -> int:
    """The token that is put between documents: end-of-text, or the eos_token that tokenizer_config.json names."""
    return _end(load_tokenizer(folder), folder)


def _end(tokenizer: Tokenizer, folder: Path) -> int:
    found = eos_token_ids(tokenizer, folder)
    if not found:
        raise BadInput(f"{folder}: the tokenizer has neither '{END}' nor an eos_token in tokenizer_config.json")
    return found[0]


def eos_token_ids(tokenizer: Tokenizer, folder: Path) -> list[int]:
    """Every token that ends a text: end-of-text, and the eos_token, which in chats may be another."""
    config, tokens = folder / "tokenizer_config.json", list[Any]([END])
    if config.is_file():
        try:
            named = json.loads(config.read_bytes()).get("eos_token")
        except (ValueError, AttributeError, RecursionError) as error:
            raise BadInput(f"{config} cannot be read ({error})") from None
        tokens += [named.get("content") if isinstance(named, dict) else named]
    ids = [tokenizer.token_to_id(token) for token in tokens if isinstance(token, str)]
    return [found for found in dict.fromkeys(ids) if found is not None]


def bos_token_id(folder: Path) -> int | None:
    """The token that a tokenizer itself puts before every text, if it does so."""
    tokenizer = load_tokenizer(folder)
    bare, dressed = (tokenizer.encode("a", add_special_tokens=special).ids for special in (False, True))
    return dressed[0] if dressed and dressed[:1] != bare[:1] else None


class Coder:
    """A tokenizer, and how many bytes each of its tokens stands for if it is byte-level."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokenizer.json"
        self.tokenizer = load_tokenizer(folder)
        self.sha256 = hash_of(self.file)
        self.folder, self.vocab_size = folder, _vocab_size(self.tokenizer)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self._bytes = self._lengths() if _byte_level(json.loads(self.tokenizer.to_str())) else None

    def _lengths(self) -> np.ndarray:
        lengths = np.zeros(self.vocab_size, np.int64)
        for token, number in self.tokenizer.get_vocab(with_added_tokens=False).items():
            lengths[number] = len(token)  # each character stands for one byte
        for number, added in self.tokenizer.get_added_tokens_decoder().items():
            lengths[number] = len(added.content.encode())
        return lengths

    @cached_property
    def end(self) -> int:
        """The token that is put between documents."""
        return _end(self.tokenizer, self.folder)

    @property
    def exact(self) -> bool:
        """Whether every token stands for certain bytes, so that a text's bytes can be accounted for."""
        return self._bytes is not None

    @cached_property
    def cuttable(self) -> bool:
        """Whether no token reaches over a gap: every text of the vocabulary has the same ids whole and cut there."""
        if not self.exact:
            return False
        vocab, level = self.tokenizer.get_vocab(with_added_tokens=False), decoders.ByteLevel()
        texts = [level.decode([token]) for token in vocab if _SPACE in token[1:]]
        texts += [added.content for added in self.tokenizer.get_added_tokens_decoder().values()]
        gaps = ((text, at) for text in texts if (at := _last_gap(text, " ", 0, len(text))))
        return all(self._ids(text) == self._ids(text[:at], text[at:]) for text, at in gaps)

    def _ids(self, *pieces: str) -> list[int]:
        return [one for ids, _ in self.encode(list(pieces)) for one in ids.tolist()]

    def pieces(self, text: str) -> list[str]:
        """A text as it is encoded: in pieces if that changes no token."""
        return list(pieces_of(text)) if self.cuttable else [text]

    def whole(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """The tokens of a text, and how many bytes of it each stands for."""
        found = self.encode(self.pieces(text))
        return np.concatenate([ids for ids, _ in found]), np.concatenate([sizes for _, sizes in found])

    def encode(self, pieces: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """The tokens of each piece, and how many bytes of it each stands for."""
        with _panics(self.file):
            if self._bytes is not None:
                found = self.tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
                return [(ids := np.array(one.ids, self.dtype), self._bytes[ids]) for one in found]
            found = self.tokenizer.encode_batch(pieces, add_special_tokens=False)
        return [
            (np.array(one.ids, self.dtype), _sizes(piece, one.offsets))
            for piece, one in zip(pieces, found, strict=True)
        ]


def _sizes(text: str, offsets: list[tuple[int, int]]) -> np.ndarray:
    """Bytes from the end of one token to the end of the next; tokens that end together share theirs evenly."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    ends = np.concatenate([[0], np.cumsum(1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000))])
    if not offsets:
        return np.zeros(0, np.int64)
    reached, group_N, counts = np.unique(
        np.maximum.accumulate(ends[[stop for _, stop in offsets]]), return_inverse=True, return_counts=True
    )
    bytes_of_group = np.diff(reached, prepend=0)
    place_N = np.arange(len(offsets)) - (np.cumsum(counts) - counts)[group_N]
    return bytes_of_group[group_N] // counts[group_N] + (place_N < (bytes_of_group % counts)[group_N])


def _byte_level(description: dict[str, Any]) -> bool:
    """BPE over bytes that neither changes the text first nor puts a space before it."""
    first = description.get("pre_tokenizer") or {}
    steps = first.get("pretokenizers", [first])
    level = [step for step in steps if step.get("type") == "ByteLevel"]
    plain = bool(level) and not any(step.get("add_prefix_space") for step in level)
    return plain and description["model"].get("type") == "BPE" and description.get("normalizer") is None
