"""Tokenized corpora: encoding is lossless, the cache matches its manifest, and a bad tokenizer is refused."""

import fcntl
import io
import json
import math
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldlens.cli.corpus import corpus as command
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.data import tokenizer as tokenizer_module
from fieldlens.data import tokens
from fieldlens.data.corpus import SPLITS, Corpus, open_corpus
from fieldlens.data.tokenizer import END, eos_token_id, load_tokenizer, train_tokenizer
from fieldlens.data.tokens import tokenize, unigram_perplexity
from fieldlens.storage import content_cache as store
from fieldlens.storage.content_cache import cache_folder
from fieldlens.storage.folders import BUILDING, verified_manifest

TRAIN = [
    "the cat sat on the mat\n" + "            x = 1\n" * 20,
    "the dog\tsat on the log — été 猫",
    f"a{END}b",
    "x" * 9000,
]
VALIDATION, TEST = ["the cat\r\n\0 and the dog"], ["on the mat 😀"]


def jsonl(texts: list[str]) -> str:
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def write(folder: Path) -> Corpus:
    folder.mkdir(parents=True)
    for name, texts in zip(SPLITS, (TRAIN, VALIDATION, TEST), strict=True):
        (folder / f"{name}.jsonl").write_text(jsonl(texts))
    return open_corpus(str(folder))


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Corpus:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    return write(tmp_path / "small")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a tokenizer shared by the tests, which do not change it."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDLENS_CACHE", str(folder / "cache"))
        yield train_tokenizer(write(folder / "small"), 300, None)


def changed(trained: Path, place: Path, **changes: Any) -> Path:
    """Copy the tokenizer folder with changes to its tokenizer.json."""
    shutil.copytree(trained, place)
    described = json.loads((place / "tokenizer.json").read_text())
    (place / "tokenizer.json").write_text(json.dumps({**described, **changes}))
    return place


def test_documents_are_recovered_each_with_its_end_token(small: Corpus) -> None:
    tokenized = tokenize(small, 300)
    tokenizer = load_tokenizer(tokenized.tokenizer)
    for name, texts in zip(SPLITS, (TRAIN, VALIDATION, TEST), strict=True):
        split = tokenized.split(name)
        pieces = np.split(split.ids, split.starts[1:])
        assert [int(piece[-1]) for piece in pieces] == [tokenized.end] * len(texts)
        assert [tokenizer.decode(piece[:-1].tolist()) for piece in pieces] == texts
        assert split.lengths().tolist() == [len(piece) - 1 for piece in pieces]


def test_tokens_are_mapped_in_the_narrowest_dtype(small: Corpus) -> None:
    split = tokenize(small, 300).split("train")
    assert isinstance(split.ids, np.memmap)
    assert (split.ids.dtype, split.starts.dtype) == (np.uint16, np.int64)
    assert not split.ids.flags.writeable


def test_large_ids_are_mapped_in_a_wider_dtype(small: Corpus, trained: Path, tmp_path: Path) -> None:
    added = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    end = {"id": 70_000, "content": END, **added}
    model = json.loads((trained / "tokenizer.json").read_text())["model"]
    model["vocab"][END] = 70_000
    wide = changed(trained, tmp_path / "wide", added_tokens=[end], model=model)
    tokenized = tokenize(small, 0, wide)
    assert (tokenized.vocab_size, tokenized.end) == (70_001, 70_000)
    assert tokenized.split("test").ids.dtype == np.uint32
    assert tokenized.split("test").ids[-1] == 70_000


def test_an_end_of_text_in_the_text_is_plain_text(small: Corpus) -> None:
    tokenized = tokenize(small, 300)
    assert np.count_nonzero(tokenized.split("train").ids == tokenized.end) == len(TRAIN)


def test_the_manifest_describes_every_split_and_file(small: Corpus) -> None:
    tokenized = tokenize(small, 300)
    manifest = verified_manifest(tokenized.folder)
    assert manifest is not None
    assert manifest == tokenized.manifest
    for name, texts in zip(SPLITS, (TRAIN, VALIDATION, TEST), strict=True):
        row = manifest["splits"][name]
        assert row["documents"] == len(texts)
        assert row["bytes"] == row["bytes_accounted"] == sum(len(text.encode()) for text in texts)
        assert row["tokens"] == len(tokenized.split(name).ids)
    assert [source["name"] for source in manifest["sources"]] == ["test.jsonl", "train.jsonl", "validation.jsonl"]
    assert manifest["sources"][0]["sha256"] == small.sources()[0].sha256
    assert set(manifest["files"]) == {f"{name}{kind}.npy" for name in SPLITS for kind in ("", ".starts")}


