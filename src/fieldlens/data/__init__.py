"""From text to batches: documents, corpora, tokenizers, token ids, the order of training."""
