"""What a computation will take: operations, bytes, and how much memory there is."""

import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from fieldlens.subject import Subject

SHARE = 0.5
"""How much of the free memory we allow ourselves."""


@dataclass(frozen=True)
class Effort:
    """A forward pass over one text."""

    operations: float
    bytes: float


def forward(subject: Subject, tokens: int, keep: int, window: int | None) -> Effort:
    """One text of so many tokens, logits of the last `keep`: a model of the cost, good to a factor of two."""
    width, layers, heads = subject.width or 1, subject.layers or 1, subject.heads or 1
    seen = min(tokens, window or tokens)
    operations = 2.0 * subject.parameters * tokens + 4.0 * layers * tokens * seen * width
    size = 8 if subject.dtype == torch.float64 else 4
    held = tokens * width * 12 + 2 * keep * subject.vocabulary
    if subject.scores:  # H·T·T scores, their softmax, and the mask added to them
        held += 3 * heads * tokens**2
    elif window is not None and not subject.ours:
        held += tokens**2
    return Effort(operations, float(size * held))


def free_memory(device: torch.device) -> float:
    """Bytes that can still be had on a device."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        return int(lines["MemAvailable"].split()[0]) * 1024.0
    except (OSError, KeyError):  # no Linux: half of what the machine has
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2


def peak_memory() -> float:
    """The most bytes that this process has held: on its GPU if it used one, else in all."""
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        return float(torch.cuda.max_memory_allocated())
    unit = 1 if sys.platform == "darwin" else 1024
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit)


def spoken(seconds: float) -> str:
    """A duration as a person says it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def spoken_bytes(size: float) -> str:
    for name, unit in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"


def backward(subject: Subject, tokens: int, checkpointing: bool) -> Effort:
    """A gradient at the embeddings of one text: what is kept for it, with or without computing layers again."""
    width, layers, heads = subject.width or 1, subject.layers or 1, subject.heads or 1
    once = forward(subject, tokens, 1, None)
    size = 8 if subject.dtype == torch.float64 else 4
    kept = 12 * width + (2 * heads * tokens if subject.scores else 0)
    held = tokens * (kept * layers if not checkpointing else width * layers + 2 * kept)
    return Effort((3 if checkpointing else 2) * once.operations, once.bytes + float(size * held))
