"""The decoder, its caches and Hugging Face folders; adapters for any causal language model; loading by name."""
