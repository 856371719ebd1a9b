"""Parity: is the number of ones in a bit string odd? Trained on 1 to 20 bits, tested on up to 200.

A string is its bits and a separator, after which the model predicts 0 or 1. In text recent tokens matter most; here
every bit matters equally. This is a separate small study: training one model takes minutes and writes one file.
"""

import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.core.format import slug
from fieldlens.kernels.selection import describe_kernels
from fieldlens.models.decoder import Config, Decoder
from fieldlens.storage.provenance import provenance
from fieldlens.storage.results import write_result
from fieldlens.storage.sealed import digest, read_sealed
from fieldlens.training.update import update

KIND = "fieldlens parity"
VERSION = 1
SCHEMES = ("sandwich", "alibi", "kerple", "t5:buckets=16,max_distance=20", "rotary", "none")
"""Default options, except that T5's buckets end at the training length, since farther ones would not be trained."""
RECENT = SCHEMES[:4]
"""Schemes whose bias favours recent tokens."""
SEEDS = (1235, 1236, 1237)
SEPARATOR, PADDING = 2, 3
CHANCE = 0.5


@dataclass(frozen=True)
class Task:
    """All settings of a trial except the scheme and the seed."""

    longest: int = 20
    """Maximum number of bits of a training string."""
    tested: tuple[int, ...] = (*range(1, 21), 30, 40, 60, 80, 100, 150, 200)
    trials: int = 512
    """Number of strings of each tested length, the same for all models."""
    layers: int = 3
    width: int = 64
    heads: int = 4
    batch: int = 128
    steps: int = 12_000
    learning_rate: float = 1e-3
    warmup: int = 100
    mastered: float = 0.9
    """Curriculum: training starts with one bit and adds one when the accuracy on the longest strings exceeds this."""
    look_every: int = 25

    def rate(self, step: int) -> float:
        """Linear warm-up, then cosine decay to 5 %."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * (0.05 + 0.95 * cosine)


@dataclass(frozen=True)
class Trial:
    """One model: a scheme and a seed."""

    scheme: str
    seed: int
    task: Task = Task()

    @property
    def address(self) -> str:
        return digest({"version": VERSION, "scheme": self.scheme, "seed": self.seed, "task": asdict(self.task)})[:16]

    @property
    def name(self) -> str:
        return f"{slug(self.scheme)}-{self.seed}"

    def file(self, folder: Path) -> Path:
        return folder / f"{self.name}.json"

    def state(self, folder: Path) -> str:
        """done, stale or missing."""
        try:
            content = read_sealed(self.file(folder))
        except BadInput:
            return "missing"
        same = content.get("kind") == KIND and content.get("address") == self.address
        return "done" if same and _complete(content, self.task.tested) else "stale"

    def accuracy(self, folder: Path) -> dict[int, float] | None:
        """Accuracy by number of bits; None unless this trial is done."""
        if self.state(folder) != "done":
            return None
        return {int(bits): float(share) for bits, share in read_sealed(self.file(folder))["accuracy"].items()}


def _complete(content: dict[str, Any], tested: Sequence[int]) -> bool:
    """Whether there is a valid accuracy for every tested length."""
    try:
        return all(0 <= float(content["accuracy"][str(bits)]) <= 1 for bits in tested)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def trials() -> Iterator[Trial]:
    """All trials: every scheme with the first seed, then with the next."""
    return (Trial(scheme, seed) for seed in SEEDS for scheme in SCHEMES)


def strings(bits_B: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Sample random bit strings, each with its separator and padding, and their parities: (B, T), (B,)."""
    positions_T = torch.arange(int(bits_B.max()) + 1)
    ids_BT = torch.randint(2, (len(bits_B), len(positions_T)), generator=generator)
    is_bit_BT, ends_BT = positions_T < bits_B[:, None], positions_T == bits_B[:, None]
    parity_B = (ids_BT * is_bit_BT).sum(1) % 2
    return torch.where(is_bit_BT, ids_BT, torch.where(ends_BT, SEPARATOR, PADDING)), parity_B


