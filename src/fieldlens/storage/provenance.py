"""Provenance: where and with what numbers were computed."""

import platform
from importlib.metadata import version
from typing import Any

import torch


def provenance(device: torch.device) -> dict[str, Any]:
    """Where and with what numbers were computed."""
    return {
        "versions": {
            **{name: version(name) for name in ("fieldlens", "torch", "transformers")},
            "python": platform.python_version(),
        },
        "machine": {
            "device": str(device),
            "threads": torch.get_num_threads(),
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
    }