def test_an_absent_split_has_no_tokens(small: Corpus, tmp_path: Path) -> None:
    (tmp_path / "small" / "test.jsonl").unlink()
    split = tokenize(open_corpus(str(tmp_path / "small")), 300).split("test")
    assert (len(split.ids), len(split.starts), len(split.lengths())) == (0, 0, 0)


@given(st.text(st.characters(codec="utf-8")))
@settings(max_examples=100, deadline=None)
def test_any_text_is_recovered(trained: Path, text: str) -> None:
    coder = tokenizer_module.Coder(trained)
    ((ids, sizes),) = coder.encode([text])
    assert coder.tokenizer.decode(ids.tolist()) == text
    assert coder.exact
    assert sizes.sum() == len(text.encode())


@given(st.text("ab .\n\té", max_size=60), st.integers(1, 20))
@settings(max_examples=200, deadline=None)
def test_pieces_make_up_the_text(text: str, size: int) -> None:
    pieces = list(tokenizer_module.pieces_of(text, size))
    assert "".join(pieces) == text
    assert all(len(piece) <= size for piece in pieces)


@given(st.lists(st.sampled_from(["the", "cat.", "  sat", " " * 12, "\n", " on", " é", "\t"]), max_size=40))
@settings(max_examples=100, deadline=None)
def test_cuts_at_gaps_do_not_change_tokens(trained: Path, words: list[str]) -> None:
    text = "x x".join(words)  # a gap in every 15 characters
    tokenizer = load_tokenizer(trained)
    pieces = [tokenizer.encode(piece).ids for piece in tokenizer_module.pieces_of(text, 20)]
    assert [token for piece in pieces for token in piece] == tokenizer.encode(text).ids


