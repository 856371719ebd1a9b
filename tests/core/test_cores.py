"""Cores that are usable and free, and how many threads a training takes."""

from pathlib import Path

import pytest
import torch

from fieldlens.cli.train import _with_threads
from fieldlens.core import cores
from fieldlens.core.device import Machine
from fieldlens.storage.run_dir import Run


@pytest.fixture
def eight(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with eight cores and no quota, whose threads are left alone."""
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8), raising=False)
    monkeypatch.setattr(cores, "CGROUP", Path("/nowhere"))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    return monkeypatch


@pytest.mark.parametrize(("running", "free"), [(1, 8), (2, 7), (4, 5), (9, 1), (50, 1)])
def test_threads_are_the_cores_that_are_free(running: int, free: int, eight: pytest.MonkeyPatch) -> None:
    """`running` counts this process too: two that start at once on two cores take one each."""
    eight.setattr(cores, "_running", lambda: running)
    assert cores.free_cores() == free
    assert Machine("cpu").with_free_cores().threads == free


def test_two_at_once_take_one_core_each(eight: pytest.MonkeyPatch) -> None:
    eight.setattr("os.cpu_count", lambda: 2)
    eight.setattr("os.sched_getaffinity", lambda _: range(2), raising=False)
    eight.setattr(cores, "_running", lambda: 2)
    assert Machine("cpu").with_free_cores().threads == 1


@pytest.mark.parametrize(
    ("files", "usable"),
    [
        ({"cpu.max": "max 100000"}, 8),
        ({"cpu.max": "250000 100000"}, 2),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, 8),
    ],
)
def test_the_quota_of_a_container_counts(
    files: dict[str, str], usable: int, tmp_path: Path, eight: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    eight.setattr(cores, "CGROUP", tmp_path)
    eight.setattr(cores, "_running", lambda: 1)
    assert (cores.usable_cores(), cores.free_cores()) == (usable, usable)


def test_the_affinity_counts(eight: pytest.MonkeyPatch) -> None:
    eight.setattr("os.sched_getaffinity", lambda _: {0, 5}, raising=False)
    eight.setattr(cores, "_running", lambda: 1)
    assert cores.free_cores() == 2


def test_the_load_average_where_running_threads_are_not_told(eight: pytest.MonkeyPatch) -> None:
    eight.setattr(cores, "_running", lambda: None)
    eight.setattr("os.getloadavg", lambda: (5.2, 0.0, 0.0))
    assert cores.free_cores() == 3


def test_this_process_sees_itself_running() -> None:
    if not Path("/proc/stat").exists():
        pytest.skip("no /proc/stat")
    assert (cores._running() or 0) >= 1


@pytest.mark.parametrize(("recorded", "threads"), [(3, 3), (64, 8)])
def test_a_resumed_run_takes_the_threads_it_had(recorded: int, threads: int, eight: pytest.MonkeyPatch) -> None:
    eight.setattr(cores, "_running", lambda: 7)
    assert Machine("cpu").with_free_cores(recorded).threads == threads


def test_threads_that_are_set_stay(eight: pytest.MonkeyPatch) -> None:
    eight.setattr(cores, "_running", lambda: 1)
    assert Machine("cpu", threads=3).with_free_cores(5).threads == 3
    eight.setenv("OMP_NUM_THREADS", "2")
    assert Machine("cpu").with_free_cores(5).threads is None


def test_a_run_keeps_its_threads(tmp_path: Path, eight: pytest.MonkeyPatch) -> None:
    """Those of its last resumption; a run without a record is resumed with torch's default, as before."""
    eight.setattr(cores, "_running", lambda: 3)
    run, machine = Run(tmp_path), Machine("cpu")
    assert _with_threads(machine, run).threads == 6
    run.begin(0, {}, {"machine": {}})
    assert _with_threads(machine, run).threads is None
    run.begin(0, {}, {"machine": {"threads": 4}})
    assert _with_threads(machine, run).threads == 4
    run.begin(3, {}, {"machine": {"threads": 4}, "later": [{"from_step": 3, "machine": {"threads": 2}}]})
    assert _with_threads(machine, run).threads == 2
