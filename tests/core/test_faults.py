"""Faults of the machine end with exit code 4 and one line, whatever class of exception a library reports them by."""

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from fieldlens import cli
from fieldlens.core.errors import BadInput, reraise_as_bad_input
from fieldlens.core.faults import machine_fault
from fieldlens.core.memory import free_memory, total_memory
from fieldlens.models.hub import loading
from fieldlens.storage.folders import build_folder
from fieldlens.storage.results import read_arrays

FULL = Exception("I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (FULL, OSError),
        (OSError(errno.EDQUOT, "quota"), OSError),
        (OSError(errno.EIO, "i/o"), OSError),
        (MemoryError(), MemoryError),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError),
        (Exception("mmap: Cannot allocate memory (os error 12)"), MemoryError),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), MemoryError),
        (RuntimeError("std::bad_alloc"), MemoryError),
        (RuntimeError("CUDA out of memory. Tried to allocate 20 GiB"), MemoryError),
        (ImportError("libx.so: failed to map segment from shared object"), MemoryError),
        (RuntimeError("could not create a primitive"), MemoryError),
        (ImportError("No module named x"), None),
        (FileNotFoundError(errno.ENOENT, "no such file"), None),
        (OSError("repository not found"), None),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
        (ValueError("bad"), None),
    ],
)
def test_a_fault_is_known_by_its_text_or_number(error: Exception, expected: type[Exception] | None) -> None:
    fault = machine_fault(error)
    assert fault is None if expected is None else isinstance(fault, expected)


def test_allocations_that_fail_are_known() -> None:
    for allocate in (torch.empty, np.empty, bytearray):
        for size in (1 << 50, 1 << 60, 1 << 62):
            with pytest.raises((RuntimeError, MemoryError, ValueError)) as caught:
                allocate(size)  # type: ignore[operator]
            assert isinstance(machine_fault(caught.value), MemoryError), caught.value


@pytest.mark.parametrize("wrapper", [reraise_as_bad_input, loading])
def test_what_turns_errors_into_bad_input_lets_faults_pass(wrapper: Any) -> None:
    for error, kind in ((MemoryError("no"), MemoryError), (FULL, OSError), (ValueError("bad"), BadInput)):
        with pytest.raises(kind), wrapper("it"):
            raise error


def test_a_full_disk_while_a_tokenizer_is_cached(tmp_path: Path) -> None:
    """tokenizers raises a plain Exception."""

    def fill(folder: Path) -> dict[str, Any]:
        Tokenizer.from_str('{"version":"1.0","model":{"type":"BPE","vocab":{},"merges":[]}}').save("/dev/full")
        return {}

    with pytest.raises(OSError, match="No space left") as caught:
        build_folder(tmp_path / "cache" / "a", fill, {})
    assert caught.value.errno == errno.ENOSPC
    assert list((tmp_path / "cache").iterdir()) == []


def test_arrays_that_do_not_fit_are_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr(np, "load", full)
    with pytest.raises(MemoryError):
        read_arrays(tmp_path / "a.npz")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory"), FULL, OSError(errno.EIO, "x")])
def test_the_command_line_says_itloading(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(cli, "app", fail)
    with pytest.raises(SystemExit) as stop:
        cli.main(["schemes"])
    assert stop.value.code == 4
    assert capsys.readouterr().err.count("\n") == 1
    with pytest.raises(type(error)):
        cli.main(["schemes", "--debug"])


def test_a_limit_of_the_process_counts_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert total_memory(cpu) >= free_memory(cpu) > 1e6
    monkeypatch.setattr("resource.getrlimit", lambda _: (12345, 12345))
    assert (total_memory(cpu), free_memory(cpu)) == (12345, 12345)


@pytest.mark.parametrize("redirections", ["2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_do_not_stop_a_training(redirections: str, tmp_path: Path) -> None:
    """Without a stand-in, a file of the run gets the number of a closed stream, and messages end up in it."""
    for number in range(9):
        (tmp_path / f"{number}.txt").write_text(f"def f{number}(x): return x + {number}\n" * 60)
    program = "train --preset smoke --steps 2 --bpe 257 --threads 1 --corpus . --out run"
    environment = {**os.environ, "FIELDLENS_CACHE": str(tmp_path / "cache")}
    command = ["sh", "-c", f"'{sys.executable}' -m fieldlens {program} {redirections}"]
    child = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stdout + child.stderr
    assert (tmp_path / "run" / "model" / "model.safetensors").is_file()
