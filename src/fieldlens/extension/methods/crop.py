"""Crop: the model reads only the last tokens. The baseline that every other method must beat."""

from typing import Any

from fieldlens.extension.base import ExtensionMethod, check_at_least


class Crop(ExtensionMethod):
    """Re-encodes the last `tokens` tokens from position 0 for every target; earlier tokens are not read."""

    name = "crop"
    label = "Crop"
    source = "the baseline"
    cached = False
    needs_rotary = False

    def __init__(self, train_length: int, *, tokens: int | None = None) -> None:
        super().__init__(train_length)
        self.tokens = train_length if tokens is None else tokens
        check_at_least("crop", "tokens", self.tokens, 1)

    @property
    def crop(self) -> int:
        return self.tokens

    @property
    def starts(self) -> int:
        return self.tokens + 1

    def options(self) -> dict[str, Any]:
        return {"tokens": self.tokens}
