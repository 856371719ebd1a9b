"""What to extend and how far: the options of `fieldlens extend`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.corpus import SPLITS
from fieldlens.evaluation.equivalence import MARGIN, check_margin
from fieldlens.evaluation.protocols import protocol
from fieldlens.evaluation.result import Plan
from fieldlens.extension.discovery import canonical

CROP = "crop"
STOCK = "stock"


@dataclass(frozen=True)
class ExtendRequest:
    """Options of `fieldlens extend`."""

    lengths: tuple[int, ...]
    methods: tuple[str, ...] = ()
    """Specs of methods; a set that suits the model if empty."""
    corpus: str | None = None
    text: Path | None = None
    targets: int = 500
    k: int = 1
    """Number of consecutive targets per segment, which a method predicts in one pass."""
    margin: float = MARGIN
    gradients: int = 4
    """Number of segments whose gradients are computed; 0 for none."""
    trials: int = 50
    """Number of retrieval trials per method and length; 0 for none."""
    target_seed: int = 0
    train_length: int | None = None
    split: str = "test"
    batch: int | None = None

    def __post_init__(self) -> None:
        check_margin(self.margin)
        if self.corpus is not None and self.text is not None:
            raise BadInput("give either --text or --corpus, not both")
        for name, minimum in (("targets", 1), ("k", 1), ("gradients", 0), ("trials", 0)):
            if getattr(self, name) < minimum:
                raise BadInput(f"{name} must be at least {minimum}, got {getattr(self, name)}")
        if self.batch is not None and self.batch < 1:
            raise BadInput(f"batch must be at least 1, got {self.batch}")
        if self.split not in SPLITS:
            raise unknown("split", self.split, SPLITS)
        if self.k > self.targets:
            raise BadInput(f"k must be at most the number of targets, {self.targets}, got {self.k}")
        specs = dict.fromkeys(canonical(spec) for spec in self.methods)
        object.__setattr__(self, "methods", tuple(spec for spec in specs if spec != CROP))

    def plan(self, lengths: Sequence[int], bos: int | None) -> Plan:
        """The targets at these lengths; a segment with one target follows the paper's protocol."""
        chosen = protocol("last-token") if self.k == 1 else protocol("last-k", k=self.k)
        return Plan(chosen, tuple(lengths), math.ceil(self.targets / self.k), self.target_seed, None, bos)


def usual_methods(train_length: int, longest: int) -> tuple[str, ...]:
    """Methods to try on a model, with factors that reach the longest length."""
    factor = 2 ** max(1, math.ceil(math.log2(longest / train_length)))
    near = max(1, train_length // 2)
    group = max(2, math.ceil((longest - near) / max(1, train_length - near)))
    specs = (f"yarn:factor={factor}", "dynamic-ntk", f"self-extend:group={group}", "rerope", "streaming", "window")
    return tuple(canonical(spec) for spec in specs)
