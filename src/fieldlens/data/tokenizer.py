"""Tokenizers: a byte-level BPE trained on a corpus, or one loaded and validated from a folder."""

import json
import math
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tokenizers import Tokenizer, decoders

from fieldlens.core.errors import BadInput
from fieldlens.core.faults import machine_fault
from fieldlens.data.corpus import Corpus
from fieldlens.storage.atomic import hash_of
from fieldlens.storage.content_cache import build, cache_folder
from fieldlens.storage.folders import verified_manifest
from fieldlens.storage.sealed import digest

END = "<|endoftext|>"

FORMAT = 1
"""Version of the cached files; a new version invalidates every cached folder."""

_BYTES = 256
_PIECE = 1 << 12
_AT_ONCE = 256
_SPACE = "Ġ"  # a space in byte-level vocabularies
_LARGEST = 1 << 24
_GROWTH = 1000
"""How many times longer the rules of a tokenizer may make a text."""


def train_tokenizer(corpus: Corpus, vocab_size: int, max_bytes: int | None = None) -> Path:
    """Train a byte-level BPE on the train split; return its Hugging Face folder in the cache."""
    if vocab_size < _BYTES + 1:
        raise BadInput(
            f"vocabulary must be at least {_BYTES + 1} ({_BYTES} bytes and the end-of-text token), got {vocab_size}"
        )
    if vocab_size > _LARGEST:
        raise BadInput(f"vocabulary must be at most {_LARGEST:,}, got {vocab_size:,}")
    recipe = {
        "format": FORMAT,
        "corpus": corpus.fingerprint(),
        "vocabulary": vocab_size,
        "max_bytes": max_bytes,
    }
    folder = cache_folder() / "tokenizers" / digest(recipe)[:32]
    if verified_manifest(folder) is None:
        if not corpus.size("train")[0]:  # validates the whole corpus before anything is written
            raise BadInput(f"corpus '{corpus.name}' has no train split to train a tokenizer on")
        build(folder, recipe, lambda target: _train_into(target, corpus, vocab_size, max_bytes))
    return folder


def _train_into(folder: Path, corpus: Corpus, vocab_size: int, max_bytes: int | None) -> dict[str, Any]:
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
    # in pieces: training time is quadratic in the longest word, and a megabyte of letters takes an hour
    pieces = (piece for text in corpus.documents("train", max_bytes) for piece in pieces_of(text))
    tokenizer.train_from_iterator(pieces, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END).save_pretrained(folder)
    return {}


def pieces_of(text: str, size: int = _PIECE) -> Iterator[str]:
    """Cut a document into pieces of at most `size` characters, at boundaries that no token spans.

    A cut is before the first space after a word, else before a newline, else at the size limit.
    """
    start = 0
    while len(text) - start > size:
        cut = _last_gap(text, " ", start, start + size) or _last_gap(text, "\n", start, start + size) or start + size
        yield text[start:cut]
        start = cut
    yield text[start:]


def _last_gap(text: str, gap: str, start: int, end: int) -> int | None:
    """Return the last index in (start, end] where this character follows a non-space character."""
    index = text.rfind(gap, start + 1, end + 1)
    while index > start and text[index - 1].isspace():
        index = text.rfind(gap, start + 1, index)
    return index if index > start else None


def load_tokenizer(folder: Path) -> Tokenizer:
    """Load the tokenizer of a Hugging Face folder, without truncation, padding or special tokens parsed from text."""
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        raise BadInput(f"{folder} is not a tokenizer folder: it has no tokenizer.json")
    _refuse_hostile(file)
    with _panics_as_bad_input(file), _silent_stderr():
        tokenizer = Tokenizer.from_file(str(file))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        tokenizer.encode("Does it 1, run?\n", add_special_tokens=False)
    if _vocab_size(tokenizer) > _LARGEST:
        raise BadInput(f"{file}: token ids must be less than {_LARGEST}, the largest is {_vocab_size(tokenizer) - 1}")
    return tokenizer


def _refuse_hostile(file: Path) -> None:
    """Reject what makes the library abort the process: BPE with a subword prefix, rules that multiply the text."""
    try:
        description = json.loads(file.read_bytes())
        model = description.get("model") or {}
        prefix = model.get("continuing_subword_prefix") if "merges" in model else None
        growth = max(_growth(description.get(key)) for key in ("normalizer", "pre_tokenizer", "decoder"))
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise BadInput(f"{file} is not a tokenizer ({error})") from None
    if prefix:
        raise BadInput(f"{file}: BPE with the subword prefix '{prefix}' is not supported")
    if growth > _GROWTH:
        raise BadInput(f"{file}: its rules can make a text {growth:,} times longer, at most {_GROWTH} times is allowed")


