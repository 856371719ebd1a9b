"""Self-Extend: near keys keep their distances, far keys are grouped."""

from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.extension.base import ExtensionMethod, Region, check_at_least


class SelfExtend(ExtensionMethod):
    """m(i, j) = i - j for i - j < w, else ⌊i/g⌋ - ⌊j/g⌋ + w - ⌊w/g⌋; reaches about (L_tr - w)·g + w tokens."""

    name = "self-extend"
    label = "Self-Extend"
    source = "Jin et al. 2024, arXiv:2401.01325"

    def __init__(self, train_length: int, *, group: int = 8, window: int | None = None) -> None:
        super().__init__(train_length)
        check_at_least("self-extend", "group", group, 2)
        self.group, self.width = group, max(1, train_length // 2) if window is None else window
        check_at_least("self-extend", "window", self.width, 1)
        if self.width > train_length:
            raise BadInput(f"self-extend: window must be at most the training length {train_length}, got {self.width}")

    def regions(self) -> tuple[Region, ...]:
        group, shift = self.group, self.width - self.width // self.group
        far = Region(low=self.width, a=lambda i: i // group + shift, b=lambda j: j // group)
        return Region(high=self.width), far

    @property
    def starts(self) -> int:
        return self.width + 2

    def options(self) -> dict[str, Any]:
        return {"group": self.group, "window": self.width}
