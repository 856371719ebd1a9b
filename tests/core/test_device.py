"""Process setup before a computation."""

import platform
import subprocess
import sys

import pytest
import torch

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput

KEPT = """
import resource, sys, torch
from pathlib import Path
from fieldlens.core.device import Machine
if sys.argv[1] == "started":
    Machine(device="cpu").start()
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() >> 20
before = resident()
held = [torch.ones(4 << 20) for _ in range(16)]  # 256 MiB, like tensors saved for backward
del held
print(resident() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="not glibc")
def test_freed_memory_is_kept_for_the_next_step() -> None:
    kept = {}
    for state in ("started", "not started"):
        child = subprocess.run([sys.executable, "-c", KEPT, state], capture_output=True, text=True, check=True)
        kept[state] = int(child.stdout)
    assert kept["not started"] < 64
    assert kept["started"] > 200


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_not_there_is_named_first() -> None:
    with pytest.raises(BadInput, match=r"^this machine has no usable cuda device, or .*: use --device cpu"):
        Machine("cuda:1").choose_device()