@pytest.mark.parametrize("where", ["vocabulary", "added"])
def test_a_text_whose_tokens_reach_over_gaps_is_not_cut(where: str, small: Corpus, tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    letters = {token: number for number, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges = [("t", "Ġ"), ("tĠ", "o")]
    crossing = [*letters, "tĠ", "tĠo"] if where == "vocabulary" else [*letters]
    vocab_size = {token: number for number, token in enumerate(crossing)}
    tokenizer = Tokenizer(models.BPE(vocab_size, merges if where == "vocabulary" else []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=where == "added")
    tokenizer.add_special_tokens([END])
    tokenizer.add_tokens(["t o"] if where == "added" else [])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    coder, text = tokenizer_module.Coder(tmp_path), "cat on mat " * 1000
    ids, sizes = coder.whole(text)
    assert ids.tolist() == tokenizer.encode(text).ids
    assert (coder.exact, coder.cuttable) == (True, False)
    assert sizes.sum() == len(text)
    (tmp_path / "small" / "test.jsonl").write_text(jsonl([text]))
    written = tokenize(open_corpus(str(tmp_path / "small")), 0, tmp_path).split("test")
    assert written.ids[:-1].tolist() == ids.tolist()


def test_a_text_is_cut_where_no_token_reaches_over_gaps(trained: Path) -> None:
    coder = tokenizer_module.Coder(trained)
    assert coder.cuttable
    assert max(map(len, coder.pieces("cat on mat " * 1000))) <= 4096


def test_batches_keep_documents_apart(small: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    whole = tokenize(small, 300).fingerprint
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "other"))
    monkeypatch.setattr(tokens, "_BATCH", 10)
    assert tokenize(small, 300).fingerprint == whole


def test_the_tokenizer_opens_in_transformers(trained: Path) -> None:
    from transformers import AutoTokenizer

    opened = AutoTokenizer.from_pretrained(trained)
    assert (opened.eos_token, opened.eos_token_id) == (END, eos_token_id(trained))
    assert opened("the cat")["input_ids"] == load_tokenizer(trained).encode("the cat").ids


def test_the_tokenizer_has_the_requested_size_and_every_byte(trained: Path) -> None:
    vocab = load_tokenizer(trained).get_vocab()
    assert sorted(vocab.values()) == list(range(300))
    assert len([token for token in vocab if len(token) == 1]) == 256


def test_training_is_deterministic_and_cached(small: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = train_tokenizer(small, 300, None)
    stamp = (first / "tokenizer.json").stat().st_ino
    assert (train_tokenizer(small, 300, None) / "tokenizer.json").stat().st_ino == stamp
    assert len({first, train_tokenizer(small, 299, None), train_tokenizer(small, 300, 50)}) == 3
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "other"))
    second = train_tokenizer(small, 300, None)
    assert second != first
    assert (second / "tokenizer.json").read_bytes() == (first / "tokenizer.json").read_bytes()


def test_tokens_are_cached_by_content(small: Corpus, tmp_path: Path) -> None:
    first = tokenize(small, 300)
    stamp = (first.folder / "train.npy").stat().st_ino
    again = tokenize(open_corpus(str(shutil.copytree(tmp_path / "small", tmp_path / "moved"))), 300)
    assert (again.folder, again.fingerprint) == (first.folder, first.fingerprint)
    assert (again.folder / "train.npy").stat().st_ino == stamp
    (tmp_path / "moved" / "test.jsonl").write_text(jsonl(["another"]))
    other = tokenize(open_corpus(str(tmp_path / "moved")), 300)
    assert other.folder != first.folder
    assert other.fingerprint != first.fingerprint


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest"])
def test_damaged_tokens_are_rebuilt(damage: str, small: Corpus) -> None:
    first = tokenize(small, 300)
    good = (first.folder / "train.npy").read_bytes()
    bad = {"flip": good[:-1] + bytes([good[-1] ^ 1]), "cut": good[:-2], "manifest": good}.get(damage)
    if bad is None:
        (first.folder / "train.npy").unlink()
    else:
        (first.folder / "train.npy").write_bytes(bad)
    if damage == "manifest":
        (first.folder / "manifest.json").write_text("[]")
    again = tokenize(small, 300)
    assert again.folder == first.folder
    assert (again.folder / "train.npy").read_bytes() == good
    assert again.fingerprint == first.fingerprint


def test_a_damaged_tokenizer_is_rebuilt(small: Corpus) -> None:
    folder = train_tokenizer(small, 300, None)
    good = (folder / "tokenizer.json").read_bytes()
    (folder / "tokenizer.json").write_bytes(good[:100])
    assert (train_tokenizer(small, 300, None) / "tokenizer.json").read_bytes() == good


def test_the_slower_process_keeps_the_folder_of_the_faster(small: Corpus, tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "thing"

    def write_while_another_finishes(place: Path) -> dict[str, Any]:
        if not folder.exists():
            store.build(folder, {}, lambda other: {"winner": (other / "x").write_text("x")})
        (place / "x").write_text("x")
        return {"winner": 0}

    store.build(folder, {}, write_while_another_finishes)
    manifest = verified_manifest(folder)
    assert manifest is not None
    assert manifest["winner"] == 1
    assert os.listdir(folder.parent) == ["thing"]


def test_a_failure_leaves_no_files(small: Corpus, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tokens, "_write_split", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tokenize(small, 300)
    assert list((tmp_path / "cache" / "tokens").iterdir()) == []


@pytest.mark.parametrize("ready", [True, False])
def test_nothing_is_written_for_a_bad_corpus(ready: bool, small: Corpus, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "small" / "test.jsonl").write_bytes(b"\xff")
    with pytest.raises(BadInput, match="invalid UTF-8 at byte 0"):
        tokenize(open_corpus(str(tmp_path / "small")), 300, trained if ready else None)
    assert not cache_folder().exists()


def test_a_corpus_that_changes_while_read_is_refused(small: Corpus, tmp_path: Path) -> None:
    small.check()
    (tmp_path / "small" / "validation.jsonl").write_text(jsonl(["shorter"]))
    with pytest.raises(BadInput, match=r"split validation of corpus .* changed while it was being read"):
        tokenize(small, 300)


def test_max_bytes_limits_train_and_an_eighth_of_it_the_others(small: Corpus, tmp_path: Path) -> None:
    for name in SPLITS:
        (tmp_path / "small" / f"{name}.jsonl").write_text(jsonl([f"{number:010}" for number in range(30)]))
    splits = tokenize(open_corpus(str(tmp_path / "small")), 300, max_bytes=161).manifest["splits"]
    assert [splits[name]["documents"] for name in SPLITS] == [17, 2, 2]


def test_a_limit_of_zero_is_refused(small: Corpus) -> None:
    with pytest.raises(BadInput, match="max_bytes must be at least 1, got 0"):
        tokenize(small, 300, max_bytes=0)


def test_one_enormous_word_is_tokenized(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "train.txt").write_text("ab" * (1 << 19))
    tokenized = tokenize(open_corpus(str(tmp_path / "text")), 270)
    assert tokenized.manifest["splits"]["train"]["bytes_accounted"] == 1 << 20
    assert tokenized.manifest["splits"]["train"]["documents"] == 1


def test_a_given_tokenizer_is_used(small: Corpus, trained: Path) -> None:
    tokenized = tokenize(small, 1, trained)
    assert (tokenized.tokenizer, tokenized.vocab_size) == (trained, 300)
    assert not (cache_folder() / "tokenizers").exists()


def test_a_tokenizer_with_a_normalizer_has_no_byte_count(small: Corpus, trained: Path, tmp_path: Path) -> None:
    folder = changed(trained, tmp_path / "lower", normalizer={"type": "Lowercase"})
    assert tokenize(small, 300, folder).manifest["splits"]["test"]["bytes_accounted"] is None


def test_a_tokenizer_that_loses_bytes_is_refused(small: Corpus, trained: Path, tmp_path: Path) -> None:
    model = json.loads((trained / "tokenizer.json").read_text())["model"]
    model["vocab"] = {token: number for token, number in model["vocab"].items() if len(token) == 1 and token != "x"}
    folder = changed(trained, tmp_path / "lossy", model={**model, "merges": []})
    with pytest.raises(BadInput, match=r"does not preserve text: the text has \d+ bytes, its tokens \d+"):
        tokenize(small, 300, folder)


def test_truncation_in_a_tokenizer_is_switched_off(small: Corpus, trained: Path, tmp_path: Path) -> None:
    cut = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    folder = changed(trained, tmp_path / "cut", truncation=cut)
    assert tokenize(small, 300, folder).fingerprint == tokenize(small, 300, trained).fingerprint


@pytest.mark.parametrize("vocab_size", [256, 0, -1])
def test_a_vocabulary_below_the_bytes_is_refused(vocab_size: int, small: Corpus) -> None:
    with pytest.raises(BadInput, match=rf"vocabulary must be at least 257 .*, got {vocab_size}$"):
        tokenize(small, vocab_size)
    assert tokenize(small, 257).vocab_size == 257


def test_a_corpus_without_train_split_trains_no_tokenizer(small: Corpus, tmp_path: Path) -> None:
    (tmp_path / "small" / "train.jsonl").unlink()
    with pytest.raises(BadInput, match="corpus 'small' has no train split to train a tokenizer on"):
        tokenize(open_corpus(str(tmp_path / "small")), 300)


BPE: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0, "é": 1, "aé": 2}, "merges": []}
CRAFTED = {
    "panic": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": "AAAA"}, "model": BPE},
    "abort": {"model": {**BPE, "merges": ["a é"], "continuing_subword_prefix": "#"}},
    "regex": {
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False},
        "model": BPE,
    },
    "nothing": {},
    "list": [],
    "nested": "[" * 100_000,
    "model": {"model": 3},
}


