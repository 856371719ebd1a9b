"""Rotary: queries and keys are rotated by angles proportional to their positions, with scalings for longer texts."""

import math
from typing import Literal

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.schemes.base import Scheme, widest_float

FEW_TURNS, MANY_TURNS = 1, 32
"""YaRN scales frequencies that make fewer turns than these within the original length, and keeps faster ones."""
LLAMA_FEW_TURNS, LLAMA_MANY_TURNS = 1, 4
"""The same for Llama 3."""


class Rotary(Scheme):
    """Rotates dimensions j and j + K/2 of queries and keys by m·θ_j, θ_j = base^(-2j/K).

    `scaling` adapts θ to texts `factor` times as long as the `original` length, by default the training length.
    linear: θ/factor. ntk: base·factor^(K/(K-2)). dynamic: ntk with the factor factor·L/original - (factor - 1), where
    L is the length of the text, if it exceeds the original; cached keys keep the angles of an earlier L. yarn: θ for
    frequencies with 32 or more turns within the original length, θ/factor for those with at most 1, a linear blend over
    j between; scores are multiplied by (0.1·ln factor + 1)². llama3: the same with 4 turns and 1, blended over turns,
    without the factor on scores. `fraction=p` sets the slowest 1-p of the frequencies to 0 (p-RoPE).
    """

    name = "rotary"
    label = "Rotary"
    source = (
        "Su et al. 2021, arXiv:2104.09864; linear: Chen et al. 2023, arXiv:2306.15595; ntk, dynamic, yarn: Peng et al. "
        "2023, arXiv:2309.00071; llama3: arXiv:2407.21783; fraction: Barbero et al. 2024, arXiv:2410.06205"
    )
    colour = "#56B4E9"
    marker = "P"
    examples = (
        "rotary:scaling=linear,factor=4",
        "rotary:scaling=ntk,factor=4",
        "rotary:scaling=dynamic,factor=2,original=16",
        "rotary:scaling=yarn,factor=4,original=64",
        "rotary:scaling=llama3,factor=8,original=32",
        "rotary:fraction=0.5",
    )

    def __init__(
        self,
        heads: int,
        head_width: int,
        *,
        base: float = 10000.0,
        scaling: Literal["none", "linear", "ntk", "dynamic", "yarn", "llama3"] = "none",
        factor: float = 1.0,
        original: int | None = None,
        fraction: float = 1.0,
    ) -> None:
        super().__init__(heads, head_width)
        if head_width % 2:
            raise BadInput(f"rotary: the head width must be even, got {head_width}")
        if base <= 0 or (scaling == "yarn" and base <= 1):
            raise BadInput(f"rotary: base must be greater than {int(scaling == 'yarn')}, got {base:g}")
        if scaling == "none" and (factor != 1 or original is not None):
            raise BadInput("rotary: factor and original need a scaling, for example rotary:scaling=yarn,factor=4")
        if scaling != "none" and (factor < 1 or (factor == 1 and scaling != "dynamic")):
            raise BadInput(f"rotary: scaling={scaling} needs a factor greater than 1, got {factor:g}: add factor=4")
        if scaling in ("ntk", "dynamic") and head_width < 4:
            raise BadInput(f"rotary: scaling={scaling} needs a head width of at least 4, got {head_width}")
        if not 0 <= fraction <= 1:
            raise BadInput(f"rotary: fraction must be between 0 and 1, got {fraction:g}")
        self.base, self.scaling, self.factor, self.original = base, scaling, factor, original
        self.rotated = int(fraction * (head_width // 2))
        """Number of frequencies that are not set to 0."""
        if scaling == "dynamic":
            self.relative, self.exact_with_cache, self.by_length = False, False, True
        if scaling == "yarn":
            self.score_factor = (0.1 * math.log(factor) + 1) ** 2

    def prepare(self) -> None:
        if self.scaling in ("dynamic", "yarn", "llama3"):
            self.original = self.original or self.train_length
            if self.original is None or self.original < 2:
                raise BadInput(
                    f"rotary: scaling={self.scaling} needs the original length, at least 2, got {self.original}: "
                    "add original=LENGTH"
                )

    def angles(self, positions: Tensor, length: Tensor | None = None) -> Tensor:
        """Angles at these positions; scaling=dynamic also takes the length of the text, by default up to the last."""
        exponents_F = widest_float(torch.arange(0, self.head_width, 2, device=positions.device)) / self.head_width
        if self.by_length and length is None:
            length = positions.amax(-1, keepdim=True) + 1
        frequencies = self._scaled(exponents_F, length)
        if self.rotated < len(exponents_F):
            frequencies = frequencies * (torch.arange(len(exponents_F), device=positions.device) < self.rotated)
        return widest_float(positions)[..., None] * frequencies

    def _scaled(self, exponents_F: Tensor, length: Tensor | None) -> Tensor:
        """Frequencies of texts of this length: (F,), or (…, 1, F) if they depend on it."""
        if self.scaling == "dynamic":
            assert self.original is not None
            assert length is not None
            factor = self.factor * widest_float(length).clamp(min=self.original) / self.original - (self.factor - 1)
            return (self.base * factor ** (self.head_width / (self.head_width - 2)))[..., None] ** -exponents_F
        if self.scaling == "ntk":
            return (self.base * self.factor ** (self.head_width / (self.head_width - 2))) ** -exponents_F
        frequencies_F = self.base**-exponents_F
        if self.scaling == "linear":
            return frequencies_F / self.factor
        if self.scaling in ("yarn", "llama3"):
            kept_F = self._kept_by_index(len(exponents_F)) if self.scaling == "yarn" else self._kept(frequencies_F)
            return frequencies_F * kept_F.to(frequencies_F) + frequencies_F / self.factor * (
                1 - kept_F.to(frequencies_F)
            )
        return frequencies_F

    def _kept_by_index(self, count: int) -> Tensor:
        """YaRN's share of each unscaled frequency: 1 up to the index with 32 turns, 0 from that with 1 turn on."""
        assert self.original is not None
        turns = [math.log(self.original / (2 * math.pi * n)) / math.log(self.base) for n in (MANY_TURNS, FEW_TURNS)]
        low, high = max(math.floor(count * turns[0]), 0), min(math.ceil(count * turns[1]), self.head_width - 1)
        index_F = torch.arange(count, dtype=torch.float64, device="cpu")
        return 1 - ((index_F - low) / (high - low if high != low else 0.001)).clamp(0, 1)

    def _kept(self, frequencies_F: Tensor) -> Tensor:
        """Llama 3's share of each unscaled frequency, from its turns within the original length."""
        assert self.original is not None
        turns_F = self.original * frequencies_F / (2 * math.pi)
        return ((turns_F - LLAMA_FEW_TURNS) / (LLAMA_MANY_TURNS - LLAMA_FEW_TURNS)).clamp(0, 1)
