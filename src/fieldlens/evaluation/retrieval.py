"""Retrieval at any length: which of the values in a text belongs to a key that the text ends with?

Pairs of a key and a value are put into a text of the corpus. The text ends with the key of one of them. The answer is
the candidate with the highest likelihood, among the values of all pairs; guessing is right in 1/4 of trials. No token
is generated. With L > L_tr, the pair that is asked for lies more than L_tr tokens before the end: a crop cannot see it.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.base import ModelAdapter

PAIRS, KEY = 4, 3
"""Number of pairs in a text, and of tokens in a key; a value is one token."""

SHORTEST = 64
"""Minimum number of tokens of a text."""

Z = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""


@dataclass(frozen=True)
class Trial:
    """A text that ends with a key, the candidate values, and which of them is right."""

    ids: np.ndarray
    candidates: tuple[int, ...]
    answer: int


@dataclass(frozen=True)
class Retrieval:
    """Right answers among trials, with the 95 % Wilson interval of the accuracy."""

    right: int
    trials: int

    @property
    def accuracy(self) -> float:
        return self.right / self.trials

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.right, self.trials)

    @property
    def shown(self) -> bool:
        """Whether the accuracy is known to be better than guessing."""
        return self.interval[0] > 1 / PAIRS

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        accuracy = {"accuracy": self.accuracy, "low": low, "high": high, "chance": 1 / PAIRS}
        return {"right": self.right, "trials": self.trials, **accuracy, "shown": self.shown}


def wilson(right: int, trials: int) -> tuple[float, float]:
    """The 95 % Wilson interval of a share."""
    share, scale = right / trials, 1 + Z**2 / trials
    middle = (share + Z**2 / (2 * trials)) / scale
    half_width = Z / scale * math.sqrt(share * (1 - share) / trials + Z**2 / (4 * trials**2))
    return max(0.0, middle - half_width), min(1.0, middle + half_width)


def make_trials(
    documents: Sequence[np.ndarray], length: int, train_length: int, count: int, seed: int, bos: int | None = None
) -> list[Trial]:
    """Draw trials of `length` tokens from the documents; a seed gives the same trials on every machine."""
    if length < SHORTEST:
        raise BadInput(f"retrieval needs at least {SHORTEST} tokens, got {length}")
    body = length - KEY
    long_enough = [ids for ids in documents if len(ids) >= length]
    if not long_enough:
        raise BadInput(f"retrieval at {length} tokens needs a document of as many tokens")
    generator = random.Random(seed * 1_000_003 + length)
    return [_trial(long_enough, body, max(0, length - train_length), generator, bos) for _ in range(count)]


def _trial(documents: list[np.ndarray], body: int, beyond: int, generator: random.Random, bos: int | None) -> Trial:
    """One trial. The pair that is asked for lies in the first `beyond` tokens, if it fits, else anywhere."""
    document = documents[int(generator.random() * len(documents))]
    start = int(generator.random() * (len(document) - body + 1))
    text = document[start : start + body].astype(np.int64)
    tokens = sorted({int(token) for token in document})
    chosen = [tokens[int(generator.random() * len(tokens))] for _ in range(PAIRS * KEY)]
    keys = [chosen[n * KEY : (n + 1) * KEY] for n in range(PAIRS)]
    values: list[int] = []
    while len(values) < PAIRS and len(values) < len(tokens):
        value = tokens[int(generator.random() * len(tokens))]
        if value not in values:
            values.append(value)
    slots = body // (KEY + 1)
    far = max(1, min(beyond, body) // (KEY + 1))
    asked = int(generator.random() * (far if beyond >= KEY + 1 else slots))
    others = [slot for slot in range(slots) if slot != asked]
    places = [asked]
    for _ in range(len(values) - 1):
        places.append(others.pop(int(generator.random() * len(others))))
    for place, key, value in zip(places, keys, values, strict=False):
        text[place * (KEY + 1) : (place + 1) * (KEY + 1)] = [*key, value]
    first = [] if bos is None else [bos]
    ids = np.concatenate([np.array(first, np.int64), text, np.array(keys[0], np.int64)])
    return Trial(ids, tuple(sorted(values)), values[0])  # sorted: a tie must not favour the answer


@torch.no_grad()
def answers(adapter: ModelAdapter, trial: Trial) -> bool:
    """Whether a model gives the right value for the key of a trial."""
    ids_BT = torch.from_numpy(trial.ids)[None].to(adapter.device)
    logits_V = next(adapter.logits(ids_BT, 1, None, 0))[0, -1]
    scores = logits_V[list(trial.candidates)].double()
    return trial.candidates[int(scores.argmax())] == trial.answer


def retrieve(adapter: ModelAdapter, trials: Sequence[Trial]) -> Retrieval:
    """Ask a model for the value of each trial's key."""
    return Retrieval(sum(answers(adapter, trial) for trial in trials), len(trials))
