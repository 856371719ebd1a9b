"""One process or several: what torchrun says of this one, and the few things that all must agree on."""

import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from fieldlens.core.errors import BadInput

TIMEOUT = timedelta(minutes=10)
"""How long a process waits for another in training: that one hangs."""

PATIENCE = timedelta(days=7)
"""How long the others wait for the leading process, which may have a large corpus to make tokens of."""


@dataclass(frozen=True)
class World:
    """This process among all that train one model."""

    rank: int = 0
    size: int = 1
    patient: dist.ProcessGroup | None = None
    """The same processes, for waits that may be long."""

    @property
    def leads(self) -> bool:
        """One process writes to the disk and to the terminal."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """This process's share of a batch."""
        if batch % self.size:
            raise BadInput(f"a batch of {batch} cannot be shared by {self.size} processes")
        share = batch // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def wait(self) -> None:
        """Go on when all have come this far, however long one of them takes."""
        if self.size > 1:
            dist.barrier(self.patient)

    def any(self, flag: int) -> int:
        """The largest of all processes' flags: a signal that reached one reaches all."""
        if self.size == 1:
            return flag
        return int(_reduced(torch.tensor(flag), dist.ReduceOp.MAX))

    def mean(self, value: float) -> float:
        """The mean of all processes' values."""
        if self.size == 1:
            return value
        return float(_reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.SUM)) / self.size


def _reduced(value: torch.Tensor, by: dist.ReduceOp.RedOpType) -> torch.Tensor:
    """One value made of all processes' values.

    gloo's thread must let go of the tensor before Python does: otherwise the thread asks Python to free it, and a
    process that is just ending is aborted for that.
    """
    dist.all_reduce(value, by)
    while value._use_count() > 1:  # type: ignore[attr-defined]
        time.sleep(0)
    return value


def join() -> World:
    """Join the group that torchrun made, if it did. Flags and losses travel by gloo, gradients on GPUs by nccl."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return World()
    if absent := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise BadInput(f"WORLD_SIZE is set and {absent[0]} is not: start several processes by torchrun, or unset it")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=TIMEOUT)
    return World(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=PATIENCE))


def leave() -> None:
    """Leave the group again."""
    if dist.is_initialized():
        dist.destroy_process_group()
