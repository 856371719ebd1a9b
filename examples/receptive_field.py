"""How far back a transformers model looks: its receptive field on some tokens, in Python.

Run: python examples/receptive_field.py
"""

import torch
from transformers import MistralConfig, MistralForCausalLM

import fieldlens

# Any causal language model will do; this one is built from its configuration and knows nothing yet.
config = MistralConfig(
    vocab_size=512, hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, sliding_window=16,
)  # fmt: skip
torch.manual_seed(0)
model = MistralForCausalLM(config).eval()

ids = torch.randint(512, (8, 129))  # eight texts: 128 tokens of context, then the one to predict
field = fieldlens.receptive_field(model, ids)

print(f"99% of the gradient lies in the last {field.erf(0.99)} tokens, half of it in the last {field.erf(0.5)}")
print(f"three windows of 16 reach {3 * 15 + 1} tokens: beyond them lies {float(field.share[:-46].sum()):.0%}")
field.plot().figure.savefig("receptive_field.png")
