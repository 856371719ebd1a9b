"""What the scheme of a layer adds to the scores of a given text."""

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.kernels.logits import whole_logits
from fieldlens.models.decoder import Block, Decoder


@torch.no_grad()
def added_scores(decoder: Decoder, ids_T: Tensor, layer: int = 0) -> Tensor:
    """The logits of a layer minus q·k/√K, by head, query and key; NaN for keys that are not seen: (H, T, T)."""
    if not 0 <= layer < decoder.config.layers:
        raise BadInput(f"the layer must be between 1 and {decoder.config.layers}, got {layer + 1}")
    block = decoder.blocks[layer]
    assert isinstance(block, Block)
    inputs: list[Tensor] = []
    hook = block.attention_norm.register_forward_hook(lambda _, __, output: inputs.append(output))
    try:
        decoder.states(decoder.embed(ids_T[None]))
    finally:
        hook.remove()
    q_BHTK, k_BHTK, _ = block.project(inputs[0], len(ids_T))
    scores_HTT = (q_BHTK @ k_BHTK.transpose(2, 3))[0] * q_BHTK.shape[-1] ** -0.5
    logits_HTT = whole_logits(q_BHTK, k_BHTK, decoder.scheme.of_layer(layer), inputs[0])[0]
    return (logits_HTT - scores_HTT).masked_fill(logits_HTT == -torch.inf, torch.nan).cpu()