def _growth(rule: Any) -> int:
    """How many times longer a rule of a tokenizer, with the rules in it, can make a text."""
    if isinstance(rule, list):
        return math.prod(map(_growth, rule))
    if not isinstance(rule, dict):
        return 1
    inserted = max((len(rule[key]) for key in ("content", "prepend") if isinstance(rule.get(key), str)), default=1)
    inner = math.prod(_growth(value) for value in rule.values() if isinstance(value, list | dict))
    return max(1, inserted) * inner


@contextmanager
def _panics_as_bad_input(file: Path) -> Iterator[None]:
    """Convert errors of the library to BadInput; its panics are not subclasses of Exception."""
    try:
        yield
    except BaseException as error:
        if fault := machine_fault(error):
            raise fault from error
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise BadInput(f"{file} is not a working tokenizer ({error})") from None
        raise


@contextmanager
def _silent_stderr() -> Iterator[None]:
    """Hide the backtrace of a panic, which is written to the file descriptor and bypasses sys.stderr."""
    sys.stderr.flush()
    saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)
        os.close(null)


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Decode each token in the context of the previous one: some tokens lose their space at the start of a text."""
    texts = []
    for previous, token in zip([None, *ids], ids, strict=False):
        text = tokenizer.decode([token], skip_special_tokens=False)
        if previous is not None:
            prefix = tokenizer.decode([previous], skip_special_tokens=False)
            both = tokenizer.decode([previous, token], skip_special_tokens=False)
            text = both.removeprefix(prefix) if both.startswith(prefix) and both.endswith(text) else text
        texts.append(text)
    return texts


def _vocab_size(tokenizer: Tokenizer) -> int:
    """Return the largest id plus one; ids need not be contiguous."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1


def eos_token_id(folder: Path) -> int:
    """Return the token placed between documents: end-of-text, or the eos_token of tokenizer_config.json."""
    return _first_eos(load_tokenizer(folder), folder)


def _first_eos(tokenizer: Tokenizer, folder: Path) -> int:
    ids = eos_token_ids(tokenizer, folder)
    if not ids:
        raise BadInput(f"{folder}: the tokenizer has neither '{END}' nor an eos_token in tokenizer_config.json")
    return ids[0]


def eos_token_ids(tokenizer: Tokenizer, folder: Path) -> list[int]:
    """Return every token that ends a text: end-of-text and the eos_token, which may differ in chat models."""
    ids = [tokenizer.token_to_id(END), _named_token(tokenizer, _tokenizer_config(folder), "eos_token")]
    return [token_id for token_id in dict.fromkeys(ids) if token_id is not None]


