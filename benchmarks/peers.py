"""Models of other libraries with the shape of ours."""

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MptConfig,
    PreTrainedConfig,
)

Shape = dict[str, Any]
"""layers, width, heads, vocab_size"""

LITGPT = "LitGPT (rotary)"


def transformers_configs(shape: Shape, length: int) -> dict[str, PreTrainedConfig]:
    layers, width, heads, vocab_size = shape.values()
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    gpt2 = {
        "n_layer": layers, "n_embd": width, "n_head": heads, "vocab_size": vocab_size, "n_positions": length,
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "tie_word_embeddings": False,
    }  # fmt: skip
    return {
        "transformers GPT-2, exact GELU": GPT2Config(**gpt2, activation_function="gelu"),
        "transformers GPT-2, its own tanh GELU": GPT2Config(**gpt2),
        "transformers GPT-NeoX (rotary)": GPTNeoXConfig(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, vocab_size=vocab_size,
            intermediate_size=4 * width, max_position_embeddings=length, use_parallel_residual=False,
            rope_parameters=rope,
        ),
        "transformers Llama (rotary; SiLU, RMSNorm, as many weights)": LlamaConfig(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, vocab_size=vocab_size,
            intermediate_size=8 * width // 3, max_position_embeddings=length,
        ),
        "transformers Bloom (alibi)": BloomConfig(
            n_layer=layers, hidden_size=width, n_head=heads, vocab_size=vocab_size, tie_word_embeddings=False,
        ),
        "transformers MPT (alibi)": MptConfig(
            n_layers=layers, d_model=width, n_heads=heads, vocab_size=vocab_size, max_seq_len=length,
            tie_word_embeddings=False,
        ),
    }  # fmt: skip


def transformers_model(config: PreTrainedConfig) -> Any:
    """With the attention of torch where the model has it."""
    sdpa = config.model_type in ("gpt2", "gpt_neox", "llama")
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa" if sdpa else "eager")


def x_transformers_model(shape: Shape, length: int, **positions: Any) -> nn.Module:
    from x_transformers import Decoder, TransformerWrapper

    layers, width, heads, vocab_size = shape.values()
    body = Decoder(dim=width, depth=layers, heads=heads, attn_dim_head=width // heads, **positions)
    return TransformerWrapper(num_tokens=vocab_size, max_seq_len=length, attn_layers=body, use_abs_pos_emb=False)


def litgpt_model(shape: Shape, length: int) -> nn.Module:
    """GPT-NeoX with rotary over the whole head."""
    from litgpt.model import GPT, Config

    layers, width, heads, vocab_size = shape.values()
    return GPT(
        Config(
            block_size=length, n_layer=layers, n_embd=width, n_head=heads, padded_vocab_size=vocab_size,
            rotary_percentage=1.0, parallel_residual=False, mlp_class_name="GptNeoxMLP", bias=True,
        )
    )  # fmt: skip


def other_models(shape: Shape, length: int) -> dict[str, Callable[[], nn.Module]]:
    """x-transformers, flash attention where it has it, and LitGPT where it is installed: token ids in, logits out."""
    make = partial(x_transformers_model, shape, length)
    models: dict[str, Callable[[], nn.Module]] = {
        "x-transformers, none": partial(make, attn_flash=True),
        "x-transformers, rotary": partial(make, attn_flash=True, rotary_pos_emb=True),
        "x-transformers, alibi": partial(make, attn_flash=True, alibi_pos_bias=True),
        "x-transformers, t5": partial(make, rel_pos_bias=True),
    }
    if importlib.util.find_spec("litgpt"):
        models[LITGPT] = partial(litgpt_model, shape, length)
    return models


def same_scheme(name: str) -> str:
    """Our scheme that does what a peer does; learned position embeddings cost nothing beside the rest."""
    return next((scheme for scheme in ("rotary", "alibi", "t5") if scheme in name), "none")


class WithLoss(nn.Module):
    """A model whose call returns logits, as its users train it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids_BT: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(ids_BT[:, :-1]).flatten(0, 1), ids_BT[:, 1:].flatten())


class TransformersLoss(nn.Module):
    """A transformers model as its users train it: labels in, loss out."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.model = transformers_model(config)

    def forward(self, ids_BT: Tensor) -> Tensor:
        targets_BT = ids_BT[:, 1:].contiguous()
        return self.model(input_ids=ids_BT[:, :-1], labels=targets_BT, shift_labels=targets_BT, use_cache=False).loss