@pytest.mark.parametrize("kind", CRAFTED)
def test_a_crafted_tokenizer_is_refused_quietly(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    content = CRAFTED[kind]
    (tmp_path / "tokenizer.json").write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(BadInput, match=r"tokenizer.json( is not a (working )?tokenizer|: BPE with the subword prefix)"):
        load_tokenizer(tmp_path)
    assert capfd.readouterr().err == ""


def test_a_panic_while_encoding_is_refused(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        pass

    class Panicking:
        def encode_batch_fast(self, *_: Any, **__: Any) -> None:
            raise PanicException("index out of bounds")

    coder = tokenizer_module.Coder(trained)
    monkeypatch.setattr(coder, "tokenizer", Panicking())
    with pytest.raises(BadInput, match=r"is not a working tokenizer \(index out of bounds"):
        coder.encode(["a"])


def test_an_interrupt_is_not_reported_as_a_bad_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), tokenizer_module._panics_as_bad_input(tmp_path):
        raise KeyboardInterrupt


def test_an_absurd_id_is_refused(trained: Path, tmp_path: Path) -> None:
    folder = changed(trained, tmp_path / "far", model={**BPE, "vocab": {"a": 4_000_000_000}}, added_tokens=[])
    with pytest.raises(BadInput, match="token ids must be less than 16777216, the largest is 4000000000"):
        load_tokenizer(folder)


def test_a_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"is not a tokenizer folder: it has no tokenizer.json"):
        load_tokenizer(tmp_path)


