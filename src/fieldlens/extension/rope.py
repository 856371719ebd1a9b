"""Rotary parameters of transformers: the module of a model with other parameters, and frequencies for our decoders."""

import copy
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.extension.base import ExtensionMethod

FULL = "full_attention"
"""The layer type of transformers whose rotary parameters a method changes, where layer types have their own."""


def changed_rotary(module: Any, method: ExtensionMethod | None, dims: int) -> Any:
    """A rotary module like this one, with the parameters of a method; without a method a plain copy."""
    config = copy.deepcopy(module.config)
    assert isinstance(config.rope_parameters, dict)
    if method is not None:
        config.rope_parameters = changed_parameters(config, method, dims)
        config.max_position_embeddings = method.train_length  # dynamic scaling starts there
    device = next((buffer.device for buffer in module.buffers()), torch.device("cpu"))
    return type(module)(config).to(device)


def changed_parameters(config: Any, method: ExtensionMethod, dims: int) -> dict[str, Any]:
    """The `rope_parameters` of a configuration with a method; layers with a window keep theirs."""
    rope = config.rope_parameters
    if any(isinstance(part, dict) for part in rope.values()):
        if not isinstance(rope.get(FULL), dict):
            raise BadInput(f"{method.name}: the model has no rotary layers of full attention")
        return {**rope, FULL: _changed(rope[FULL], method, dims)}
    return _changed(rope, method, dims)


def _changed(rope: dict[str, Any], method: ExtensionMethod, dims: int) -> dict[str, Any]:
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise BadInput(f"{method.name}: the model already has rotary scaling of type '{kind}'")
    changed = method.rope_parameters(dict(rope), dims)
    assert changed is not None
    return changed


class DecoderFrequencies:
    """Rotary frequencies of one of our decoders under a method, computed by transformers."""

    def __init__(self, method: ExtensionMethod, base: float, head_width: int) -> None:
        from transformers import LlamaConfig
        from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

        config = LlamaConfig(
            hidden_size=head_width,
            num_attention_heads=1,
            max_position_embeddings=method.train_length,
            rope_parameters={"rope_type": "default", "rope_theta": base},
        )
        self.parameters = changed_parameters(config, method, head_width)
        config.rope_parameters = self.parameters
        self.module, self.train_length = LlamaRotaryEmbedding(config), method.train_length

    def tables(self, positions: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Cosines and sines, (…, K/2) in float64, at positions of a text of `length` tokens."""
        longest = torch.tensor([[max(length, self.train_length) - 1]])
        with torch.no_grad():  # dynamic scaling takes its frequencies from the last position
            self.module(torch.zeros(1), torch.zeros_like(longest))
            self.module(torch.zeros(1), longest)
        angles = positions.double()[..., None] * self.module.inv_freq.double().to(positions.device)
        return angles.cos() * self.module.attention_scaling, angles.sin() * self.module.attention_scaling
