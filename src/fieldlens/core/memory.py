"""Free and peak memory, out-of-memory errors, allocator settings."""

import ctypes
import gc
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line prints its help without importing torch
    import torch


TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""Parameters of glibc's mallopt."""


def keep_pages() -> None:
    """Let glibc keep up to 1 GiB of freed memory for later tensors.

    Otherwise each step returns its memory to the system and page-faults it in again, which makes a training step of
    preset pocket 1.04 to 1.05 times slower.
    """
    with suppress(OSError, TypeError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, 32 << 20)  # the maximum allowed; larger blocks are still returned
        mallopt(TRIM_THRESHOLD, 1 << 30)
        mallopt(TOP_PAD, 64 << 20)


@contextmanager
def without_collection() -> Iterator[None]:
    """Context in which Python does not look for cyclic garbage, for imports and for loading a model.

    Both create a million objects that stay; looking through them again and again takes a fifth of the imports' time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


_PHRASES = (
    "not enough memory", "allocate memory", "out of memory", "bad_alloc", "can't start new thread",
    "storage size calculation overflowed", "array is too big", "maximum allowed dimension exceeded",
    "failed to map segment",
)  # fmt: skip
_WHOLE = ("could not create a primitive", "could not create a memory object")
"""Messages of oneDNN; a longer message that begins like this means something else."""


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out. Libraries report it with different types and messages."""
    if isinstance(error, MemoryError):
        return True
    text = str(error).lower()
    return isinstance(error, RuntimeError | ValueError | ImportError) and (
        text in _WHOLE or any(phrase in text for phrase in _PHRASES)
    )


def free_memory(device: "torch.device") -> float:
    """Free bytes on a device."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return min(int(lines["MemAvailable"].split()[0]) * 1024.0, _limit())
    except (OSError, KeyError):  # not Linux: half of the physical memory
        return _physical() / 2


def total_memory(device: "torch.device") -> float:
    """Bytes of memory that this process could use at most on a device."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[1])
    return min(_physical(), _limit())


def _physical() -> float:
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def _limit() -> float:
    """The limit of this process (ulimit -v) or of its container, in bytes; inf if there is none."""
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    limits = [float(limit)] if limit != resource.RLIM_INFINITY else []
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with suppress(OSError, ValueError):
            limits.append(float(Path(file).read_text()))
    return min(limits, default=float("inf"))


def peak_memory() -> float:
    """Peak memory of this process in bytes: on the GPU if it used one, else resident memory."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
