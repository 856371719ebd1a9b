"""A recipe: everything that decides how a decoder is trained. Presets are named recipes; habits change no result."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

from fieldlens.core.errors import BadInput, unknown

LEAST_BPE = 257


@dataclass(frozen=True)
class Recipe:
    """How to train a decoder. The defaults are the paper's recipe.

    Parameters
    ----------
    scheme
        The positional scheme, as a spec such as sandwich:dims=64.
    corpus
        A corpus by name or path.
    seed
        Moves initialisation and data order, nothing else.
    tokenizer
        A tokenizer folder; without one a byte-level BPE is trained on the train split.
    bpe
        Vocabulary of the BPE that is trained.
    pad_vocabulary
        The model's vocabulary is rounded up to a multiple of this.
    max_bytes
        Read so much of the train split, and the document in which that is reached to its end.
    layers
        Layers of the decoder.
    width
        Width of the decoder.
    heads
        Attention heads.
    tied
        Share the embedding's weights with the head.
    init_std
        Deviation of the weights at the start.
    length
        Training length: input tokens per sequence.
    batch
        Sequences per step, over all processes.
    accumulation
        Micro-batches per step, each with its own backward pass.
    steps
        Optimiser steps.
    learning_rate
        Peak learning rate.
    final_learning_rate
        Learning rate at the end of the cosine.
    warmup
        Steps of linear warm-up.
    beta1
        Adam's decay of the mean gradient.
    beta2
        Adam's decay of the squared gradient.
    epsilon
        Adam's epsilon.
    weight_decay
        Decoupled weight decay of matrices.
    clip
        Largest gradient norm.
    """

    scheme: str = "sandwich"
    corpus: str = "stdlib"
    seed: int = 1235
    tokenizer: str | None = None
    bpe: int = 50257
    pad_vocabulary: int = 64
    max_bytes: int | None = None
    layers: int = 12
    width: int = 768
    heads: int = 12
    tied: bool = False
    init_std: float = 0.02
    length: int = 512
    batch: int = 32
    accumulation: int = 1
    steps: int = 50_000
    learning_rate: float = 6e-4
    final_learning_rate: float = 5.9e-7
    warmup: int = 500
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    clip: float = 1.0

    def __post_init__(self) -> None:
        for name in (field.name for field in dataclasses.fields(self) if field.type is float):
            object.__setattr__(self, name, float(getattr(self, name)))  # 1 and 1.0 are one experiment
        self._check()

    def _check(self) -> None:
        for what in ("bpe", "pad_vocabulary", "layers", "width", "heads", "length", "batch", "accumulation", "steps"):
            if getattr(self, what) < 1:
                raise BadInput(f"{what} is {getattr(self, what)}: at least 1 is needed")
        for what in ("learning_rate", "epsilon", "clip"):
            if not getattr(self, what) > 0 or not math.isfinite(getattr(self, what)):
                raise BadInput(f"{what} is {getattr(self, what)}: a finite number above 0 is needed")
        for what in ("seed", "warmup", "weight_decay", "final_learning_rate"):
            if not getattr(self, what) >= 0 or not math.isfinite(getattr(self, what)):
                raise BadInput(f"{what} is {getattr(self, what)}: a finite number from 0 is needed")
        if self.tokenizer is None and self.bpe < LEAST_BPE:
            raise BadInput(f"bpe is {self.bpe}: at least {LEAST_BPE} is needed, every byte and the end of text")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise BadInput(f"max_bytes is {self.max_bytes}: at least 1 is needed")
        if self.seed >= 2**63:
            raise BadInput(f"seed is {self.seed}: less than 2^63 is needed")
        for what in ("beta1", "beta2"):
            if not 0 <= getattr(self, what) < 1:
                raise BadInput(f"{what} is {getattr(self, what)}: from 0 to less than 1 is needed")
        if self.batch % self.accumulation:
            raise BadInput(f"batch {self.batch} is not a multiple of accumulation {self.accumulation}")

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear warm-up, then a cosine down to the final rate."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        swing = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return self.final_learning_rate + (self.learning_rate - self.final_learning_rate) * swing


@dataclass(frozen=True)
class RunOptions:
    """What a run does beside the experiment; of the numbers that are trained only `compile` changes some, by round-off.

    Parameters
    ----------
    save_every
        Steps between checkpoints.
    validate_every
        Steps between validations; a tenth of the run unless given.
    checkpointing
        Compute activations again in backward instead of keeping them.
    compile
        Compile the decoder with torch.compile.
    track
        Write TensorBoard events into the run folder (extra: track).
    """

    save_every: int = 500
    validate_every: int | None = None
    checkpointing: bool = False
    compile: bool = False
    track: bool = False

    def __post_init__(self) -> None:
        for what in ("save_every", "validate_every"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise BadInput(f"{what} is {value}: at least 1 is needed")


PRESETS = {
    "smoke": Recipe(
        bpe=512, max_bytes=500_000, layers=2, width=32, heads=4, length=32, batch=8, steps=20,
        learning_rate=3e-3, final_learning_rate=3e-4, warmup=4,
    ),
    "glance": Recipe(
        bpe=2048, max_bytes=8_000_000, layers=6, width=128, heads=8, length=128, batch=16, steps=400,
        learning_rate=3e-3, final_learning_rate=1e-4, warmup=50, beta2=0.98,
    ),
    "pocket": Recipe(
        bpe=4096, layers=12, width=128, heads=8, length=128, batch=32, steps=800,
        learning_rate=2e-3, final_learning_rate=1e-4, warmup=100, beta2=0.98,
    ),
    "paper": Recipe(),
}  # fmt: skip
"""Named recipes, from a test's seconds to the paper's 162 million parameters."""


def recipe(preset: str, **changes: Any) -> Recipe:
    """A preset with some fields changed; None changes nothing."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    return dataclasses.replace(PRESETS[preset], **{key: value for key, value in changes.items() if value is not None})


def experiment(recipe: Recipe, data: str) -> dict[str, Any]:
    """What must not change when a run is resumed: the recipe, with the data's fingerprint for its names."""
    fields = dataclasses.asdict(recipe)
    for name in ("corpus", "tokenizer"):
        del fields[name]
    return {**fields, "data": data}
