"""Parity: is the number of ones in a bit string odd? Trained on 1 to 20 bits, tested on up to 200.

A string is its bits, then a separator; the model must say 0 or 1 after it. In text recent tokens matter most; here
every bit matters as much. A small study of its own: one model takes minutes, and leaves one small file.
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
from torch import Tensor, nn

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.evaluation.command import slug
from fieldlens.models.decoder import Config, Decoder
from fieldlens.storage.content_cache import digest
from fieldlens.storage.provenance import provenance
from fieldlens.storage.results import read_json, write_json

KIND = "fieldlens parity"
VERSION = 1
SCHEMES = ("sandwich", "alibi", "kerple", "t5:buckets=16,max_distance=20", "rotary", "none")
"""As they are; T5's buckets end where training does, or its far ones would never be trained."""
RECENT = SCHEMES[:4]
"""Those whose bias favours recent tokens."""
SEEDS = (1235, 1236, 1237)
SEPARATOR, FILLING = 2, 3
CHANCE = 0.5


@dataclass(frozen=True)
class Task:
    """Everything that decides a result but the scheme and the seed."""

    longest: int = 20
    """Strings of training have 1 to so many bits."""
    tested: tuple[int, ...] = (*range(1, 21), 30, 40, 60, 80, 100, 150, 200)
    trials: int = 512
    """Strings of each tested length, the same for all models."""
    layers: int = 3
    width: int = 64
    heads: int = 4
    batch: int = 128
    steps: int = 12_000
    learning_rate: float = 1e-3
    warmup: int = 100
    mastered: float = 0.9
    """Training begins with one bit; strings become longer by one when so much of the longest is right."""
    look_every: int = 25

    def rate(self, step: int) -> float:
        """Linear warm-up, then a cosine to a twentieth."""
        swing = 0.5 * (1 + math.cos(math.pi * step / self.steps))
        return self.learning_rate * min(1.0, (step + 1) / self.warmup) * (0.05 + 0.95 * swing)


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
            found = read_json(self.file(folder))
        except BadInput:
            return "missing"
        same = found.get("kind") == KIND and found.get("address") == self.address
        return "done" if same and _whole(found, self.task.tested) else "stale"

    def accuracy(self, folder: Path) -> dict[int, float] | None:
        """The part of the strings that was answered rightly, by their bits; nothing unless it was this trial."""
        if self.state(folder) != "done":
            return None
        return {int(bits): float(share) for bits, share in read_json(self.file(folder))["accuracy"].items()}


def _whole(found: dict[str, Any], tested: Sequence[int]) -> bool:
    try:
        return all(0 <= float(found["accuracy"][str(bits)]) <= 1 for bits in tested)
    except (KeyError, TypeError, ValueError, AttributeError):
        return False


def trials() -> Iterator[Trial]:
    """All models: each seed of every scheme, then the next seed."""
    return (Trial(scheme, seed) for seed in SEEDS for scheme in SCHEMES)


def strings(bits_B: Tensor, chance: torch.Generator) -> tuple[Tensor, Tensor]:
    """Random bit strings, each with its separator and filled up behind it, and their parities: (B, T), (B,)."""
    places_T = torch.arange(int(bits_B.max()) + 1)
    ids_BT = torch.randint(2, (len(bits_B), len(places_T)), generator=chance)
    is_bit_BT, ends_BT = places_T < bits_B[:, None], places_T == bits_B[:, None]
    parity_B = (ids_BT * is_bit_BT).sum(1) % 2
    return torch.where(is_bit_BT, ids_BT, torch.where(ends_BT, SEPARATOR, FILLING)), parity_B


def answers(model: Decoder, ids_BT: Tensor, bits_B: Tensor) -> Tensor:
    """What the model says after each separator: logits, (B, V)."""
    return model(ids_BT)[torch.arange(len(bits_B)), bits_B]


@torch.no_grad()
def accuracy(model: Decoder, bits: int, count: int, chance: torch.Generator) -> float:
    """The part of some strings that the model answers rightly."""
    bits_B = torch.full((count,), bits)
    ids_BT, parity_B = strings(bits_B, chance)
    found_B = answers(model, ids_BT, bits_B)[:, :2].argmax(-1)
    return float((found_B == parity_B).double().mean())


def train(trial: Trial) -> tuple[Decoder, int]:
    """A trained model, and how many bits its training strings had in the end."""
    task = trial.task
    torch.manual_seed(trial.seed)
    chance = torch.Generator().manual_seed(trial.seed)
    config = Config(
        scheme=trial.scheme, layers=task.layers, width=task.width, heads=task.heads, vocab_size=4,
        train_length=task.longest + 1,
    )  # fmt: skip
    model = Decoder(config)
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98))
    longest = 1
    for step in range(task.steps):
        # the longer of two draws: what is hardest comes more often
        bits_B = torch.randint(1, longest + 1, (task.batch, 2), generator=chance).amax(1)
        ids_BT, parity_B = strings(bits_B, chance)
        for group in optimiser.param_groups:
            group["lr"] = task.rate(step)
        loss = F.cross_entropy(answers(model, ids_BT, bits_B), parity_B)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        model.scheme.project()
        if (step + 1) % task.look_every == 0:
            if longest < task.longest and accuracy(model, longest, 256, chance) > task.mastered:
                longest += 1
            if (step + 1) % max(task.look_every, task.steps // 10) == 0:
                said = f"parity, {trial.name}: step {step + 1} of {task.steps}, strings of up to {longest} bits"
                print(said, file=sys.stderr, flush=True)
    return model, longest


def perform(trial: Trial, folder: Path) -> None:
    """Train, test, and write the result; nothing if it is there."""
    if trial.state(folder) == "done":
        return
    model, longest = train(trial)
    found = {}
    for bits in trial.task.tested:
        found[str(bits)] = accuracy(model, bits, trial.task.trials, torch.Generator().manual_seed(bits))
    about = {"kind": KIND, "address": trial.address, "scheme": trial.scheme, "seed": trial.seed}
    about |= {"task": asdict(trial.task), "reached": longest, "accuracy": found}
    write_json(trial.file(folder), about | provenance(torch.device("cpu")))


def perform_all(some: Sequence[Trial], folder: Path, workers: int, machine: Machine) -> None:
    """Perform trials side by side, each in a process of one thread unless the machine says otherwise."""
    left = [trial for trial in some if trial.state(folder) != "done"]
    machine = replace(machine, threads=machine.threads or 1)
    ways = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, ways, _begin, (machine,)) as pool:
        try:
            for done in as_completed([pool.submit(perform, trial, folder) for trial in left]):
                done.result()
        except BaseException as error:
            for child in multiprocessing.active_children():
                child.terminate()  # or an interrupt would wait for what they are at
            if isinstance(error, BrokenProcessPool):
                raise BadInput("a process that trained for parity was killed; the same command goes on") from None
            raise


def _begin(machine: Machine) -> None:
    """Set up a process for trials: it ends with the one that started it, which alone hears Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    starter = multiprocessing.parent_process()
    assert starter is not None

    def end() -> None:
        starter.join()
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()
    machine.start()
