"""Free and peak memory, out-of-memory errors, allocator settings."""

import ctypes
import os
import resource
import sys
from contextlib import suppress
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


def out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that memory ran out. Libraries report it with different types and messages."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        phrase in str(error) for phrase in ("not enough memory", "can't allocate memory", "out of memory")
    )


def free_memory(device: "torch.device") -> float:
    """Free bytes on a device."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024.0
    except (OSError, KeyError):  # not Linux: half of the physical memory
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def peak_memory() -> float:
    """Peak memory of this process in bytes: on the GPU if it used one, else resident memory."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
