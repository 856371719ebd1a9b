"""Endless and hostile input is read as a stream and ends with one line: bombs, devices, long lines, deep nesting."""

import gzip
import io
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import zstandard
from newcomer import save_model, save_text

from fieldlens import cli
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.core.limits import document_bytes, is_nested_too_deeply
from fieldlens.data.corpus import open_corpus
from fieldlens.data.documents import File
from fieldlens.data.text import open_text, read_file
from fieldlens.data.tokenizer import Coder, _growth, load_tokenizer
from fieldlens.storage.sealed import read_json
from fieldlens.study.plan import read_study

MEBIBYTE = 1 << 20


@pytest.fixture(autouse=True)
def _limit() -> Iterator[None]:
    token = document_bytes.set(MEBIBYTE)
    yield
    document_bytes.reset(token)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tokenizer") / "model")


def compressed(kind: str, data: bytes) -> bytes:
    return gzip.compress(data) if kind == "gz" else zstandard.ZstdCompressor().compress(data)


@pytest.mark.parametrize("kind", ["gz", "zst"])
@pytest.mark.parametrize("form", ["txt", "jsonl"])
def test_a_bomb_is_not_unpacked(kind: str, form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"bomb.{form}.{kind}"
    path.write_bytes(compressed(kind, b"a" * (64 * MEBIBYTE)))
    read: list[int] = []
    chunks = File._decompressed

    def counted(self: File, *options: object) -> Iterator[bytes]:
        for chunk in chunks(self, *options):  # type: ignore[arg-type]
            read.append(len(chunk))
            yield chunk

    monkeypatch.setattr(File, "_decompressed", counted)
    with pytest.raises(BadInput, match=r"larger than 1 MiB.*--max-document-bytes"):
        list(File(path.name, path, None).documents())
    assert sum(read) <= 40 * MEBIBYTE  # a kibibyte of zstd stands for 32 MiB at most


def test_a_document_of_the_limit_is_read_and_one_byte_more_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a" * MEBIBYTE)
    assert len(next(File("a.txt", path, None).documents())) == MEBIBYTE
    path.write_bytes(b"a" * (MEBIBYTE + 1))
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        next(File("a.txt", path, None).documents())
    Machine(max_document_bytes=MEBIBYTE + 1).start()
    assert len(next(File("a.txt", path, None).documents())) == MEBIBYTE + 1


def test_many_lines_may_be_larger_than_one_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"{n} " + "a" * 99_999}) + "\n" for n in range(20)))
    assert sum(map(len, File("a.jsonl", path, None).documents())) > 1.9 * MEBIBYTE
    assert open_corpus(str(path)).size("train")[0] == 18


def test_a_text_for_evaluation_is_kept_whole_and_bounded_whole(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": "a" * 100_000}) + "\n" for _ in range(20)))
    with pytest.raises(BadInput, match="larger than 1 MiB"):
        read_file(open_text(path), tokenizer)


def test_a_stream_is_not_read_past_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO(bytes(8 * MEBIBYTE))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stream))
    with pytest.raises(BadInput, match="stdin is larger than 1 MiB"):
        open_text(Path("-"))
    assert stream.tell() < 4 * MEBIBYTE


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs /dev/zero")
def test_endless_input_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="/dev/zero is larger than 1 MiB"):
        open_text(Path("/dev/zero"))
    with Path("/dev/zero").open("rb") as endless:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=endless))
        with pytest.raises(BadInput, match="stdin is larger than 1 MiB"):
            open_text(Path("-"))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"a" * MEBIBYTE)))
    assert len(next(open_text(Path("-")).documents())) == MEBIBYTE


def test_every_verb_that_reads_text_has_the_limit(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "corpus"
    folder.mkdir()
    for name in ("train.txt", "validation.txt", "test.txt"):
        save_text(folder / name)
    text, limit = str(folder / "test.txt"), ["--max-document-bytes", "1000"]
    for words in (
        ["evaluate", str(tokenizer), "--text", text],
        ["measure", str(tokenizer), "--text", text],
        ["generate", str(tokenizer), "--prompt-file", text],
        ["corpus", str(folder)],
        ["train", "--preset", "smoke", "--corpus", str(folder), "--out", "run"],
    ):
        with pytest.raises(SystemExit) as stop:
            cli.main([*words, *limit])
        assert stop.value.code == 2
        assert "larger than 1000 bytes, the limit for one document" in capsys.readouterr().err


def test_a_long_text_is_encoded_in_parts(tokenizer: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    coder, sizes = Coder(tokenizer), list[int]()
    encode = coder.encode

    def counted(pieces: list[str]) -> list[object]:
        sizes.append(len(pieces))
        return encode(pieces)  # type: ignore[return-value]

    text = "some words " * 200_000
    whole = coder.whole(text)[0]
    monkeypatch.setattr(coder, "encode", counted)
    assert (coder.whole(text)[0] == whole).all()
    assert len(sizes) > 1
    assert max(sizes) <= 256


@pytest.mark.parametrize(
    ("rule", "growth"),
    [
        ({"type": "Replace", "pattern": {"String": "a"}, "content": "b" * 10_000_000}, 10_000_000),
        ({"type": "Prepend", "prepend": "a" * 5000}, 5000),
        ({"type": "Sequence", "normalizers": [{"type": "Replace", "content": "aaaaaaaaaa"}] * 7}, 10**7),
        ({"type": "NFC"}, 1),
        (None, 1),
    ],
)
def test_a_tokenizer_that_multiplies_text_is_refused(
    rule: object, growth: int, tmp_path: Path, tokenizer: Path
) -> None:
    assert _growth(rule) == growth
    if growth > 1:
        description = json.loads((tokenizer / "tokenizer.json").read_text())
        (tmp_path / "tokenizer.json").write_text(json.dumps(description | {"normalizer": rule}))
        with pytest.raises(BadInput, match=f"can make a text {growth:,} times longer"):
            load_tokenizer(tmp_path)


@pytest.mark.parametrize("depth", [101, 990, 100_000])
def test_deep_nesting_is_one_line_wherever_json_or_toml_is_read(
    depth: int, tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = "[" * depth + "]" * depth
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.json").write_text('{"kind": "fieldlens evaluation", "a": ' + deep + "}")
    with pytest.raises(BadInput, match="nested too deeply"):
        read_json(tmp_path / "a.json")
    (tmp_path / "s.toml").write_text(f"title = 'x'\nmodels = {deep}\n")
    with pytest.raises(BadInput):
        read_study(str(tmp_path / "s.toml"))
    reader, writer = os.pipe()
    with os.fdopen(writer, "wb") as stream:
        stream.write(deep.encode()[:60_000])
    open_text(Path(f"/dev/fd/{reader}"))
    os.close(reader)


def test_the_depth_is_counted() -> None:
    value: object = 1
    for _ in range(99):
        value = {"a": [1, 2], "b": value}
    assert not is_nested_too_deeply(value)
    assert is_nested_too_deeply([value])
