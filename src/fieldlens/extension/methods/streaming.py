"""Streaming: the first keys and the most recent keys, at the positions that they have in the cache."""

from typing import Any

import torch

from fieldlens.core.errors import BadInput
from fieldlens.extension.base import ExtensionMethod, Region, check_at_least
from fieldlens.schemes.window import check_window


class Streaming(ExtensionMethod):
    """The first s keys and the last w, numbered as in a cache of s + w keys.

    m(i, j) = i - j for i - j < w, and min(i, s + w - 1) - j for j < s; all other keys are masked.
    """

    name = "streaming"
    label = "StreamingLLM"
    source = "Xiao et al. 2023, arXiv:2309.17453"
    needs_rotary = False

    def __init__(self, train_length: int, *, sinks: int = 4, window: int | None = None) -> None:
        super().__init__(train_length)
        check_at_least("streaming", "sinks", sinks, 0)
        if window is None and sinks >= train_length:
            raise BadInput(f"streaming: sinks must be less than the training length {train_length}, got {sinks}")
        self.sinks, self.width = sinks, train_length - sinks if window is None else window
        check_window(self.width)

    def regions(self) -> tuple[Region, ...]:
        last = self.sinks + self.width - 1
        recent = Region(high=self.width)
        if not self.sinks:
            return (recent,)
        return recent, Region(low=self.width, first=self.sinks, a=lambda i: torch.clamp(i, max=last))

    @property
    def kept(self) -> tuple[int, int]:
        return self.sinks, self.width

    @property
    def starts(self) -> int:
        return self.sinks + self.width + 1

    def options(self) -> dict[str, Any]:
        return {"sinks": self.sinks, "window": self.width}
