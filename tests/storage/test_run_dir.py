"""Run folders: what is written is read back, up to what was damaged."""

import os
from pathlib import Path

from fieldlens.storage.run_dir import Run


def test_damaged_metrics_count_up_to_the_damage(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.metrics.write_bytes(b'{"step": 1}\n{"step": 2}\n\0\0\0\n{"step": 4}\n{"st')
    assert [row["step"] for row in run.history()] == [1, 2]
    run.rewind(1)
    assert run.metrics.read_bytes() == b'{"step": 1}\n'


def test_a_name_that_is_not_utf8_is_written_down(tmp_path: Path) -> None:
    run, name = Run(tmp_path), os.fsdecode(b"caf\xe9")
    run.write(run.config, {"corpus": name})
    assert run.read(run.config) == {"corpus": name}
