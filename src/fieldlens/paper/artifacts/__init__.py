"""One file = one table or figure of the paper, or a pair that differs in its corpus."""
