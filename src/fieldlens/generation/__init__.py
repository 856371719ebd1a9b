"""Text generation: sampling, engines with and without a cache, detokenization."""
