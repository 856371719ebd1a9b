"""Sealed JSON files: an altered value is refused, a changed layout is not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fieldlens.core.errors import BadInput
from fieldlens.storage.results import read_result
from fieldlens.storage.sealed import SEAL, UNSEALED_VERSION, read_json, read_sealed, seal, write_sealed

CONTENT: dict[str, Any] = {
    "name": "café \u2028",
    "loss": 0.1 + 0.2,
    "steps": [1, 2, 3],
    "nested": {"none": None, "true": True, "tiny": 5e-324},
    "versions": {"fieldlens": "0.2.0"},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_sealed(tmp_path / "file.json", CONTENT)
    return tmp_path / "file.json"


@pytest.mark.parametrize("indent", [None, 1, 2])
def test_content_is_read_back_without_the_seal(indent: int | None, tmp_path: Path) -> None:
    write_sealed(tmp_path / "file.json", CONTENT, indent)
    assert read_sealed(tmp_path / "file.json") == CONTENT
    assert set(json.loads((tmp_path / "file.json").read_text())) == {*CONTENT, SEAL}


def test_content_that_has_a_seal_is_sealed_anew(path: Path) -> None:
    write_sealed(path, seal(CONTENT) | {"loss": 1.5})
    assert read_sealed(path) == CONTENT | {"loss": 1.5}


def test_tuples_and_number_keys_are_sealed_as_json_stores_them(path: Path) -> None:
    write_sealed(path, {"pair": (1, 2), "by_length": {64: 0.5}})
    assert read_sealed(path) == {"pair": [1, 2], "by_length": {"64": 0.5}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("0.30000000000000004", "0.30000000000000010"),
        ("0.30000000000000004", "1.30000000000000004"),
        ('"true": true', '"true": false'),
        ('"none": null', '"none": 0'),
        ('"name"', '"nave"'),
        ("0.2.0", "0.1.0"),  # the version that wrote no seals
        (f'"{SEAL}": "', f'"{SEAL}": "0'),
    ],
)
def test_an_altered_value_is_refused(before: str, after: str, path: Path) -> None:
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(BadInput, match="was altered after it was written"):
        read_sealed(path)


def test_an_altered_value_is_refused_where_no_seal_is_needed(path: Path) -> None:
    path.write_text(path.read_text().replace("5e-324", "1.0"))
    with pytest.raises(BadInput, match="was altered after it was written"):
        read_sealed(path, unsealed=True)


@pytest.mark.parametrize("value", [None, "", 0, ["0"]])
def test_an_invalid_seal_is_refused(value: object, path: Path) -> None:
    path.write_text(json.dumps({**CONTENT, SEAL: value}))
    with pytest.raises(BadInput, match="was altered after it was written"):
        read_sealed(path)


@pytest.mark.parametrize("versions", [{"fieldlens": "0.2.0"}, {"fieldlens": None}, {}, None, UNSEALED_VERSION, [1]])
def test_a_missing_seal_is_refused(versions: object, path: Path) -> None:
    path.write_text(json.dumps({"loss": 1.0, "versions": versions}))
    with pytest.raises(BadInput, match="has no seal: it was not written by fieldlens"):
        read_sealed(path)
    assert read_sealed(path, unsealed=True)["loss"] == 1.0


def test_version_0_1_wrote_no_seals(path: Path) -> None:
    assert UNSEALED_VERSION == "0.1.0"
    content = {"loss": 1.0, "versions": {"fieldlens": "0.1.0"}}
    path.write_text(json.dumps(content))
    assert read_sealed(path) == content


def test_white_space_and_the_order_of_keys_may_change(path: Path) -> None:
    content = json.loads(path.read_text())
    reordered = dict(sorted(content.items(), reverse=True))
    for text in (json.dumps(content, indent=7), json.dumps(content, separators=(",", ":")), json.dumps(reordered)):
        path.write_text(f"\n\t {text} \r\n")
        assert read_sealed(path) == CONTENT


@pytest.mark.parametrize("depth", [5_000, 200_000])
@pytest.mark.parametrize("read", [read_sealed, read_json, read_result])
def test_deep_nesting_is_bad_input(read: Any, depth: int, tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_text('{"a": ' + "[" * depth + "]" * depth + ', "versions": {"fieldlens": "0.1.0"}, "seal": "0"}')
    with pytest.raises(BadInput, match="nested too deeply"):
        read(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [(b"", "cannot be read"), (b"{", "cannot be read"), (b"\xff{}", "cannot be read"), (b"[]", "is not a JSON object")],
)
def test_a_file_that_is_not_a_json_object_is_bad_input(data: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "file.json").write_bytes(data)
    with pytest.raises(BadInput, match=message):
        read_sealed(tmp_path / "file.json")
    with pytest.raises(BadInput, match="does not exist"):
        read_sealed(tmp_path / "missing.json")


def test_nan_is_not_written(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_sealed(path, {"loss": float("nan")})
    assert path.read_bytes() == before


def test_file_names_that_are_not_utf8_are_kept(path: Path) -> None:
    name = os.fsdecode(b"caf\xe9")
    write_sealed(path, {"corpus": name})
    assert read_sealed(path) == {"corpus": name}
    path.read_bytes().decode()  # the file itself is UTF-8
