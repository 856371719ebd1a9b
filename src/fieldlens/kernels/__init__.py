"""Exact causal attention with a positional scheme: layouts, rotary embeddings, kernels."""
