"""Adapters: one interface for every causal language model. Reading order: base, decoder, hf, function, adapt."""
