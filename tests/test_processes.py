"""Several processes: the same gradient as one."""

import os
import socket
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
import training
from safetensors.torch import load_file, save_file

from fieldlens import processes
from fieldlens.corpus import open_corpus
from fieldlens.errors import BadInput
from fieldlens.machine import Machine
from fieldlens.recipe import recipe
from fieldlens.tokens import tokenize
from fieldlens.trainer import Trainer


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def enter(rank: int, size: int, port: int) -> None:
    """Make this process one of several, as torchrun would."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def gradients(rank: int, size: int, corpus: Path, port: int) -> None:
    """One step's gradient, written by the leading process."""
    enter(rank, size, port)
    os.environ["FIELDLENS_CACHE"] = str(corpus.parent / "cache")
    chosen = recipe("smoke", corpus=str(corpus), scheme="kerple", accumulation=2)
    world = processes.join()
    tokens = tokenize(open_corpus(str(corpus)), chosen.bpe, None, chosen.max_bytes)
    trainer = Trainer(chosen, tokens, *Machine("cpu", "float32", 1).start(), world)
    loss = trainer.gradient()
    if world.leads:
        found = {name: parameter.grad for name, parameter in trainer.decoder.named_parameters()}
        save_file({**found, "loss": torch.tensor(loss)}, corpus.parent / f"gradients-{size}.safetensors")
    processes.leave()


def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    corpus = training.write_corpus(tmp_path / "corpus")
    for size in (1, 2):
        torch.multiprocessing.spawn(gradients, (size, corpus, free_port()), size)  # type: ignore[no-untyped-call]
    one, two = (load_file(tmp_path / f"gradients-{size}.safetensors") for size in (1, 2))
    assert float(one.pop("loss")) == pytest.approx(float(two.pop("loss")), rel=1e-6)
    difference = sum(float(((one[name] - two[name]) ** 2).sum()) for name in one) ** 0.5
    assert difference <= 1e-5 * sum(float((value**2).sum()) for value in one.values()) ** 0.5


def agree_and_end(rank: int, size: int, port: int) -> None:
    """Wait long, then end right after a vote, all other threads of this process being so slow that they come last."""
    enter(rank, size, port)
    processes.TIMEOUT = timedelta(seconds=2)
    world = processes.join()
    if world.leads:
        time.sleep(3)
    world.wait()
    processor = sorted(os.sched_getaffinity(0))[rank % len(os.sched_getaffinity(0))]
    for thread in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(thread, {processor})
        if thread != os.getpid():
            os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    assert world.mean(rank) == 0.5  # and not even leave, which would wait for some of them


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="threads cannot be slowed here")
def test_processes_wait_patiently_and_end_quietly() -> None:
    torch.multiprocessing.spawn(agree_and_end, (2, free_port()), 2)  # type: ignore[no-untyped-call]


def test_half_of_what_torchrun_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BadInput, match="WORLD_SIZE is set and RANK is not"):
        processes.join()
