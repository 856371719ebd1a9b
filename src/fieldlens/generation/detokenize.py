"""Streaming detokenization: a character is emitted once all of its bytes are known, and never changes."""

from collections.abc import Sequence

from tokenizers import Tokenizer

UNKNOWN = "�"
"""The replacement character that a decoder emits for bytes that form no character yet."""

LATEST = 8
"""Number of tokens decoded again with the next one: more than a single character can span."""


class Detokenizer:
    """Decodes a stream of tokens at a constant cost per token."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        """Start after the tokens `before`: they are not emitted, but the text of a token may depend on them."""
        self.tokenizer = tokenizer
        self.ids = [int(token) for token in before[-LATEST:]]
        self.emitted = len(self._decode())

    def put(self, token: int) -> str:
        """Add a token; return the characters that it completes."""
        self.ids.append(token)
        text = self._decode()
        complete = len(text) - self._incomplete(text)
        new, self.emitted = text[self.emitted : complete], max(self.emitted, complete)
        if len(self.ids) > 2 * LATEST:
            pending = len(text) - self.emitted
            self.ids = self.ids[-LATEST:]
            self.emitted = len(self._decode()) - pending
        return new

    def end(self) -> str:
        """Return the rest: bytes that never formed a character."""
        return self._decode()[self.emitted :]

    def _decode(self) -> str:
        return self.tokenizer.decode(self.ids, skip_special_tokens=False)

    @staticmethod
    def _incomplete(text: str) -> int:
        """Return how many replacement characters at the end may still become a character.

        Decoders write one of them, or one for each of the up to three first bytes of a character.
        """
        return min(3, len(text) - len(text.rstrip(UNKNOWN)))
