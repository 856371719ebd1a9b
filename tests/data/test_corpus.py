"""Corpora: all formats give the same documents, splits are stable, and damaged input is refused."""

import gzip
import json
import os
import platform
import struct
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldlens.core.errors import BadInput
from fieldlens.data import documents
from fieldlens.data.corpus import SPLITS, Corpus, open_corpus

TEXTS = [f"document {number}" for number in range(60)]


def all_documents(corpus: Corpus) -> list[str]:
    return sorted(text for split in SPLITS for text in corpus.documents(split))


def jsonl(texts: list[str]) -> bytes:
    return "".join(json.dumps({"text": text, "meta": 1}) + "\n" for text in texts).encode()


def zst(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True).compress(data)


def write_files(folder: Path, **files: str | bytes) -> Path:
    """Write files into a folder; __ in a name means a dot, so that names can be keywords."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


@pytest.mark.parametrize(
    ("name", "pack"),
    [("a.jsonl", bytes), ("a.jsonl.gz", gzip.compress), ("a.jsonl.zst", zst), ("A.JSONL.GZ", gzip.compress)],
)
def test_a_line_of_jsonl_is_a_document(name: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pack(jsonl(TEXTS)))
    assert all_documents(open_corpus(str(tmp_path / name))) == sorted(TEXTS)


@pytest.mark.parametrize(("suffix", "pack"), [("txt", bytes), ("txt.gz", gzip.compress), ("zst", zst)])
def test_a_text_file_is_a_document(suffix: str, pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number:02}.{suffix}").write_bytes(pack(text.encode()))
    assert all_documents(open_corpus(str(tmp_path))) == sorted(TEXTS)


def test_folders_are_read_recursively_in_order_without_hidden_files(tmp_path: Path) -> None:
    write_files(tmp_path, b="b", c__txt="c", __hidden="no")
    write_files(tmp_path / "a" / "deep", x="x")
    write_files(tmp_path / ".git", y="no")
    assert [source.name for source in open_corpus(str(tmp_path)).sources()] == ["a/deep/x", "b", "c.txt"]


@pytest.mark.parametrize("name", ["validation", "valid", "val", "validation-00000-of-00001"])
def test_named_files_keep_their_split(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, train__jsonl=jsonl(["a", "b"]), test__txt="d", README__md="about")
    (tmp_path / f"{name}.txt").write_text("c")
    corpus = open_corpus(str(tmp_path))
    assert [list(corpus.documents(split)) for split in SPLITS] == [["a", "b"], ["c"], ["d"]]
    assert corpus.about["split"] == "as named"


def test_named_folders_keep_their_split(tmp_path: Path) -> None:
    for split in SPLITS:
        write_files(tmp_path / split, x__txt=split)
    corpus = open_corpus(str(tmp_path))
    assert [list(corpus.documents(split)) for split in SPLITS] == [["train"], ["validation"], ["test"]]


def test_an_absent_split_has_no_documents(tmp_path: Path) -> None:
    corpus = open_corpus(str(write_files(tmp_path, train__txt="a")))
    assert list(corpus.documents("test")) == []
    assert corpus.size("validation") == (0, 0)


def test_another_file_disables_named_splits(tmp_path: Path) -> None:
    corpus = open_corpus(str(write_files(tmp_path, train__py="a", test__py="b", model__py="c")))
    assert corpus.about["split"] == "by document, rule 1"
    assert [corpus.size(split) for split in SPLITS] == [(1, 1), (1, 1), (1, 1)]


def test_a_file_without_split_among_named_splits_is_refused(tmp_path: Path) -> None:
    """Splitting by document because of it would put test text into train."""
    write_files(tmp_path, train__jsonl='{"text": "a"}', test__jsonl='{"text": "b"}', SHA256SUMS="c")
    with pytest.raises(
        BadInput, match="SHA256SUMS belongs to no split, but the corpus has train and test files: move it"
    ):
        open_corpus(str(tmp_path))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.tgz", "a.zip"])
def test_an_archive_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"whatever")
    with pytest.raises(BadInput, match="is an archive: unpack it first"):
        open_corpus(str(tmp_path))


def test_documents_are_split_by_their_hash_in_their_order(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl(TEXTS))
    corpus = open_corpus(str(tmp_path / "a.jsonl"))
    split = {name: list(corpus.documents(name)) for name in SPLITS}
    assert [len(split[name]) for name in SPLITS] == [54, 3, 3]
    assert split["train"] == [text for text in TEXTS if text in split["train"]]
    (tmp_path / "b.jsonl").write_bytes(jsonl(TEXTS[::-1]))
    reversed_corpus = open_corpus(str(tmp_path / "b.jsonl"))
    assert {name: list(reversed_corpus.documents(name))[::-1] for name in SPLITS} == split


@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1), min_size=3, max_size=50, unique=True))
@settings(max_examples=30, deadline=None)
def test_every_document_is_in_exactly_one_split(texts: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.jsonl")
        path.write_bytes(jsonl(texts))
        corpus = open_corpus(str(path))
        assert all_documents(corpus) == sorted(texts)
        assert all(corpus.size(split)[0] for split in SPLITS)
        assert sum(corpus.size(split)[1] for split in SPLITS) == sum(len(text.encode()) for text in texts)


@pytest.mark.parametrize(("limit", "count"), [(1, 1), (4, 1), (5, 2), (8, 2), (9, 3), (100, 3)])
def test_max_bytes_ends_with_the_document_that_reaches_it(limit: int, count: int, tmp_path: Path) -> None:
    corpus = open_corpus(str(write_files(tmp_path, train__jsonl=jsonl(["éé", "abcd", "x"]))))
    assert len(list(corpus.documents("train", limit))) == count


@given(copies=st.lists(st.integers(1, 40), min_size=3, max_size=30))
@settings(max_examples=40, deadline=None)
def test_copies_of_a_text_share_its_split(copies: list[int]) -> None:
    texts = [f"text {number}" for number, count in enumerate(copies) for _ in range(count)]
    with tempfile.TemporaryDirectory() as folder:
        corpus = open_corpus(str(write_files(Path(folder), all__jsonl=jsonl(texts))))
        splits = [set(corpus.documents(split)) for split in SPLITS]
        assert all_documents(corpus) == sorted(texts)
    assert all(splits)
    assert sum(map(len, splits)) == len(copies)


def test_copies_alone_cannot_be_split(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has 2 documents \\(duplicates count once\\), but splitting needs at least 3"):
        open_corpus(str(write_files(tmp_path, all__jsonl=jsonl(["a", "b"] * 20)))).check()


def test_json_in_the_middle_of_a_name_is_allowed(tmp_path: Path) -> None:
    write_files(tmp_path, train__json__txt="a", validation__txt="b", test__txt="c")
    assert list(open_corpus(str(tmp_path)).documents("train")) == ["a"]


def test_linked_folders_are_read_once(tmp_path: Path) -> None:
    write_files(tmp_path / "elsewhere", a__txt="1")
    for number in "234":
        write_files(tmp_path / "corpus" / "real", **{f"b{number}__txt": number})
    (tmp_path / "corpus" / "linked").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "linked-too").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "real" / "again").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "corpus" / "real" / "loop").symlink_to(tmp_path / "corpus")
    assert all_documents(open_corpus(str(tmp_path / "corpus"))) == ["1", "2", "3", "4"]


@pytest.mark.parametrize("name", ["train__json", "train__json__gz", "train__json__zst"])
def test_ambiguous_json_is_refused(name: str, tmp_path: Path) -> None:
    write_files(tmp_path, **{name: jsonl(TEXTS), "validation__txt": "a", "test__txt": "b"})
    for path in (tmp_path, tmp_path / name.replace("__", ".")):
        with pytest.raises(
            BadInput, match=r"may be JSONL or plain text: rename it to \.jsonl \(one object per line\) or"
        ):
            open_corpus(str(path))


def test_empty_documents_are_left_out(tmp_path: Path) -> None:
    corpus = open_corpus(str(write_files(tmp_path, train__jsonl=jsonl(["", "a", ""]) + b"\n\n")))
    assert list(corpus.documents("train")) == ["a"]


def test_the_bom_is_removed_and_everything_else_kept(tmp_path: Path) -> None:
    corpus = open_corpus(
        str(write_files(tmp_path, train__txt=b"\xef\xbb\xbfa\r\nb\0\x85\x0c".replace(b"\x85", b"\xc2\x85")))
    )
    assert list(corpus.documents("train")) == ["a\r\nb\0\x85\x0c"]
    (tmp_path / "train.txt").unlink()
    write_files(tmp_path, train__jsonl=b"\xef\xbb\xbf" + jsonl(["\ufeffa"]))
    assert list(open_corpus(str(tmp_path)).documents("train")) == ["\ufeffa"]


def test_one_enormous_line(tmp_path: Path) -> None:
    long = "x" * (1 << 23)
    corpus = open_corpus(str(write_files(tmp_path, train__jsonl__zst=zst(jsonl([long, "a"])), test__txt=long)))
    assert list(corpus.documents("train")) == [long, "a"]
    assert corpus.size("test") == (1, 1 << 23)


def test_the_fingerprint_depends_on_content_not_location(tmp_path: Path) -> None:
    fingerprint = open_corpus(str(write_files(tmp_path / "one", train__txt="a", test__txt="b"))).fingerprint()
    assert open_corpus(str(write_files(tmp_path / "two", train__text="a", test__text="b"))).fingerprint() == fingerprint
    assert open_corpus(str(write_files(tmp_path / "three", train__txt="b", test__txt="a"))).fingerprint() != fingerprint
    assert open_corpus(str(write_files(tmp_path / "four", a__txt="b", b__txt="a"))).fingerprint() != fingerprint
    assert (
        open_corpus(str(write_files(tmp_path / "five", train__jsonl="a", test__txt="b"))).fingerprint() != fingerprint
    )


def test_stdlib_is_built_in_without_its_tests() -> None:
    corpus = open_corpus("stdlib")
    names = [source.name for source in corpus.sources()]
    assert "argparse.py" in names
    assert not [name for name in names if {"test", "tests", "site-packages"} & set(name.split("/"))]
    assert corpus.about["python"] == platform.python_version()
    assert corpus.size("train")[1] > 5_000_000
    assert corpus.size("test")[0] >= 10


def test_the_sources_of_the_library_are_built_in_as_a_test_split() -> None:
    corpus = open_corpus("fieldlens")
    names = [source.name for source in corpus.sources()]
    assert "data/corpus.py" in names
    assert all(name.endswith(".py") for name in names)
    assert corpus.size("test")[0] == len(names)
    assert corpus.size("train") == corpus.size("validation") == (0, 0)


def test_a_python_without_its_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_paths", lambda: {"stdlib": str(tmp_path)})
    with pytest.raises(BadInput, match="this Python installation has no standard library sources"):
        open_corpus("stdlib")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stdlb", "unknown corpus 'stdlb': did you mean 'stdlib'\\? allowed: fieldlens, stdlib, or the path"),
        ("", "unknown corpus ''"),
        ("no.txt", "corpus 'no.txt' does not exist"),
        ("./no/such", "corpus './no/such' does not exist"),
        ("here/such", "corpus 'here/such' does not exist"),
        ("a/b.jsonl.gz", "corpus 'a/b.jsonl.gz' does not exist"),
    ],
)
def test_a_missing_corpus_is_refused(text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=message):
        open_corpus(text)


LINE = jsonl(["a"])
GZ, ZST = gzip.compress(jsonl(TEXTS)), zst(jsonl(TEXTS))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train.txt", b"ab\xffc", "train.txt: invalid UTF-8 at byte 2$"),
        ("train.txt", b"\xef\xbb\xbfab\xff", "train.txt: invalid UTF-8 at byte 5$"),
        ("train.jsonl", LINE + b'{"text": "\xff"}', f"train.jsonl: invalid UTF-8 at byte {len(LINE) + 10}$"),
        ("train.txt.gz", gzip.compress(b"ab\xff"), "invalid UTF-8 at byte 2 of the decompressed data"),
        ("train.jsonl", LINE + b"\n{", "train.jsonl, line 3: not JSON"),
        ("train.jsonl", b"[" * 100_000, "train.jsonl, line 1: not JSON"),
        ("train.jsonl", b"9" * 10_000, "train.jsonl, line 1: not JSON"),
        ("train.jsonl", LINE + b"[1]", "train.jsonl, line 2: expected an object with a string 'text'"),
        ("train.jsonl", b'{"txt": "a"}', "line 1: expected an object with a string 'text'"),
        ("train.jsonl", b'{"text": 1}', "line 1: expected an object with a string 'text'"),
        ("train.jsonl", b'{"text": "\\ud800"}', "line 1: 'text' contains an unpaired surrogate"),
        ("train.txt", b"", "is empty: it contains no text"),
        ("train.jsonl", jsonl(["", ""]), "is empty: it contains no text"),
        ("train.jsonl.gz", b"", "train.jsonl.gz: truncated"),
        ("train.jsonl.gz", GZ + b"garbage", "train.jsonl.gz: damaged, or followed by uncompressed data"),
        ("train.jsonl.gz", GZ + GZ[:-1], "train.jsonl.gz: truncated"),
        ("train.jsonl.zst", b"", "train.jsonl.zst: truncated"),
        ("train.jsonl.zst", ZST + b"garbage", "train.jsonl.zst: damaged, or followed by uncompressed data"),
        ("train.jsonl.zst", ZST + ZST[:-1], "train.jsonl.zst: truncated"),
        ("train.jsonl.zst", ZST[:-1] + bytes([ZST[-1] ^ 1]), "train.jsonl.zst: damaged"),
        ("a.txt", b"alone", "needs at least 3: use a folder .* for evaluation, a folder with a test.txt or --text"),
        ("a.jsonl", jsonl(["a", "b"]), "has 2 documents, but splitting needs at least 3"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_bad_text_is_refused(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        open_corpus(str(tmp_path)).check()


@pytest.mark.parametrize(("suffix", "packed"), [("gz", GZ), ("zst", ZST)])
def test_every_truncation_is_detected(suffix: str, packed: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"train.jsonl.{suffix}"
    for length in range(len(packed)):
        path.write_bytes(packed[:length])
        with pytest.raises(BadInput, match="truncated"):
            open_corpus(str(tmp_path)).check()


def test_a_truncated_stream_is_detected_before_the_first_document(tmp_path: Path) -> None:
    corpus = open_corpus(str(write_files(tmp_path, train__txt="fine", validation__jsonl__gz=GZ[:-1])))
    with pytest.raises(BadInput, match="truncated"):
        next(corpus.documents("train", 1))


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [("gz", GZ + GZ), ("zst", ZST + struct.pack("<II", 0x184D2A50, 4) + b"skip" + ZST)],
)
def test_concatenated_streams_are_read(suffix: str, packed: bytes, tmp_path: Path) -> None:
    (tmp_path / f"train.jsonl.{suffix}").write_bytes(packed)
    assert list(open_corpus(str(tmp_path)).documents("train")) == TEXTS + TEXTS


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="is empty: the folder contains no files"):
        open_corpus(str(tmp_path))


def test_a_pipe_or_dangling_link_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="pipe is neither a file nor a folder"):
        open_corpus(str(tmp_path / "pipe"))
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(BadInput, match="link is neither a file nor a folder"):
        open_corpus(str(tmp_path))


def test_an_unknown_split_and_a_limit_of_zero_are_refused(tmp_path: Path) -> None:
    corpus = open_corpus(str(write_files(tmp_path, train__txt="a")))
    with pytest.raises(BadInput, match="unknown split 'tran': did you mean 'train'"):
        corpus.documents("tran")
    with pytest.raises(BadInput, match="unknown split 'dev'"):
        corpus.size("dev")
    with pytest.raises(BadInput, match="max_bytes must be at least 1, got 0"):
        corpus.documents("train", 0)


@pytest.mark.parametrize("text", ["owner/name", "a.parquet"])
def test_without_datasets_the_error_names_the_extra(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_files(tmp_path, a__parquet="x"))
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(BadInput, match=r"pip install 'fieldlens\[data\]'"):
        open_corpus(text)


def parquet(path: Path, texts: list[object], column: str = "text") -> None:
    table, writer = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path.parent.mkdir(exist_ok=True)
    writer.write_table(table.table({column: texts, "other": [0] * len(texts)}), path)


@pytest.fixture
def datasets(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Any:
    library = pytest.importorskip("datasets")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", tmp_path_factory.mktemp("huggingface"))
    return library


@pytest.mark.usefixtures("datasets")
def test_parquet_is_split_by_document(tmp_path: Path) -> None:
    parquet(tmp_path / "data [1]" / "a.parquet", [*TEXTS])
    for path in (tmp_path / "data [1]", tmp_path / "data [1]" / "a.parquet"):
        corpus = open_corpus(str(path))
        assert all_documents(corpus) == sorted(TEXTS)
        assert [source.name for source in corpus.sources()] == ["a.parquet"]


@pytest.mark.usefixtures("datasets")
def test_named_parquet_keeps_its_split(tmp_path: Path) -> None:
    for name, text in (("train-00000-of-00002", "a"), ("train-00001-of-00002", "b"), ("test", "c")):
        parquet(tmp_path / "data" / f"{name}.parquet", [text])
    corpus = open_corpus(str(tmp_path / "data"))
    assert [list(corpus.documents(split)) for split in SPLITS] == [["a", "b"], [], ["c"]]


@pytest.mark.parametrize(
    ("column", "texts", "message"),
    [
        ("content", ["a"], r"a.parquet, row 1: column 'text' is missing, available columns: content, other"),
        ("text", ["a", None], r"a.parquet, row 2: column 'text' is not a string"),
    ],
)
@pytest.mark.usefixtures("datasets")
def test_parquet_without_text_is_refused(column: str, texts: list[object], message: str, tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", texts, column)
    with pytest.raises(BadInput, match=message):
        open_corpus(str(tmp_path)).check()


@pytest.mark.usefixtures("datasets")
def test_damaged_parquet_is_refused(tmp_path: Path) -> None:
    parquet(tmp_path / "a.parquet", ["a"])
    (tmp_path / "a.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-9])
    with pytest.raises(BadInput, match=r"a.parquet cannot be read"):
        open_corpus(str(tmp_path)).check()


@pytest.mark.usefixtures("datasets")
def test_parquet_among_other_files_is_refused(tmp_path: Path) -> None:
    parquet(write_files(tmp_path, README="fine", x__txt="x") / "a.parquet", ["a"])
    with pytest.raises(BadInput, match=r"mixes Parquet and other files: x.txt"):
        open_corpus(str(tmp_path))


def test_a_saved_dataset_is_split_by_document(datasets: Any, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path)
    corpus = open_corpus(str(tmp_path))
    assert all_documents(corpus) == sorted(TEXTS)
    assert [source.name for source in corpus.sources()] == ["data-00000-of-00001.arrow"]


def test_a_saved_dataset_keeps_its_named_splits(datasets: Any, tmp_path: Path) -> None:
    parts = {name: datasets.Dataset.from_dict({"text": [name]}) for name in ("train", "test", "extra")}
    datasets.DatasetDict(parts).save_to_disk(tmp_path)
    corpus = open_corpus(str(tmp_path))
    assert [list(corpus.documents(split)) for split in SPLITS] == [["train"], [], ["test"]]
    assert corpus.about["left out"] == ["extra"]
    assert [source.name.split("/")[0] for source in corpus.sources()] == ["train", "test"]


def test_a_damaged_saved_dataset_is_refused(datasets: Any, tmp_path: Path) -> None:
    datasets.Dataset.from_dict({"text": TEXTS}).save_to_disk(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(BadInput, match="cannot be read"):
        open_corpus(str(tmp_path))


def test_hub_datasets_are_read(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = {"train": datasets.Dataset.from_dict({"text": TEXTS})}
    monkeypatch.setattr(datasets, "load_dataset", lambda name: loaded)
    corpus = open_corpus("owner/name")
    assert (corpus.name, all_documents(corpus)) == ("owner/name", sorted(TEXTS))
    assert corpus.sources()[0].bytes == sum(map(len, TEXTS))


def test_a_hub_error_is_one_line(datasets: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise ConnectionError("no\nnetwork")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(BadInput, match=r"'owner/name' \(not an existing path, tried as .* cannot be read: no network"):
        open_corpus("owner/name")


def test_lines_end_at_newlines_only() -> None:
    assert list(documents._lines([b"a\rb", b"\n\n", b"c\x0b", b"d"])) == [b"a\rb", b"", b"c\x0bd"]
