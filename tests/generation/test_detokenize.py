"""Streaming detokenization: the pieces make up the text, and every piece has complete characters."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from fieldlens.data.tokenizer import token_texts
from fieldlens.generation.detokenize import LATEST, UNKNOWN, Detokenizer


def by_bytes() -> Tokenizer:
    """A token for each byte, and a few longer ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: number for number, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


BYTES = by_bytes()


def with_fallback() -> Tokenizer:
    """Words with a leading space, and a fallback token for each byte."""
    words = ["▁der", "▁Fluss", "▁", "e"]
    vocab_size = {word: number for number, word in enumerate([*words, *(f"<0x{byte:02X}>" for byte in range(256))])}
    tokenizer = Tokenizer(models.BPE(vocab_size, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return tokenizer


def streamed(tokenizer: Tokenizer, ids: list[int], before: int = 0) -> list[str]:
    stream = Detokenizer(tokenizer, ids[:before])
    return [*(stream.put(token) for token in ids[before:]), stream.end()]


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_pieces_make_the_text(text: str) -> None:
    pieces = streamed(BYTES, BYTES.encode(text).ids)
    assert "".join(pieces) == text
    assert all(UNKNOWN not in piece or UNKNOWN in text for piece in pieces)


def test_a_character_comes_with_its_last_byte() -> None:
    assert streamed(BYTES, BYTES.encode("a€😀").ids) == ["a", "", "", "€", "", "", "", "😀", ""]


def test_incomplete_bytes_are_emitted_at_the_end() -> None:
    ids = BYTES.encode("a😀b").ids
    assert "".join(streamed(BYTES, ids[:3])) == "a" + UNKNOWN
    assert "".join(streamed(BYTES, [ids[0], *ids[2:]])) == BYTES.decode([ids[0], *ids[2:]])
    assert "".join(streamed(BYTES, [ids[1]] * 100)) == UNKNOWN * 100


@settings(max_examples=60, deadline=None)
@given(bytes_=st.lists(st.integers(0, 255), max_size=80))
def test_streaming_any_bytes_equals_decoding_them_at_once(bytes_: list[int]) -> None:
    assert "".join(streamed(BYTES, bytes_)) == BYTES.decode(bytes_, skip_special_tokens=False)


@settings(max_examples=60, deadline=None)
@given(text=st.text("ab€😀" + UNKNOWN, max_size=60))
def test_replacement_characters_in_the_text_are_kept(text: str) -> None:
    assert "".join(streamed(BYTES, BYTES.encode(text).ids)) == text


def test_the_space_before_the_first_new_word_is_kept() -> None:
    tokenizer = with_fallback()
    assert streamed(tokenizer, [0, 1], before=1) == [" Fluss", ""]
    assert streamed(tokenizer, [0, 1]) == ["der", " Fluss", ""]
    euro = [4 + byte for byte in "€".encode()]
    assert streamed(tokenizer, [0, *euro, 3], before=1) == ["", "", "€", "e", ""]


def test_each_token_is_shown_with_its_own_space() -> None:
    tokenizer = with_fallback()
    assert token_texts(tokenizer, [0, 1, 3, 1]) == ["der", " Fluss", "e", " Fluss"]
    euro = [4 + byte for byte in "€".encode()]
    assert token_texts(tokenizer, [0, *euro])[0] == "der"
    assert "".join(token_texts(BYTES, BYTES.encode("a b c").ids)) == "a b c"


def test_the_cost_does_not_grow() -> None:
    stream, longest = Detokenizer(BYTES), 0
    for _ in range(200):
        stream.put(70)
        longest = max(longest, len(stream.ids))
    assert longest <= 2 * LATEST
