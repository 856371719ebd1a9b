"""Small models of transformers, built from configuration: one of each family that the tests ask."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

logging.set_verbosity_error()

VOCABULARY = 97
_WIDE = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
_GROUPED = {**_WIDE, "num_key_value_heads": 2}

FAMILIES: dict[str, dict[str, Any]] = {
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64},
    "opt": {
        "hidden_size": 32, "ffn_dim": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "word_embed_proj_dim": 32,
        "max_position_embeddings": 64,
    },
    "gpt_neox": _WIDE,
    "llama": _GROUPED,
    "mistral": {**_GROUPED, "sliding_window": 6},
    "qwen2": _GROUPED,
    "gemma": {**_GROUPED, "head_dim": 8},
    "gemma3_text": {**_GROUPED, "head_dim": 8, "sliding_window": 6, "num_hidden_layers": 6},
    "bloom": {"hidden_size": 32, "n_layer": 3, "n_head": 4},
    "mpt": {"d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64},
    "falcon": {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "alibi": True},
    "phi": _WIDE,
    "mamba": {"hidden_size": 32, "num_hidden_layers": 3, "state_size": 8},
}  # fmt: skip


def build(family: str, **changes: Any) -> Any:
    """A model with random weights, large enough that every token matters, in evaluation mode."""
    torch.manual_seed(0)
    settings = {"vocab_size": VOCABULARY, "initializer_range": 0.2, **FAMILIES[family], **changes}
    config = AutoConfig.for_model(family, **settings)
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    return AutoModelForCausalLM.from_config(config).eval()
