"""Several processes: the same gradient as one."""

import os
import socket
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import short_training as training
import torch
import torch.multiprocessing
from safetensors.torch import load_file, save_file

from fieldlens.core import distributed as processes
from fieldlens.core.device import Machine
from fieldlens.core.distributed import World
from fieldlens.core.errors import BadInput
from fieldlens.data.corpus import open_corpus
from fieldlens.data.tokens import tokenize
from fieldlens.training.recipe import recipe
from fieldlens.training.trainer import Trainer


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


def agree(rank: int, size: int, port: int) -> None:
    """Wait for longer than a process may hang, then vote."""
    enter(rank, size, port)
    processes.TIMEOUT = timedelta(seconds=2)
    world = processes.join()
    if world.leads:
        time.sleep(3)
    world.wait()
    assert world.mean(rank) == 0.5
    processes.leave()


def test_processes_wait_patiently() -> None:
    torch.multiprocessing.spawn(agree, (2, free_port()), 2)  # type: ignore[no-untyped-call]


def test_a_vote_is_over_when_nobody_else_holds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's thread may hold the tensor for longer than the vote takes, and must not be the last to let go of it."""
    held: list[torch.Tensor] = []

    def reduce(value: torch.Tensor, by: object) -> None:
        held.append(torch.ones((), requires_grad=True, dtype=torch.float64) * value)  # what backward needs is held
        threading.Timer(0.3, held.clear).start()

    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    assert World(size=2).mean(3.0) == 1.5
    assert not held


def test_half_of_what_torchrun_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BadInput, match="WORLD_SIZE is set and RANK is not"):
        processes.join()
