"""Run folders: files are verified when read, and metrics are used up to the first damaged line."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fieldlens.core.errors import BadInput
from fieldlens.storage.run_dir import Run

CONFIG = {"recipe": {"scheme": "alibi", "steps": 20}, "address": "ab12", "versions": {"fieldlens": "0.2.0"}}
OLD_CONFIG = CONFIG | {"versions": {"fieldlens": "0.1.0"}}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run folder as this version writes it."""
    run = Run(tmp_path)
    run.write(run.config, CONFIG)
    run.write(run.data, {"place": "stdlib", "tokens": 1234})
    run.write_status("finished", step=20, validation_perplexity=31.5)
    for step in (1, 2, 3):
        run.log({"step": step, "loss": 4.5 - step / 10})
    return run


def old_run(folder: Path, config: dict[str, Any]) -> Run:
    """A run folder as version 0.1 wrote it, without seals."""
    run = Run(folder)
    run.config.write_text(json.dumps(config, indent=2))
    run.data.write_text(json.dumps({"place": "stdlib"}))
    run.status.write_text(json.dumps({"state": "finished", "step": 20}))
    run.metrics.write_text('{"step": 1, "loss": 4.5}\n{"step": 2, "loss": 4.4}\n')
    return run


def test_files_are_read_back(run: Run) -> None:
    assert run.read(run.config) == CONFIG
    assert run.read(run.data) == {"place": "stdlib", "tokens": 1234}
    assert run.read(run.status) == {"state": "finished", "step": 20, "validation_perplexity": 31.5}
    assert run.history() == [{"step": step, "loss": 4.5 - step / 10} for step in (1, 2, 3)]
    assert Run(run.folder / "other").read(run.config.with_name("missing.json")) == {}


@pytest.mark.parametrize(
    ("name", "before", "after"),
    [("config", '"steps": 20', '"steps": 21'), ("status", "31.5", "31.4"), ("data", "1234", "1235")],
)
def test_a_flipped_digit_is_refused(name: str, before: str, after: str, run: Run) -> None:
    path: Path = getattr(run, name)
    text = path.read_text()
    assert text.count(before) == 1
    path.write_text(text.replace(before, after))
    with pytest.raises(BadInput, match="was altered after it was written"):
        run.read(path)


@pytest.mark.parametrize("name", ["config", "status", "data"])
def test_a_removed_seal_is_refused(name: str, run: Run) -> None:
    path: Path = getattr(run, name)
    path.write_text(json.dumps(run.read(path)))
    with pytest.raises(BadInput, match="has no seal"):
        run.read(path)


@pytest.mark.parametrize(("line", "kept"), [(0, []), (1, [1]), (2, [1, 2])])
def test_a_flipped_digit_in_the_metrics_ends_the_history(line: int, kept: list[int], run: Run) -> None:
    lines = run.metrics.read_text().splitlines(keepends=True)
    assert lines[line].count("4.") == 1
    lines[line] = lines[line].replace("4.", "3.")
    run.metrics.write_text("".join(lines))
    assert [row["step"] for row in run.history()] == kept


def test_damaged_metrics_count_up_to_the_damage(run: Run) -> None:
    intact = run.metrics.read_bytes()
    run.metrics.write_bytes(intact + b"\0\0\0\n" + intact + b'{"st')
    assert [row["step"] for row in run.history()] == [1, 2, 3]
    run.rewind(1)
    assert run.metrics.read_bytes() == intact.splitlines(keepends=True)[0]


def test_run_folders_of_version_0_1_are_read(tmp_path: Path) -> None:
    run = old_run(tmp_path, OLD_CONFIG)
    assert run.read(run.config) == OLD_CONFIG
    assert run.read(run.data) == {"place": "stdlib"}
    assert run.read(run.status) == {"state": "finished", "step": 20}
    assert [row["loss"] for row in run.history()] == [4.5, 4.4]


@pytest.mark.parametrize("name", ["status", "data"])
def test_only_version_0_1_wrote_no_seals(name: str, tmp_path: Path) -> None:
    run = old_run(tmp_path, CONFIG)
    for path in (run.config, getattr(run, name)):
        with pytest.raises(BadInput, match="has no seal"):
            run.read(path)


def test_a_resumed_run_of_version_0_1_adds_seals_to_its_metrics(tmp_path: Path) -> None:
    run = old_run(tmp_path, OLD_CONFIG)
    run.rewind(1)
    run.log({"step": 2, "loss": 4.3})
    assert run.history() == [{"step": 1, "loss": 4.5}, {"step": 2, "loss": 4.3}]
    run.metrics.write_text(run.metrics.read_text().replace("4.3", "4.2"))
    assert [row["step"] for row in run.history()] == [1]


def test_a_name_that_is_not_utf8_is_written(tmp_path: Path) -> None:
    run, name = Run(tmp_path), os.fsdecode(b"caf\xe9")
    run.write(run.config, {"corpus": name})
    assert run.read(run.config) == {"corpus": name}


def test_every_flipped_bit_of_the_metrics_is_noticed(run: Run) -> None:
    whole, history = run.metrics.read_bytes(), run.history()
    for bit in range(8 * len(whole)):
        altered = bytearray(whole)
        altered[bit // 8] ^= 1 << bit % 8
        run.metrics.write_bytes(altered)
        rows = run.history()
        assert rows == history or len(rows) < len(history), altered[max(0, bit // 8 - 20) : bit // 8 + 20]
