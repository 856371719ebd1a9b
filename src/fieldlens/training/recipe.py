"""A recipe: everything that decides how a decoder is trained. Presets are named recipes; run options change no result.

The identity of a training is made of the fields of its recipe. A field that is added later joins the identity only
where it differs from what earlier versions did (`ADDED`): a new field makes no result stale and forbids no resume.
"""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from fieldlens.core.errors import BadInput, unknown

LEAST_BPE, LARGEST_BPE = 257, 1 << 24

Optimiser = Literal["adamw", "muon"]


@dataclass(frozen=True)
class Recipe:
    """How to train a decoder. The defaults are the paper's recipe.

    Parameters
    ----------
    scheme
        The positional scheme, as a spec such as sandwich:dims=64.
    corpus
        Name or path of a corpus.
    seed
        Seed of the initialisation and of the data order.
    tokenizer
        Folder of a tokenizer. Default: train a byte-level BPE on the train split.
    bpe
        Vocabulary size of the trained BPE.
    pad_vocabulary
        The model's vocabulary is rounded up to a multiple of this.
    max_bytes
        Stop reading the train split after the document that reaches this many bytes.
    layers
        Number of layers.
    width
        Hidden size of the model (d_model).
    heads
        Number of attention heads.
    tied
        Share weights between the embedding and the output layer.
    init_std
        Standard deviation of the initial weights.
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
        Learning rate at the end of the cosine decay.
    warmup
        Steps of linear warm-up.
    beta1
        Adam's first beta.
    beta2
        Adam's second beta.
    epsilon
        Adam's epsilon.
    weight_decay
        Decoupled weight decay; applies to matrices only.
    clip
        Maximum gradient norm.
    optimiser
        adamw, or muon: Muon for the matrices of the layers, AdamW for embeddings, head, biases, norms and the scheme.
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
    optimiser: Optimiser = "adamw"

    def __post_init__(self) -> None:
        for name in (field.name for field in dataclasses.fields(self) if field.type is float):
            object.__setattr__(self, name, float(getattr(self, name)))  # 1 and 1.0 are the same recipe
        if self.optimiser not in get_args(Optimiser):
            raise unknown("optimiser", self.optimiser, get_args(Optimiser))
        self._check_numbers()

    def _check_numbers(self) -> None:
        counts = ("bpe", "pad_vocabulary", "layers", "width", "heads", "length", "batch", "accumulation", "steps")
        for name in counts:
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("learning_rate", "epsilon", "clip"):
            if not getattr(self, name) > 0 or not math.isfinite(getattr(self, name)):
                raise BadInput(f"{name} must be finite and greater than 0, got {getattr(self, name)}")
        for name in ("seed", "warmup", "weight_decay", "final_learning_rate"):
            if not getattr(self, name) >= 0 or not math.isfinite(getattr(self, name)):
                raise BadInput(f"{name} must be finite and at least 0, got {getattr(self, name)}")
        if self.tokenizer is None and not LEAST_BPE <= self.bpe <= LARGEST_BPE:
            least = f"at least {LEAST_BPE} (every byte and the end-of-text token)"
            raise BadInput(f"bpe must be {least} and at most {LARGEST_BPE:,}, got {self.bpe:,}")
        if self.max_bytes is not None and self.max_bytes < 1:
            raise BadInput(f"max_bytes must be at least 1, got {self.max_bytes}")
        if self.seed >= 2**63:
            raise BadInput(f"seed must be less than 2^63, got {self.seed}")
        for name in ("beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 0 and less than 1, got {getattr(self, name)}")
        if self.batch % self.accumulation:
            raise BadInput(f"batch {self.batch} is not a multiple of accumulation {self.accumulation}")

    def rate(self, step: int) -> float:
        """The learning rate of a step: linear warm-up, then a cosine decay to the final rate."""
        if step < self.warmup:
            return self.learning_rate * (step + 1) / self.warmup
        progress = (step - self.warmup) / max(1, self.steps - self.warmup)
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
        return self.final_learning_rate + (self.learning_rate - self.final_learning_rate) * cosine


@dataclass(frozen=True)
class RunOptions:
    """Options of a run that do not change the trained model, except for round-off with `compile`.

    Parameters
    ----------
    save_every
        Steps between checkpoints.
    validate_every
        Steps between validations. Default: a tenth of the steps.
    checkpointing
        Recompute activations in the backward pass to save memory.
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
        for name in ("save_every", "validate_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise BadInput(f"{name} must be at least 1, got {value}")


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
    """A preset with some fields changed; None keeps the preset's value."""
    if preset not in PRESETS:
        raise unknown("preset", preset, PRESETS)
    return dataclasses.replace(PRESETS[preset], **{key: value for key, value in changes.items() if value is not None})


ADDED: dict[str, Any] = {"optimiser": "adamw"}
"""Fields that were added after version 0.1, with the value that earlier versions used."""


def identity(recipe: Recipe) -> dict[str, Any]:
    """The fields that name a training: all of version 0.1, and later ones that differ from what was done before."""
    fields = dataclasses.asdict(recipe)
    return without_defaults(fields)


def without_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a recipe without those that were added later and do what was done before."""
    return {name: value for name, value in fields.items() if name not in ADDED or value != ADDED[name]}


def recipe_from(fields: Mapping[str, Any]) -> Recipe:
    """A recipe from a file, which may be older than some fields. Unknown fields are refused."""
    names = {field.name for field in dataclasses.fields(Recipe)}
    if unknown_fields := sorted(set(fields) - names):
        raise BadInput(f"unknown recipe field '{unknown_fields[0]}': it was written by a newer version of fieldlens")
    return Recipe(**{**ADDED, **fields})


def experiment(recipe: Recipe, data: str) -> dict[str, Any]:
    """What must not change when a run is resumed: the recipe, with the fingerprint of the data instead of its names."""
    fields = identity(recipe)
    for name in ("corpus", "tokenizer"):
        del fields[name]
    return {**fields, "data": data}
