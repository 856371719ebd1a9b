"""Tables and figures of the paper: one module each, or one for a pair that differs only in the corpus."""
