"""Several processes compute the same gradient as one."""

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
    """A free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def enter(rank: int, size: int, port: int) -> None:
    """Set the environment of one of several processes, as torchrun does."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def gradients(rank: int, size: int, corpus: Path, port: int) -> None:
    """The gradient of one step, written by the leading process."""
    enter(rank, size, port)
    os.environ["FIELDLENS_CACHE"] = str(corpus.parent / "cache")
    chosen = recipe("smoke", corpus=str(corpus), scheme="kerple", accumulation=2)
    world = processes.join()
    tokens = tokenize(open_corpus(str(corpus)), chosen.bpe, None, chosen.max_bytes)
    trainer = Trainer(chosen, tokens, *Machine("cpu", "float32", 1).start(), world)
    loss = trainer.gradient()
    if world.leads:
        grads = {name: parameter.grad for name, parameter in trainer.decoder.named_parameters()}
        save_file({**grads, "loss": torch.tensor(loss)}, corpus.parent / f"gradients-{size}.safetensors")
    processes.leave()


def test_two_processes_have_the_gradient_of_one(tmp_path: Path) -> None:
    corpus = training.write_corpus(tmp_path / "corpus")
    for size in (1, 2):
        torch.multiprocessing.spawn(gradients, (size, corpus, free_port()), size)  # type: ignore[no-untyped-call]
    single, double = (load_file(tmp_path / f"gradients-{size}.safetensors") for size in (1, 2))
    assert float(single.pop("loss")) == pytest.approx(float(double.pop("loss")), rel=1e-6)
    difference = sum(float(((single[name] - double[name]) ** 2).sum()) for name in single) ** 0.5
    assert difference <= 1e-5 * sum(float((value**2).sum()) for value in single.values()) ** 0.5


def agree(rank: int, size: int, port: int) -> None:
    """Wait at a barrier for longer than the training timeout, then reduce a value."""
    enter(rank, size, port)
    processes.TIMEOUT = timedelta(seconds=2)
    world = processes.join()
    if world.leads:
        time.sleep(3)
    world.wait()
    assert world.mean(rank) == 0.5
    processes.leave()


def test_a_barrier_may_exceed_the_timeout() -> None:
    torch.multiprocessing.spawn(agree, (2, free_port()), 2)  # type: ignore[no-untyped-call]


def test_reduction_waits_until_the_tensor_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """gloo's thread may hold the tensor longer than the reduction takes, and must not be the last to release it."""
    held: list[torch.Tensor] = []

    def reduce(value: torch.Tensor, operation: object) -> None:
        held.append(torch.ones((), requires_grad=True, dtype=torch.float64) * value)  # the graph keeps a reference
        threading.Timer(0.3, held.clear).start()

    monkeypatch.setattr(torch.distributed, "all_reduce", reduce)
    assert World(size=2).mean(3.0) == 1.5
    assert not held


def test_incomplete_torchrun_environment_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BadInput, match="WORLD_SIZE is set but RANK is not"):
        processes.join()
