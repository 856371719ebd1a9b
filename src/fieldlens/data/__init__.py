"""Text input: documents, corpora, tokenizers, token ids and training batches."""
