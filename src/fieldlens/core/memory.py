"""Memory: what is free, what was used, and whether a library ran out of it."""

import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line shows its help without waiting for torch
    import torch


TRIM_THRESHOLD, TOP_PAD, MMAP_THRESHOLD = -1, -2, -3
"""What glibc's mallopt calls its settings."""


def keep_pages() -> None:
    """Let glibc keep up to 1 GiB of freed memory for the next tensors.

    Otherwise each step gives its memory back and faults it in again: a step of the pocket takes × 1.04 to × 1.05.
    """
    with suppress(OSError, TypeError, AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(MMAP_THRESHOLD, 32 << 20)  # the most that it takes: what is larger is still given back
        mallopt(TRIM_THRESHOLD, 1 << 30)
        mallopt(TOP_PAD, 64 << 20)


def out_of_memory(error: BaseException) -> bool:
    """Whether a library says that memory ran out, each in its own way."""
    import torch

    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        words in str(error) for words in ("not enough memory", "can't allocate memory", "out of memory")
    )


def free_memory(device: "torch.device") -> float:
    """Bytes that can still be had on a device."""
    import torch

    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024.0
    except (OSError, KeyError):  # no Linux: half of what the machine has
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def peak_memory() -> float:
    """The most bytes that this process has held: on its GPU if it used one, else in all."""
    import torch

    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)