def answers(model: Decoder, ids_BT: Tensor, bits_B: Tensor) -> Tensor:
    """Logits after each separator: (B, V)."""
    return model(ids_BT)[torch.arange(len(bits_B)), bits_B]


@torch.no_grad()
def accuracy(model: Decoder, bits: int, count: int, generator: torch.Generator) -> float:
    """Accuracy on `count` random strings of a length."""
    bits_B = torch.full((count,), bits)
    ids_BT, parity_B = strings(bits_B, generator)
    predicted_B = answers(model, ids_BT, bits_B)[:, :2].argmax(-1)
    return float((predicted_B == parity_B).double().mean())


def train(trial: Trial) -> tuple[Decoder, int]:
    """Train a model; returns it and the maximum number of bits that the curriculum reached."""
    task = trial.task
    torch.manual_seed(trial.seed)
    generator = torch.Generator().manual_seed(trial.seed)
    config = Config(
        scheme=trial.scheme, layers=task.layers, width=task.width, heads=task.heads, vocab_size=4,
        train_length=task.longest + 1,
    )  # fmt: skip
    model = Decoder(config)
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    longest = 1
    for step in range(task.steps):
        # the longer of two draws, so that long strings are more frequent
        bits_B = torch.randint(1, longest + 1, (task.batch, 2), generator=generator).amax(1)
        ids_BT, parity_B = strings(bits_B, generator)
        loss = F.cross_entropy(answers(model, ids_BT, bits_B), parity_B)
        loss.backward()
        update(model, [optimiser], step=step + 1, loss=float(loss.detach()), rate=task.rate(step), clip=1.0)
        if (step + 1) % task.look_every == 0:
            if longest < task.longest and accuracy(model, longest, 256, generator) > task.mastered:
                longest += 1
            if (step + 1) % max(task.look_every, task.steps // 10) == 0:
                message = f"parity, {trial.name}: step {step + 1} of {task.steps}, strings of up to {longest} bits"
                print(message, file=sys.stderr, flush=True)
    return model, longest


def perform(trial: Trial, folder: Path) -> None:
    """Train and test a model and write its result, unless the trial is done."""
    if trial.state(folder) == "done":
        return
    model, longest = train(trial)
    accuracies = {}
    for bits in trial.task.tested:
        accuracies[str(bits)] = accuracy(model, bits, trial.task.trials, torch.Generator().manual_seed(bits))
    content = {"kind": KIND, "address": trial.address, "scheme": trial.scheme, "seed": trial.seed}
    content |= {"task": asdict(trial.task), "reached": longest, "accuracy": accuracies}
    device = torch.device("cpu")
    kernel = describe_kernels(model.scheme.distinct_schemes, device, torch.float32, training=True)
    write_result(trial.file(folder), content | provenance(device, kernel))


def perform_all(trials: Sequence[Trial], folder: Path, workers: int, machine: Machine) -> None:
    """Perform trials in parallel, one process per worker, with one thread each unless the machine sets more."""
    remaining = [trial for trial in trials if trial.state(folder) != "done"]
    machine = replace(machine, threads=machine.threads or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _start_worker, (machine,)) as pool:
        try:
            for future in as_completed([pool.submit(perform, trial, folder) for trial in remaining]):
                future.result()
        except BaseException as error:
            for child in multiprocessing.active_children():
                child.terminate()  # otherwise an interrupt would wait for the running trials
            if isinstance(error, BrokenProcessPool):
                raise BadInput(
                    "a worker process of parity was killed; run the same command again to continue"
                ) from None
            raise


def _start_worker(machine: Machine) -> None:
    """Set up a worker process: it ignores Ctrl-C and exits when its parent process does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def exit_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=exit_with_parent, daemon=True).start()
    machine.start()
