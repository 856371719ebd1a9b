"""Provenance: the versions and the machine with which numbers were computed."""

import platform
from importlib.metadata import version
from typing import Any

import torch

import fieldlens
from fieldlens.storage.records import Provenance


def provenance(device: torch.device, kernel: str, **machine: Any) -> Provenance:
    """Versions and machine, as every result and every run records them; `machine` adds to the latter.

    `kernel` is that of the attention over many tokens, and why it was chosen.
    """
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
            "kernel": kernel,
            **machine,
        },
    }
