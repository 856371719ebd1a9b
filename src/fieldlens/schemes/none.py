"""No positional scheme: only the causal mask carries information about order."""

from fieldlens.schemes.base import Scheme


class NoScheme(Scheme):
    """Adds nothing. `none:window=w` is the paper's windowed attention: w keys, the query's own included."""

    name = "none"
    label = "No scheme"
    source = "Haviv et al. 2022, arXiv:2203.16634; windows: Beltagy et al. 2020, arXiv:2004.05150"
    colour = "#000000"
    marker = "*"
