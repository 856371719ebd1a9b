"""What to measure: the options of `fieldlens measure` and of a study's measurement."""

from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.corpus import SPLITS
from fieldlens.evaluation.equivalence import MARGIN, check_margin
from fieldlens.extension.load import resolve_method
from fieldlens.receptive.field import Average
from fieldlens.receptive.input_gradients import Target
from fieldlens.schemes.window import check_window

CACHE_DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8": 1, "int8": 1, "int4": 0.5}
"""Bytes of a number in a key-value cache that is served in this dtype."""


TARGETS = 1600
"""Default number of targets of a check; fewer if the text has fewer."""


@dataclass(frozen=True)
class MeasureRequest:
    """The options of `fieldlens measure`."""

    corpus: str | None = None
    text: Path | None = None
    length: int | None = None
    segments: int = 20
    target: Target = "log-likelihood"
    average: Average = "shares"
    window: int | None = None
    method: str | None = None
    """Spec of an extension method."""
    sinks: int | None = None
    """Number of first keys to keep besides those in the window: short for the method streaming."""
    plain: bool = False
    """Skip the per-layer receptive fields and the passage of the explorer."""
    probe: bool = False
    check: bool = False
    targets: int = TARGETS
    target_seed: int = 0
    train_length: int | None = None
    split: str = "test"
    margin: float = MARGIN
    windows: tuple[int, ...] | None = None
    """Windows to evaluate in a check; None for all powers of two below the model's own window."""
    cache_dtype: str | None = None
    """Dtype of the key-value cache at inference; None for the one that the model's configuration names."""

    def __post_init__(self) -> None:
        resolve_method(self)
        check_margin(self.margin)
        for name in ("segments", "targets"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.length is not None and self.length < 2:
            raise BadInput(f"length must be at least 2, got {self.length}")
        if self.corpus is not None and self.text is not None:
            raise BadInput("give either --text or --corpus, not both")
        choices = (("target", get_args(Target)), ("average", get_args(Average)), ("split", SPLITS))
        for name, allowed in choices:
            if getattr(self, name) not in allowed:
                raise unknown(name, getattr(self, name), allowed)
        if self.cache_dtype is not None and self.cache_dtype not in CACHE_DTYPES:
            raise unknown("cache dtype", self.cache_dtype, CACHE_DTYPES)
        for window in (self.window, *(self.windows or ())):
            check_window(window)
