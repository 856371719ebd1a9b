"""YaRN: frequencies below the training length are interpolated, high ones are kept, logits are scaled."""

from typing import Any

from fieldlens.extension.base import ExtensionMethod, check_at_least


class YaRN(ExtensionMethod):
    """θ_f' = (1 - γ_f)·θ_f/factor + γ_f·θ_f, where γ rises from 0 to 1 with the turns L_tr·θ_f/2π; logits × t².

    γ = 1 from `beta_fast` turns on and 0 up to `beta_slow`; t = 0.1·ln(factor) + 1 multiplies cos and sin.
    """

    name = "yarn"
    label = "YaRN"
    source = "Peng et al. 2023, arXiv:2309.00071"

    def __init__(
        self, train_length: int, *, factor: float = 4.0, beta_fast: float = 32.0, beta_slow: float = 1.0
    ) -> None:
        super().__init__(train_length)
        check_at_least("yarn", "factor", factor, 1)
        check_at_least("yarn", "beta_fast", beta_fast, beta_slow)
        self.factor, self.beta_fast, self.beta_slow = factor, beta_fast, beta_slow

    def rope_parameters(self, rope: dict[str, Any], dims: int) -> dict[str, Any]:
        return {
            **rope,
            "rope_type": "yarn",
            "factor": self.factor,
            "original_max_position_embeddings": self.train_length,
            "beta_fast": self.beta_fast,
            "beta_slow": self.beta_slow,
        }

    def options(self) -> dict[str, Any]:
        return {"factor": self.factor, "beta_fast": self.beta_fast, "beta_slow": self.beta_slow}
