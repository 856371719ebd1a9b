"""Adapters: every causal language model with one interface. Reading order: base, decoder, hf, function, adapt."""
