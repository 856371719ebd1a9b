"""Checkpoints: whole or absent, and never believed without proof."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from short_training import flip_passes

from fieldlens.storage.atomic import FAILPOINT, MANIFEST, Damaged, read_folder, write_folder
from fieldlens.storage.checkpoints import checkpoints_in, newest_checkpoint, save_checkpoint

FILES = {"weights": bytes(range(256)) * 4, "state": b"{}"}


def test_a_folder_reads_back(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", FILES, {"step": 3})
    assert read_folder(tmp_path / "a") == FILES
    write_folder(tmp_path / "a", {"weights": b"new"}, {})
    assert read_folder(tmp_path / "a") == {"weights": b"new"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what a handle is of")
def test_what_is_written_reaches_the_disk_before_its_name_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and the folder itself, then the rename, then the folder above."""
    told: list[str] = []
    fsync, replace = os.fsync, os.rename

    def synced(handle: int) -> None:
        told.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def renamed(one: Path, other: Path) -> None:
        told.append(f"to {Path(other).name}")
        replace(one, other)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    write_folder(tmp_path / "a", FILES, {})
    at = told.index("to a")
    assert {"weights", "state", "manifest.json"} <= set(told[:at])
    assert told[at - 1].startswith(".a")
    assert told[at + 1] == tmp_path.name


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 20, 100):
        save_checkpoint(tmp_path, step, FILES, {})
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-000000020", "step-000000100"]
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == 100


def test_what_is_saved_before_damaged_ones_stays(tmp_path: Path) -> None:
    for step in (8, 10):
        (tmp_path / f"step-{step:09d}").mkdir()
    save_checkpoint(tmp_path, 4, FILES, {})
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-000000004"]


def test_a_copy_under_another_name_is_left_alone(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save_checkpoint(tmp_path, step, FILES, {})
        if step == 1:
            shutil.copytree(tmp_path / "step-000000001", tmp_path / "step-000000001-copy")
    shutil.copytree(tmp_path / "step-000000003", tmp_path / "step-000000003-copy")
    assert (tmp_path / "step-000000001-copy").is_dir()
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == 3


def test_bit_flips_are_found(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", FILES, {})
    for path in sorted((tmp_path / "a").iterdir()):
        assert not any(flip_passes(path, bit) for bit in range(0, path.stat().st_size * 8, 37))


@pytest.mark.parametrize("name", ["weights", "state", MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "emptied", "removed", "grown"])
def test_damage_is_found_and_the_one_before_is_used(name: str, damage: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, FILES, {})
    path = save_checkpoint(tmp_path, 2, FILES, {}) / name
    data = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-1], "emptied": b"", "grown": data + b"x"}[damage])
    found = newest_checkpoint(tmp_path)
    assert found is not None
    assert found[0] == 1
    assert len(found[2]) == 1
    assert "step-000000002" in found[2][0]


def test_a_file_that_does_not_belong_is_found(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", FILES, {})
    (tmp_path / "a" / "extra").write_bytes(b"")
    with pytest.raises(Damaged, match="extra"):
        read_folder(tmp_path / "a")


def test_no_checkpoint_that_verifies(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    (tmp_path / "step-000000001").mkdir()
    assert newest_checkpoint(tmp_path) is None


CHILD = """
import sys
from pathlib import Path
from fieldlens.storage.checkpoints import save_checkpoint
save_checkpoint(Path(sys.argv[1]), 3, {"weights": b"new" * 100, "state": b"{3}"}, {})
"""


def strike(folder: Path, when: int, how: str) -> int:
    """Save step 3 in a child process that is struck at one change to the disk; its exit code."""
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        env={**os.environ, FAILPOINT: f"{when}:{how}"},
        capture_output=True,
        check=False,
    ).returncode


@pytest.mark.parametrize("how", ["kill", "ENOSPC", "EIO"])
def test_a_save_that_is_struck_leaves_whole_checkpoints(how: str, tmp_path: Path) -> None:
    """At every change to the disk in turn, until one save gets through."""
    for when in range(1, 100):
        folder = tmp_path / str(when)
        save_checkpoint(folder, 1, FILES, {})
        save_checkpoint(folder, 2, FILES, {})
        code = strike(folder, when, how)
        found = newest_checkpoint(folder)
        assert found is not None
        assert found[2] == []
        assert found[0] in (2, 3)
        if found[0] == 2:
            assert found[1] == FILES
        if code == 0:
            assert when == 15
            return
        assert code == (-signal.SIGKILL if how == "kill" else 1)
    pytest.fail("the save never got through")
