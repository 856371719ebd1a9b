"""Text of any length: sampling, engines with and without a cache, detokenizing."""
