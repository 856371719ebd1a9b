"""Dynamic NTK: the rotary base grows with the length of the text."""

from typing import Any

from fieldlens.extension.base import ExtensionMethod, check_at_least


class DynamicNTK(ExtensionMethod):
    """base' = base · (factor · L / L_tr - (factor - 1))^(K/(K - 2)) for a text of L > L_tr tokens."""

    name = "dynamic-ntk"
    label = "Dynamic NTK"
    source = "emozilla 2023, reddit.com/r/LocalLLaMA"
    cached = False

    def __init__(self, train_length: int, *, factor: float = 2.0) -> None:
        super().__init__(train_length)
        check_at_least("dynamic-ntk", "factor", factor, 1)
        self.factor = factor

    def rope_parameters(self, rope: dict[str, Any], dims: int) -> dict[str, Any]:
        return {**rope, "rope_type": "dynamic", "factor": self.factor}

    @property
    def starts(self) -> int:
        return self.train_length + 1

    def options(self) -> dict[str, Any]:
        return {"factor": self.factor}
