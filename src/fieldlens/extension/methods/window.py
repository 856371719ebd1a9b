"""Window: every query sees the last keys only, in every layer."""

from typing import Any

from fieldlens.extension.base import ExtensionMethod, Region
from fieldlens.schemes.window import check_window


class Window(ExtensionMethod):
    """m(i, j) = i - j for i - j < w; all other keys are masked. R layers read R·(w - 1) + 1 tokens."""

    name = "window"
    label = "Window"
    source = "Beltagy et al. 2020, arXiv:2004.05150"
    needs_rotary = False

    def __init__(self, train_length: int, *, window: int | None = None) -> None:
        super().__init__(train_length)
        self.width = train_length if window is None else window
        check_window(self.width)

    def regions(self) -> tuple[Region, ...]:
        return (Region(high=self.width),)

    @property
    def window(self) -> int:
        return self.width

    @property
    def kept(self) -> tuple[int, int]:
        return 0, self.width

    @property
    def starts(self) -> int:
        return self.width + 1

    def options(self) -> dict[str, Any]:
        return {"window": self.width}
