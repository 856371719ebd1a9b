"""Evaluation protocols: which tokens are predicted, and from how many preceding tokens.

A length is the number of input tokens; the target is the token after them. An anchor is a position in a document. A
protocol turns an anchor into excerpts, with the same targets at every length.

A protocol is one file in this folder: a subclass of `Protocol` with a name, a help text, a version, and its options as
fields. The command line, study files and tests iterate over `registry()` and `options()`.
"""

from fieldlens.evaluation.protocols.anchors import Anchor, Eligible, draw
from fieldlens.evaluation.protocols.base import Excerpt, Protocol, eligible
from fieldlens.evaluation.protocols.discovery import options, protocol, registry

__all__ = ["Anchor", "Eligible", "Excerpt", "Protocol", "draw", "eligible", "options", "protocol", "registry"]
