"""What a process does before it computes."""

import platform
import subprocess
import sys

import pytest

FAULTS = """
import resource, sys, torch
from fieldlens.machine import Machine
if sys.argv[1] == "started":
    Machine(device="cpu").start()
def step():
    held = [torch.zeros(1 << 20) for _ in range(32)]  # 128 MiB, as what is kept for backward
for _ in range(3):
    step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    step()
print((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) // 4)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_step_does_not_fault_its_memory_in_again() -> None:
    faults = {}
    for what in ("started", "not started"):
        child = subprocess.run([sys.executable, "-c", FAULTS, what], capture_output=True, text=True, check=True)
        faults[what] = int(child.stdout)
    assert faults["started"] < 100 < faults["not started"]
