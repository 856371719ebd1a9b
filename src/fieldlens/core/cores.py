"""How many CPU cores this process may use, and how many of them are free."""

import os
import time
from contextlib import suppress
from pathlib import Path

SECONDS = 0.3
"""For how long running processes are counted."""
CGROUP = Path("/sys/fs/cgroup")


def usable_cores() -> int:
    """Cores that the affinity of this process and the quota of its container allow."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return int(max(1, min(allowed, _quota())))


def _quota() -> float:
    """The CPU quota of the container in cores; inf if there is none."""
    with suppress(OSError, ValueError):  # cgroup version 2; "max" is no number
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return max(1.0, int(quota) / int(period))
    with suppress(OSError, ValueError):  # version 1; -1 is no quota
        quota, period = ((CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        if int(quota) > 0:
            return max(1.0, int(quota) / int(period))
    return float("inf")


def running_elsewhere(seconds: float = SECONDS) -> float:
    """Mean number of other threads on this machine that run or wait for a core.

    This process stays busy while it counts: several that start at the same time then see each other.
    """
    counts: list[int] = []
    end = time.perf_counter() + seconds
    while not counts or time.perf_counter() < end:
        running = _running()
        if running is None:
            return os.getloadavg()[0]
        counts.append(running - 1)
    return max(0.0, sum(counts) / len(counts))


def _running() -> int | None:
    """Threads that run or wait for a core at this moment, this one included; None if the system does not tell."""
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/stat").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("procs_running")).split()[1])
    return None


def free_cores() -> int:
    """Cores that this process may use and that no other process is using, at least 1."""
    free = (os.cpu_count() or 1) - running_elsewhere()
    return max(1, min(usable_cores(), round(free)))
