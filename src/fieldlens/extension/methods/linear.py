"""Linear: position interpolation, all positions are divided by a factor."""

from typing import Any

from fieldlens.extension.base import ExtensionMethod, check_at_least


class Linear(ExtensionMethod):
    """θ_f' = θ_f / factor, which equals m(i, j) = (i - j) / factor."""

    name = "linear"
    label = "Linear"
    source = "Chen et al. 2023, arXiv:2306.15595"

    def __init__(self, train_length: int, *, factor: float = 4.0) -> None:
        super().__init__(train_length)
        check_at_least("linear", "factor", factor, 1)
        self.factor = factor

    def rope_parameters(self, rope: dict[str, Any], dims: int) -> dict[str, Any]:
        return {**rope, "rope_type": "linear", "factor": self.factor}

    def options(self) -> dict[str, Any]:
        return {"factor": self.factor}
