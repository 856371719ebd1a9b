"""NTK: a larger rotary base, so that low frequencies are interpolated and high ones are kept."""

from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.extension.base import ExtensionMethod, check_at_least


class NTK(ExtensionMethod):
    """base' = base · factor^(K/(K - 2)), for K rotated dimensions: the lowest frequency is divided by the factor."""

    name = "ntk"
    label = "NTK"
    source = "bloc97 2023, reddit.com/r/LocalLLaMA"

    def __init__(self, train_length: int, *, factor: float = 4.0) -> None:
        super().__init__(train_length)
        check_at_least("ntk", "factor", factor, 1)
        self.factor = factor

    def rope_parameters(self, rope: dict[str, Any], dims: int) -> dict[str, Any]:
        if dims <= 2:
            raise BadInput(f"ntk: the model rotates {dims} dimensions, at least 4 are needed")
        return {**rope, "rope_type": "default", "rope_theta": rope["rope_theta"] * self.factor ** (dims / (dims - 2))}

    def options(self) -> dict[str, Any]:
        return {"factor": self.factor}
