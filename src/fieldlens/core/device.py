"""Where and how numbers are computed: device, dtype, threads."""

import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fieldlens.core.errors import BadInput
from fieldlens.core.memory import keep_pages

if TYPE_CHECKING:  # the command line shows its help without waiting for torch
    import torch


@dataclass(frozen=True)
class Machine:
    """What to compute on; `start` prepares this process for it.

    Parameters
    ----------
    device
        cpu, cuda, cuda:1, mps …; auto takes a GPU if there is one.
    dtype
        Type of weights and activations; auto is float32 on a CPU, bfloat16 on a GPU that has it.
    threads
        CPU threads; as many as torch likes unless given. Side by side with other work give 1: threads that wait for
        each other crawl.
    """

    device: str = "auto"
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    threads: int | None = None

    def start(self) -> "tuple[torch.device, torch.dtype]":
        """Set the threads, flush denormals (decaying biases make them, at 2–3 × the time), keep pages, and choose."""
        import torch

        if self.threads is not None:
            if self.threads < 1:
                raise BadInput(f"threads is {self.threads}: at least 1 is needed")
            torch.set_num_threads(self.threads)
        torch.set_flush_denormal(True)
        keep_pages()
        device = self._device()
        return device, self._dtype(device)

    def _device(self) -> "torch.device":
        import torch

        if self.device == "auto":
            accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
            return accelerator or torch.device("cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device).cpu()  # what has no data, as meta, cannot be brought back
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise BadInput(f"device '{self.device}' cannot be used: {str(error).splitlines()[0]}") from None
        return device

    def _dtype(self, device: "torch.device") -> "torch.dtype":
        import torch

        if self.dtype == "auto":
            half = device.type == "cuda" and torch.cuda.is_bf16_supported()
            return torch.bfloat16 if half else torch.float32
        if self.dtype == "bfloat16" and device.type == "cpu" and not bfloat16_runs():
            print("fieldlens: bfloat16 does not run on this CPU; float32 is used instead", file=sys.stderr)
            return torch.float32
        return getattr(torch, self.dtype)


def bfloat16_runs() -> bool:
    """Multiply in a child process: some CPUs advertise what they then refuse with an illegal instruction."""
    program = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a)[0, 0]))"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return child.returncode == 0 and child.stdout.strip() == "64.0"
