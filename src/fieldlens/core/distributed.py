"""Distributed training under torchrun: rank, world size and a few collective operations."""

import os
import time
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from fieldlens.core.errors import BadInput

TIMEOUT = timedelta(minutes=10)
"""Timeout of collective operations in training; a process that takes longer is considered hung."""

LONG_TIMEOUT = timedelta(days=7)
"""Timeout of barriers: the leading process may have to tokenize a large corpus."""


@dataclass(frozen=True)
class World:
    """Rank of this process and number of processes that train one model."""

    rank: int = 0
    size: int = 1
    barrier_group: dist.ProcessGroup | None = None
    """A group of the same processes with `LONG_TIMEOUT`."""

    @property
    def leads(self) -> bool:
        """Whether this process is rank 0, the only one that writes to disk and to the terminal."""
        return self.rank == 0

    def rows(self, batch: int) -> slice:
        """Rows of a batch that this process computes."""
        if batch % self.size:
            raise BadInput(f"batch size {batch} is not divisible by {self.size} processes")
        share = batch // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def wait(self) -> None:
        """Barrier: wait until all processes have reached this point."""
        if self.size > 1:
            dist.barrier(self.barrier_group)

    def any(self, flag: int) -> int:
        """Maximum of the flag over all processes, so that a signal received by one process stops all."""
        if self.size == 1:
            return flag
        return int(_all_reduce(torch.tensor(flag), dist.ReduceOp.MAX))

    def mean(self, value: float) -> float:
        """Mean of a value over all processes."""
        if self.size == 1:
            return value
        return float(_all_reduce(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.SUM)) / self.size


def _all_reduce(value: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
    """All-reduce a tensor in place and return it.

    gloo's thread must release the tensor before Python does. Otherwise the thread asks Python to free it, which aborts
    a process that is exiting.
    """
    dist.all_reduce(value, operation)
    while value._use_count() > 1:  # type: ignore[attr-defined]
        time.sleep(0)
    return value


def join() -> World:
    """Join the process group if started by torchrun. Flags and losses use gloo, gradients on GPUs use nccl."""
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return World()
    if missing := [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]:
        raise BadInput(f"WORLD_SIZE is set but {missing[0]} is not: launch with torchrun, or unset WORLD_SIZE")
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, timeout=TIMEOUT)
    return World(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=LONG_TIMEOUT))


def leave() -> None:
    """Leave the process group, if this process joined one."""
    if dist.is_initialized():
        dist.destroy_process_group()
