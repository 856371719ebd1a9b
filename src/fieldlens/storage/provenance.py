"""Provenance: the versions and the machine with which numbers were computed."""

import platform
from importlib.metadata import version
from typing import Any

import torch

import fieldlens
from fieldlens.storage.records import Provenance


def provenance(device: torch.device, **machine: Any) -> Provenance:
    """Versions and machine, as every result and every run records them; `machine` adds to the latter."""
    return {
        "versions": {
            "fieldlens": fieldlens.__version__,
            "torch": version("torch"),
            "transformers": version("transformers"),
            "python": platform.python_version(),
        },
        "machine": {
            "device": str(device),
            "threads": torch.get_num_threads(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            **machine,
        },
    }
