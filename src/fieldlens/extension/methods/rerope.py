"""ReRoPE: distances stop growing at a window, or grow more slowly beyond it (leaky)."""

from typing import Any

import torch

from fieldlens.extension.base import ExtensionMethod, Region, check_at_least


class ReRoPE(ExtensionMethod):
    """m(i, j) = min(i - j, w); with `leak` k, w + (i - j - w)/k beyond w."""

    name = "rerope"
    label = "ReRoPE"
    source = "Su 2023, github.com/bojone/rerope"

    def __init__(self, train_length: int, *, window: int | None = None, leak: float | None = None) -> None:
        super().__init__(train_length)
        self.width, self.leak = max(1, train_length // 2) if window is None else window, leak
        check_at_least("rerope", "window", self.width, 1)
        if leak is not None:
            check_at_least("rerope", "leak", leak, 1)

    def regions(self) -> tuple[Region, ...]:
        width, leak = self.width, self.leak
        if leak is None:
            far = Region(low=width, a=lambda i: torch.full_like(i, width), b=torch.zeros_like)
        else:
            far = Region(low=width, a=lambda i: width + (i.double() - width) / leak, b=lambda j: j.double() / leak)
        return Region(high=width), far

    @property
    def starts(self) -> int:
        return self.width + 2

    def options(self) -> dict[str, Any]:
        return {"window": self.width, "leak": self.leak}
