"""Small transformers models with random weights, one of each family that the tests use."""

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

RARE: dict[str, dict[str, Any]] = {
    "phi3": {**_GROUPED, "max_position_embeddings": 32, "original_max_position_embeddings": 32},
    "gptj": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "rotary_dim": 4},
    "ctrl": {"n_embd": 32, "n_layer": 3, "n_head": 4, "dff": 64, "n_positions": 64},
    "xglm": {"d_model": 32, "num_layers": 3, "attention_heads": 4, "ffn_dim": 64, "max_position_embeddings": 64},
    "gemma4_text": {
        **_GROUPED, "head_dim": 8, "global_head_dim": 16, "sliding_window": 6, "num_hidden_layers": 6,
        "num_kv_shared_layers": 2, "layer_types": ["sliding_attention", "full_attention"] * 3,
        "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 8,
    },
    "llama4_text": {
        **_GROUPED, "head_dim": 8, "num_hidden_layers": 4, "attention_chunk_size": 8, "intermediate_size_mlp": 64,
        "num_local_experts": 4,
    },
    "jamba": {
        **_GROUPED, "num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4,
        "mamba_d_state": 8, "mamba_dt_rank": 4, "use_mamba_kernels": False,
    },
    "recurrent_gemma": {**_GROUPED, "head_dim": 8, "attention_window_size": 6, "lru_width": 32},
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 3, "attention_hidden_size": 32, "context_length": 64},
}  # fmt: skip
"""Families with special features, used only by the tests of those features."""


def build(family: str, **changes: Any) -> Any:
    """A model in evaluation mode with random weights, large enough that every token affects the output."""
    torch.manual_seed(0)
    settings = {"vocab_size": VOCABULARY, "initializer_range": 0.2, **(FAMILIES | RARE)[family], **changes}
    config = AutoConfig.for_model(family, **settings)
    config.pad_token_id = config.bos_token_id = config.eos_token_id = None
    return AutoModelForCausalLM.from_config(config).eval()
