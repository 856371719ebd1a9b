"""The campaign's runner: pieces are resumable case by case, and their outcomes become one JSON that the docs show."""

import importlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest
from test_docs import builder  # noqa: F401 - a fixture

from campaign import hostile
from campaign.flips import Kind
from campaign.flips import run as flip
from campaign.hostile import KINDS, altered_bytes, altered_json, outside
from campaign.piece import RIGHT, Ended, Outcome, Piece, skipped, wrong
from campaign.run import PIECES, perform, read_record, summary
from campaign.worlds import World
from fieldlens.storage.sealed import read_sealed, write_sealed


def counted(calls: list[str]) -> Piece:
    def run(_: Path, case: str) -> Outcome:
        calls.append(case)
        return {"a": RIGHT, "b": wrong("no"), "c": skipped("why"), "d": Outcome(right=3, harmless=2)}[case]

    return Piece("small", "it holds", lambda folder: folder, lambda _: list("abcd"), run)


def test_every_piece_says_what_it_promises() -> None:
    for name in PIECES:
        piece = importlib.import_module(f"campaign.{name}").PIECE
        assert (piece.name, bool(piece.promise)) == (name, True)


def test_an_interrupted_piece_goes_on_with_the_next_case(tmp_path: Path) -> None:
    calls: list[str] = []
    path, forever = tmp_path / "record.json", time.monotonic() + 1e6
    record = read_record(path)
    perform(counted(calls), record, path, forever, 2)
    assert calls == ["a", "c"]
    record = read_record(path)
    perform(counted(calls), record, path, time.monotonic() - 1, None)
    assert calls == ["a", "c"]
    perform(counted(calls), record, path, forever, None)
    assert calls == ["a", "c", "b", "d"]
    perform(counted(calls), read_record(path), path, forever, None)
    assert len(calls) == 4
    (piece,) = summary(read_record(path))["pieces"]
    assert {key: piece[key] for key in ("cases", "done", "right", "harmless", "skipped", "wrong")} == {
        "cases": 4, "done": 4, "right": 4, "harmless": 2, "skipped": 1, "wrong": 1,
    }  # fmt: skip
    assert piece["notes"] == ["c: why", "b: no"]
    path.write_text(json.dumps({**record, "source": "another"}))
    assert read_record(path)["pieces"] == {}


def test_the_docs_show_the_outcome(builder: ModuleType, tmp_path: Path) -> None:  # noqa: F811
    path = tmp_path / "record.json"
    record = read_record(path)
    perform(counted([]), record, path, time.monotonic() + 1e6, None)
    assert "not been run" in builder.campaign(tmp_path / "none.json")
    (tmp_path / "campaign.json").write_text(json.dumps(summary(record)))
    text = builder.campaign(tmp_path / "campaign.json")
    assert "| small | it holds | 8 | 4 | 2 | 1 | 1 |" in text
    assert "- small, b: no" in text


def test_what_is_written_outside_of_a_folder_is_noticed(tmp_path: Path) -> None:
    here = tmp_path / "hostile" / "case" / "here"
    here.mkdir(parents=True)
    before = outside(tmp_path, here)
    (here / "x").touch()
    (here.parent / ".here-1-err").touch()  # the child's own output
    assert outside(tmp_path, here) == before
    for path in ("../x", "../../x", "../../../x", "../.hidden", "../home"):
        Path(here, path).mkdir() if path.endswith("home") else Path(here, path).touch()
        assert outside(tmp_path, here).keys() - before.keys() == {str(Path(here, path).resolve())}
        before = outside(tmp_path, here)


@pytest.mark.parametrize("name", ["kept", "deleted", "written"])
def test_a_hostile_file_that_changes_the_world_is_wrong(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "deleted").touch()

    def command(*_: object, **__: object) -> Ended:
        if name == "deleted":
            (tmp_path / name).unlink()
        elif name == "written":
            (tmp_path / name).touch()
        return Ended(0, "", "", 0)

    monkeypatch.setattr(hostile, "forked", command)
    monkeypatch.setitem(KINDS, "odd", lambda *_: ["--help"])
    outcome = hostile.run(hostile.Context(World(tmp_path), tmp_path, None), "odd:0")
    assert (outcome.right, outcome.wrong) == ((1, 0) if name == "kept" else (0, 1))
    assert all(str(tmp_path / name) in note for note in outcome.notes)


CHILDREN = """
import json, signal, sys
from pathlib import Path
from campaign.piece import Limits, forked
folder = Path(sys.argv[1])
ended = [
    forked(["schemes", "sandwhich"], folder),
    forked(["runs", "."], folder),
    forked(["study", "demo", "--dry-run"], folder, kill_after=0.0),
    forked(["evaluate", "x", "--text", "-"], folder, Limits(seconds=0.0)),
]
print(json.dumps([[end.code, end.documented, end.err] for end in ended]))
"""


def test_a_command_in_a_child_is_judged_by_its_end(tmp_path: Path) -> None:
    """In a process of its own: a process with threads, as pytest's may be, must not fork."""
    command = [sys.executable, "-c", CHILDREN, str(tmp_path / "a")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    refused, listed, killed, hanging = json.loads(child.stdout)
    assert refused[:2] == [2, True]
    assert refused[2].startswith("fieldlens: unknown scheme")
    assert listed[:2] == [0, True]
    assert killed[:2] == [-signal.SIGKILL, False]
    assert hanging[:2] == [98, False]
    assert not Ended(1, "", "Traceback (most recent call last)", 0).documented
    assert not Ended(2, "", "", 0).documented
    assert not Ended(4, "", "killed\n", 0).documented


def test_a_flip_that_changes_a_value_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_sealed(path, {"a": 12345})
    noticed = flip({"k": Kind("k", path, lambda: read_sealed(path))}, "k:0")
    assert (noticed.wrong, noticed.right > 450) == (0, True)
    unnoticed = flip({"k": Kind("k", path, path.read_bytes)}, "k:0")
    assert (unnoticed.right, unnoticed.wrong) == (0, 500)
    harmless = flip({"k": Kind("k", path, lambda: 1)}, "k:0")
    assert harmless.harmless == 500


def test_hostile_files_differ_and_are_the_same_in_every_run() -> None:
    data = json.dumps({"a": [1, {"b": 2}], "c": "d"}).encode()
    for alter in (altered_json, altered_bytes):
        made = [[alter(data, random.Random(n)) for n in range(100)] for _ in range(2)]
        assert made[0] == made[1]
        assert len(set(made[0])) > 60
    assert {"config", "safetensors", "tokenizer", "GGUF", "JSONL", "TOML", "NPZ", "result", "plugin"} <= set(KINDS)


def test_make_campaign_names_a_module_that_is_there() -> None:
    makefile = (Path(__file__).parent.parent / "Makefile").read_text()
    assert "-m campaign.run" in makefile