def _tokenizer_config(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json; empty if there is none."""
    path = folder / "tokenizer_config.json"
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise BadInput(f"{path} cannot be read (expected an object)")
    return config


def _named_token(tokenizer: Tokenizer, config: dict[str, Any], name: str) -> int | None:
    """The id of the bos_token or eos_token of a configuration, which is a text or an object."""
    token = config.get(name)
    token = token.get("content") if isinstance(token, dict) else token
    return tokenizer.token_to_id(token) if isinstance(token, str) else None


class Bos(NamedTuple):
    """The token before every text, and who says so."""

    id: int | None
    source: str


def find_bos(folder: Path) -> Bos:
    """The token to put before every text: as `add_bos_token` says, else as the tokenizer itself does."""
    tokenizer, config = load_tokenizer(folder), _tokenizer_config(folder)
    plain, special = (tokenizer.encode("a", add_special_tokens=add).ids for add in (False, True))
    added = special[0] if special and special[:1] != plain[:1] else None
    adds, named = config.get("add_bos_token"), _named_token(tokenizer, config, "bos_token")
    place = f"add_bos_token of {config.get('bos_source', 'tokenizer_config.json')}"
    if adds is False:
        return Bos(None, place)
    if adds is True and (named is not None or added is not None):
        return Bos(added if named is None else named, place)
    return Bos(added, "tokenizer.json")


def bos_token_id(folder: Path) -> int | None:
    """The token to put before every text, or None."""
    return find_bos(folder).id


class Coder:
    """A tokenizer that also counts the bytes of text that each token represents."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "tokenizer.json"
        self.tokenizer = load_tokenizer(folder)
        self.sha256 = hash_of(self.file)
        self.folder, self.vocab_size = folder, _vocab_size(self.tokenizer)
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self._token_bytes = self._count_bytes() if _byte_level(json.loads(self.tokenizer.to_str())) else None

    def _count_bytes(self) -> np.ndarray:
        sizes = np.zeros(self.vocab_size, np.int64)
        for token, token_id in self.tokenizer.get_vocab(with_added_tokens=False).items():
            sizes[token_id] = len(token)  # one character per byte
        for token_id, added in self.tokenizer.get_added_tokens_decoder().items():
            sizes[token_id] = len(added.content.encode())
        return sizes

    @cached_property
    def end(self) -> int:
        """The token placed between documents."""
        return _first_eos(self.tokenizer, self.folder)

    @property
    def exact(self) -> bool:
        """Whether every token represents a fixed number of bytes, so that encoded bytes can be checked."""
        return self._token_bytes is not None

    @cached_property
    def cuttable(self) -> bool:
        """Whether no token spans a gap: each vocabulary text has the same ids when encoded whole and cut there."""
        if not self.exact:
            return False
        vocab, byte_level = self.tokenizer.get_vocab(with_added_tokens=False), decoders.ByteLevel()
        texts = [byte_level.decode([token]) for token in vocab if _SPACE in token[1:]]
        texts += [added.content for added in self.tokenizer.get_added_tokens_decoder().values()]
        gaps = ((text, index) for text in texts if (index := _last_gap(text, " ", 0, len(text))))
        return all(self._ids(text) == self._ids(text[:index], text[index:]) for text, index in gaps)

    def _ids(self, *pieces: str) -> list[int]:
        return [token for ids, _ in self.encode(list(pieces)) for token in ids.tolist()]

    def pieces(self, text: str) -> list[str]:
        """Cut a text into pieces if that changes no token."""
        return list(pieces_of(text)) if self.cuttable else [text]

    def whole(self, text: str) -> tuple[np.ndarray, np.ndarray]:
        """Encode a text: its tokens and the number of bytes of each."""
        encoded: list[tuple[np.ndarray, np.ndarray]] = []
        pieces = self.pieces(text)
        for start in range(0, len(pieces), _AT_ONCE):  # the library's own encodings take 100 times the text
            encoded += self.encode(pieces[start : start + _AT_ONCE])
        return np.concatenate([ids for ids, _ in encoded]), np.concatenate([sizes for _, sizes in encoded])

    def encode(self, pieces: list[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """Encode each piece: its tokens and the number of bytes of each."""
        with _panics_as_bad_input(self.file):
            if self._token_bytes is not None:
                encodings = self.tokenizer.encode_batch_fast(pieces, add_special_tokens=False)
                return [(ids := np.array(encoding.ids, self.dtype), self._token_bytes[ids]) for encoding in encodings]
            encodings = self.tokenizer.encode_batch(pieces, add_special_tokens=False)
        return [
            (np.array(encoding.ids, self.dtype), _sizes(piece, encoding.offsets))
            for piece, encoding in zip(pieces, encodings, strict=True)
        ]


def _sizes(text: str, offsets: list[tuple[int, int]]) -> np.ndarray:
    """Return the size of each token: the bytes from the end of the previous token to its own end.

    Tokens with the same end share these bytes evenly.
    """
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    ends = np.concatenate([[0], np.cumsum(1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000))])
    if not offsets:
        return np.zeros(0, np.int64)
    group_ends, group_N, counts = np.unique(
        np.maximum.accumulate(ends[[stop for _, stop in offsets]]), return_inverse=True, return_counts=True
    )
    group_bytes = np.diff(group_ends, prepend=0)
    rank_N = np.arange(len(offsets)) - (np.cumsum(counts) - counts)[group_N]
    return group_bytes[group_N] // counts[group_N] + (rank_N < (group_bytes % counts)[group_N])


def _byte_level(description: dict[str, Any]) -> bool:
    """Whether this is a byte-level BPE without a normalizer and without an added leading space."""
    pre_tokenizer = description.get("pre_tokenizer") or {}
    steps = pre_tokenizer.get("pretokenizers", [pre_tokenizer])
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    unchanged = bool(byte_level) and not any(step.get("add_prefix_space") for step in byte_level)
    return unchanged and description["model"].get("type") == "BPE" and description.get("normalizer") is None
