"""Checkpoints: complete or absent, and verified when read."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from short_training import flip_passes

from fieldlens.storage.atomic import FAILPOINT
from fieldlens.storage.checkpoints import checkpoints_in, newest_checkpoint, save_checkpoint
from fieldlens.storage.folders import BUILDING, MANIFEST, Damaged, read_folder, write_folder

FILES = {"weights": bytes(range(256)) * 4, "state": b"{}"}


def test_a_folder_reads_back(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", FILES, {"step": 3})
    assert read_folder(tmp_path / "a") == FILES
    write_folder(tmp_path / "a", {"weights": b"new"}, {})
    assert read_folder(tmp_path / "a") == {"weights": b"new"}
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.skipif(sys.platform != "linux", reason="resolves file handles with /proc")
def test_files_are_synced_before_their_folder_is_renamed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every file and the folder itself, then the rename, then the folder above."""
    events: list[str] = []
    fsync, rename = os.fsync, os.rename

    def synced(handle: int) -> None:
        events.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        fsync(handle)

    def renamed(source: Path, target: Path) -> None:
        events.append(f"to {Path(target).name}")
        rename(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "rename", renamed)
    write_folder(tmp_path / "a", FILES, {})
    at = events.index("to a")
    assert {"weights", "state", "manifest.json"} <= set(events[:at])
    assert events[at - 1].startswith(f"{BUILDING}a-")
    assert events[at + 1] == tmp_path.name


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for step in (5, 10, 20, 100):
        save_checkpoint(tmp_path, step, FILES, {})
    assert [path.name for path in checkpoints_in(tmp_path)] == ["step-000000020", "step-000000100"]
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint[0] == 100


def test_a_checkpoint_before_damaged_ones_is_kept(tmp_path: Path) -> None:
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
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint[0] == 3


def test_bit_flips_are_noticed(tmp_path: Path) -> None:
    write_folder(tmp_path / "a", FILES, {})
    for path in sorted((tmp_path / "a").iterdir()):
        assert not any(flip_passes(path, bit) for bit in range(0, path.stat().st_size * 8, 37))


@pytest.mark.parametrize("name", ["weights", "state", MANIFEST])
@pytest.mark.parametrize("damage", ["cut", "emptied", "removed", "grown"])
def test_damage_is_noticed_and_the_previous_checkpoint_is_used(name: str, damage: str, tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, FILES, {})
    path = save_checkpoint(tmp_path, 2, FILES, {}) / name
    data = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes({"cut": data[:-1], "emptied": b"", "grown": data + b"x"}[damage])
    checkpoint = newest_checkpoint(tmp_path)
    assert checkpoint is not None
    assert checkpoint[0] == 1
    assert len(checkpoint[2]) == 1
    assert "step-000000002" in checkpoint[2][0]


def test_a_file_that_is_not_listed_is_refused(tmp_path: Path) -> None:
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


def save_with_fault(folder: Path, when: int, fault: str) -> int:
    """Save step 3 in a child process with a fault at one change to the disk; return its exit code."""
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(folder)],
        env={**os.environ, FAILPOINT: f"{when}:{fault}"},
        capture_output=True,
        check=False,
    ).returncode


@pytest.mark.parametrize("fault", ["kill", "ENOSPC", "EIO"])
def test_a_save_with_a_fault_leaves_complete_checkpoints(fault: str, tmp_path: Path) -> None:
    """At every change to the disk in turn, until a save succeeds."""
    for when in range(1, 100):
        folder = tmp_path / str(when)
        save_checkpoint(folder, 1, FILES, {})
        save_checkpoint(folder, 2, FILES, {})
        code = save_with_fault(folder, when, fault)
        checkpoint = newest_checkpoint(folder)
        assert checkpoint is not None
        assert checkpoint[2] == []
        assert checkpoint[0] in (2, 3)
        if checkpoint[0] == 2:
            assert checkpoint[1] == FILES
        if code == 0:
            assert when == 15
            return
        assert code == (-signal.SIGKILL if fault == "kill" else 1)
    pytest.fail("the save never succeeded")
