"""Human-readable durations and sizes, names as file names, and the format of Hugging Face ids."""

import re

HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
"""A Hugging Face id: owner/name."""


def format_duration(seconds: float) -> str:
    """Seconds, minutes or hours with a unit, e.g. 12 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def format_bytes(size: float) -> str:
    for name, unit in (("EiB", 2**60), ("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if size >= unit:
            return f"{size / unit:.3g} {name}"
    return f"{size:.0f} bytes"


def slug(name: str) -> str:
    """A name as part of a file name: other characters are replaced by hyphens."""
    return re.sub(r"[^\w.=,+-]+", "-", name).strip("-.") or "model"
