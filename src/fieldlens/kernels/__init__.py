"""Exact causal attention with a positional scheme: which keys a query sees, rotary embeddings, the kernels."""
