"""Selection of device, dtype and number of threads, and the limit on what is read."""

import dataclasses
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fieldlens.core.cores import free_cores, usable_cores
from fieldlens.core.errors import BadInput
from fieldlens.core.limits import DOCUMENT_BYTES, document_bytes
from fieldlens.core.memory import keep_pages

if TYPE_CHECKING:  # the command line prints its help without importing torch
    import torch


@dataclass(frozen=True)
class Machine:
    """Device, dtype and threads; `start` configures this process accordingly.

    Parameters
    ----------
    device
        cpu, cuda, cuda:1, mps …; auto selects a GPU if one is available.
    dtype
        Dtype of the computation; auto is float32 on a CPU and bfloat16 on a GPU that supports it. Gradients are
        always computed in float32 or wider, and training keeps its weights in float32 or wider.
    threads
        Number of CPU threads. Default: chosen by the command or by torch. Use 1 if other jobs run on the same machine:
        threads that compete for cores are slow.
    max_document_bytes
        Maximum size of a document, in bytes after decompression. A plain text file is one document; so is each line of
        a JSONL file. The limit protects against endless input and compression bombs; raise it for larger documents.
    """

    device: str = "auto"
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    threads: int | None = None
    max_document_bytes: int = DOCUMENT_BYTES

    def start(self) -> "tuple[torch.device, torch.dtype]":
        """Configure threads and memory, and return the device and dtype.

        Denormals are flushed to zero: decaying biases produce them, and computing with them takes 2–3 times as long.
        """
        import torch

        self.set_limits()
        if self.threads is not None:
            if self.threads < 1:
                raise BadInput(f"threads must be at least 1, got {self.threads}")
            torch.set_num_threads(self.threads)
        torch.set_flush_denormal(True)
        keep_pages()
        device = self.choose_device()
        return device, self.choose_dtype(device)

    def with_free_cores(self, recorded: int | None = None) -> "Machine":
        """The same machine with a fixed number of threads: as recorded, or as many as cores are free.

        Unchanged if threads are set here or by OMP_NUM_THREADS, and on a GPU.
        """
        import torch

        if self.threads is not None or "OMP_NUM_THREADS" in os.environ or self.choose_device().type != "cpu":
            return self
        threads = min(torch.get_num_threads(), free_cores()) if recorded is None else min(recorded, usable_cores())
        return dataclasses.replace(self, threads=threads)

    def set_limits(self) -> None:
        """Set the size of the largest document that this process reads."""
        if self.max_document_bytes < 1:
            raise BadInput(f"max_document_bytes must be at least 1, got {self.max_document_bytes}")
        document_bytes.set(self.max_document_bytes)

    def choose_device(self) -> "torch.device":
        import torch

        if self.device == "auto":
            accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
            return accelerator or torch.device("cpu")
        try:
            device = torch.device(self.device)
            torch.empty(0, device=device).cpu()  # fails for a device without storage, such as meta
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            message = str(error).splitlines()[0]
            kind = self.device.partition(":")[0]
            absent = kind in ("cuda", "mps", "xpu") and not getattr(torch, kind).is_available()
            if absent:
                cause = f"this machine has no usable {kind} device, or this torch was built without it"
                raise BadInput(f"{cause}: use --device cpu or auto instead of {self.device} ({message})") from None
            raise BadInput(f"device '{self.device}' cannot be used: {message}") from None
        return device

    def choose_dtype(self, device: "torch.device") -> "torch.dtype":
        import torch

        if self.dtype == "auto":
            use_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported()
            return torch.bfloat16 if use_bfloat16 else torch.float32
        if self.dtype == "bfloat16" and device.type == "cpu" and not bfloat16_runs():
            print("fieldlens: bfloat16 does not run on this CPU; float32 is used instead", file=sys.stderr)
            return torch.float32
        return getattr(torch, self.dtype)


def bfloat16_runs() -> bool:
    """Whether bfloat16 works on this CPU, tested in a child process.

    Some CPUs report support and then fail with an illegal instruction.
    """
    program = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); print(float((a @ a)[0, 0]))"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return child.returncode == 0 and child.stdout.strip() == "64.0"
