"""What to evaluate: the options of `fieldlens evaluate` and of a study's evaluations."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.corpus import SPLITS
from fieldlens.evaluation.equivalence import MARGIN, check_margin
from fieldlens.evaluation.protocols import protocol
from fieldlens.evaluation.result import Plan
from fieldlens.extension.load import resolve_method
from fieldlens.schemes.window import check_window


@dataclass(frozen=True)
class EvalRequest:
    """Options of `fieldlens evaluate`."""

    corpus: str | None
    lengths: tuple[int, ...]
    segments: int = 1000
    protocol: str = "last-token"
    window: int | None = None
    method: str | None = None
    """Spec of an extension method."""
    sinks: int | None = None
    """Number of first keys to keep besides those in the window: short for the method streaming."""
    options: dict[str, int | None] | None = None
    target_seed: int = 0
    train_length: int | None = None
    split: str = "test"
    align: str = "tokens"
    batch: int | None = None
    text: Path | None = None
    margin: float = MARGIN
    with_quarter: bool = False
    """Also evaluate a quarter of the training length, unless a length up to it was requested: is context used?"""

    def __post_init__(self) -> None:
        resolve_method(self)
        check_margin(self.margin)
        if self.corpus is not None and self.text is not None:
            raise BadInput("give either --text or --corpus, not both")
        if self.segments < 1:
            raise BadInput(f"segments must be at least 1, got {self.segments}")
        if self.split not in SPLITS:
            raise unknown("split", self.split, SPLITS)
        check_window(self.window)

    def plan(self, lengths: Sequence[int], bos: int | None) -> Plan:
        chosen = protocol(self.protocol, **(self.options or {}))
        return Plan(chosen, tuple(lengths), self.segments, self.target_seed, self.window, bos)
