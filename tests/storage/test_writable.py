"""Output that cannot be written is found out before anything is computed, by every verb that writes."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from newcomer import save_model, save_text

from fieldlens.cli import main
from fieldlens.core.errors import BadInput
from fieldlens.storage import writable
from fieldlens.storage.writable import NotWritable, check_file, check_folder

SEALED = Path("/proc/fieldlens")  # where nobody can create anything, not even root


def test_a_folder_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    check_folder(tmp_path)
    check_folder(tmp_path / "a" / "b")
    check_file(tmp_path / "a" / "plot.png", "--plot")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_a_folder_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for path, problem in (("file", "is a file"), ("file/x", "is a file"), ("link", "broken link"), ("é" * 200, "long")):
        with pytest.raises(BadInput, match=problem):
            check_folder(tmp_path / path)
    with pytest.raises(BadInput, match="--plot must be a file, but"):
        check_file(tmp_path, "--plot")


def test_a_place_that_refuses_or_is_full_is_an_error_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        NotWritable, match="--out /proc/fieldlens cannot be written, because /proc takes no new files: choose"
    ):
        check_folder(SEALED)

    def full(**options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(writable.tempfile, "TemporaryFile", full)
    with pytest.raises(OSError, match="No space left") as caught:
        check_folder(tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path))


@pytest.mark.parametrize(
    "words",
    [
        ["measure", "MODEL", "--text", "TEXT", "--out", str(SEALED)],
        ["evaluate", "MODEL", "--text", "TEXT", "--out", str(SEALED)],
        ["extend", "MODEL", "--lengths", "900", "--text", "TEXT", "--out", str(SEALED)],
        ["train", "--preset", "smoke", "--corpus", "nowhere", "--out", str(SEALED)],
        ["compare", "none.json", "--out", str(SEALED)],
        ["study", "demo", "--out", str(SEALED)],
        ["study", "demo", "--out", "results", "--runs", str(SEALED)],
        ["paper", "all", "--out", str(SEALED)],
        ["schemes", "--plot", str(SEALED / "plot.png")],
    ],
)
def test_every_verb_asks_before_it_computes(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    if "MODEL" in words:
        save_model(tmp_path / "model")
        save_text(tmp_path / "text")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(SystemExit) as stop:
        main([{"MODEL": "model", "TEXT": "text"}.get(word, word) for word in words])
    assert stop.value.code == 4
    assert "cannot be written" in capsys.readouterr().err
    assert sorted(tmp_path.iterdir()) == before
