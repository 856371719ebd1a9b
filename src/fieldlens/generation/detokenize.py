"""Text as its tokens come: a character is shown when all of its bytes are there, and never changed afterwards."""

from collections.abc import Sequence

from tokenizers import Tokenizer

UNKNOWN = "�"
"""What a decoder writes for bytes that are no character, or not yet."""

LATEST = 8
"""Tokens that are decoded again with the next: more than one character can be spread over."""


class Detokenizer:
    """The text of one token after another, at a cost that does not grow."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int] = ()) -> None:
        """What comes before is not shown, but some tokenizers write a token otherwise where a text begins."""
        self.tokenizer = tokenizer
        self.ids = [int(token) for token in before[-LATEST:]]
        self.shown = len(self._decode())

    def put(self, token: int) -> str:
        """The characters that this token completes."""
        self.ids.append(token)
        text = self._decode()
        certain = len(text) - self._open(text)
        new, self.shown = text[self.shown : certain], max(self.shown, certain)
        if len(self.ids) > 2 * LATEST:
            behind = len(text) - self.shown
            self.ids = self.ids[-LATEST:]
            self.shown = len(self._decode()) - behind
        return new

    def end(self) -> str:
        """What is left: bytes that became no character."""
        return self._decode()[self.shown :]

    def _decode(self) -> str:
        return self.tokenizer.decode(self.ids, skip_special_tokens=False)

    @staticmethod
    def _open(text: str) -> int:
        """How many signs at the end may still become a character: one, or one for each of its first three bytes."""
        return min(3, len(text) - len(text.rstrip(UNKNOWN)))
