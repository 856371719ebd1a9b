"""Receptive fields: gradients at the input embeddings, their interpretation, and the report."""
