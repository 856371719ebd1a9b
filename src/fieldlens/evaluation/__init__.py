"""Perplexity against context length: protocols, statistics, verdicts, comparisons."""