def test_folders_of_killed_builders_are_removed(tmp_path: Path) -> None:
    """If they are old and not locked by a running process."""
    left, held, new = (tmp_path / f"{BUILDING}{name}" for name in ("left", "held", "new"))
    for place in (left, held, new):
        place.mkdir()
    for place in (left, held):
        os.utime(place, (0, 0))
    handle = os.open(held, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    store.build(tmp_path / "made", {}, lambda place: {})
    os.close(handle)
    assert sorted(path.name for path in tmp_path.iterdir()) == [held.name, new.name, "made"]


@pytest.mark.parametrize("eos", ["é", {"content": "é", "special": True}])
def test_the_end_token_falls_back_to_the_eos_token(eos: object, trained: Path, tmp_path: Path) -> None:
    folder = changed(trained, tmp_path / "eos", model=BPE, added_tokens=[])
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    assert eos_token_id(folder) == 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ('{"eos_token": "nope"}', "has neither '<.endoftext.>' nor an eos_token"),
        ('{"eos_token": 3}', "has neither"),
        ("{}", "has neither"),
        ("[]", r"tokenizer_config.json cannot be read"),
        ("{", r"tokenizer_config.json cannot be read"),
    ],
)
def test_a_tokenizer_without_end_token_is_refused(config: str, message: str, trained: Path, tmp_path: Path) -> None:
    folder = changed(trained, tmp_path / "endless", model=BPE, added_tokens=[])
    (folder / "tokenizer_config.json").write_text(config)
    with pytest.raises(BadInput, match=message):
        eos_token_id(folder)


def test_unigram_perplexity_matches_the_formula(small: Corpus) -> None:
    tokenized = tokenize(small, 300)
    train = Counter(tokenized.split("train").ids.tolist())
    validation = tokenized.split("validation").ids.tolist()
    total = sum(train.values()) + tokenized.vocab_size
    expected = math.exp(-sum(math.log((train[token] + 1) / total) for token in validation) / len(validation))
    assert unigram_perplexity(tokenized) == pytest.approx(expected, rel=1e-12)


def test_no_validation_split_has_no_perplexity(small: Corpus, tmp_path: Path) -> None:
    (tmp_path / "small" / "validation.jsonl").unlink()
    with pytest.raises(BadInput, match="corpus 'small' has no validation split to compute a perplexity on"):
        unigram_perplexity(tokenize(open_corpus(str(tmp_path / "small")), 300))


def test_an_unknown_split_is_refused(small: Corpus) -> None:
    with pytest.raises(BadInput, match="unknown split 'tain': did you mean 'train'"):
        tokenize(small, 300).split("tain")


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("FIELDLENS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "fieldlens"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "fieldlens"


def test_the_bar_is_for_terminals_only(small: Corpus, capfd: pytest.CaptureFixture[str]) -> None:
    tokenize(small, 300, progress=True)
    assert capfd.readouterr() == ("", "")


def test_the_bar_shows_rate_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with tokens._progress_bar(4000, progress=True) as advance:
        for _ in range(4):
            advance(1000)
    assert re.search(r"4.0/4.0 kB\S* \S*[\d.]+ \wB/s\S* \S*0:00:00", terminal.getvalue())


def test_the_command_lists_what_is_built_in(capsys: pytest.CaptureFixture[str]) -> None:
    command()
    assert "stdlib" in capsys.readouterr().out
    command(as_json=True)
    assert list(json.loads(capsys.readouterr().out)["corpora"]) == ["stdlib", "fieldlens"]


def test_the_command_inspects_a_corpus(small: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command(str(tmp_path / "small"), vocab_size=300, as_json=True, machine=Machine(threads=1))
    report = json.loads(capsys.readouterr().out)
    tokenized = tokenize(small, 300)
    assert report["fingerprint"] == tokenized.fingerprint
    assert report["splits"]["train"]["documents"] == len(TRAIN)
    assert report["splits"]["train"]["lengths"]["100%"] == tokenized.split("train").lengths().max()
    command(str(tmp_path / "small"), tokenizer=tokenized.tokenizer)
    output = capsys.readouterr().out
    assert tokenized.fingerprint in output
    assert f"{sum(len(text.encode()) for text in TRAIN):,}" in output


def test_the_command_shows_an_absent_split(small: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small" / "test.jsonl").unlink()
    command(str(tmp_path / "small"), vocab_size=300)
    assert "test " in capsys.readouterr().out


def test_a_character_s_bytes_are_shared_by_its_tokens(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokenizer = Tokenizer(models.BPE({token: n for n, token in enumerate(pre_tokenizers.ByteLevel.alphabet())}, []))
    tokenizer.normalizer = normalizers.NFC()  # so it is not byte-level in the exact sense
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([END])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    coder = tokenizer_module.Coder(tmp_path)
    assert not coder.exact
    ((ids, sizes),) = coder.encode(["a\N{GRINNING FACE}b \N{LATIN SMALL LETTER E WITH ACUTE}"])
    assert sizes.tolist() == [1, 1, 1, 1, 1, 1, 1, 1, 1]
    assert len(ids) == 9
