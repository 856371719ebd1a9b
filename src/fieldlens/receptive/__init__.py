"""Receptive fields: gradients at the input embeddings, what they mean, and the report."""
