"""Metadata of a GGUF file: the keys before its tensors, read without the gguf package, which reads whole files."""

import struct
from pathlib import Path
from typing import Any, BinaryIO

from fieldlens.core.errors import BadInput

MAGIC = b"GGUF"
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING, _ARRAY = 8, 9
_LONGEST = 1 << 28
"""Maximum number of bytes or entries of one value; more is a damaged file."""


def read_metadata(path: Path) -> dict[str, Any]:
    """All keys with their values; raise BadInput if the file is not GGUF or is cut off."""
    with path.open("rb") as file:
        try:
            if file.read(4) != MAGIC:
                raise BadInput(f"{path} is not a GGUF file: it does not begin with GGUF")
            version, _, count = struct.unpack("<IQQ", file.read(20))
            if version not in (2, 3):
                raise BadInput(f"{path} has GGUF version {version}: versions 2 and 3 are supported")
            return {_string(file): _value(file, _scalar(file, 4)) for _ in range(count)}
        except (struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
            raise BadInput(f"{path} is damaged: its metadata cannot be read ({error})") from None


def tokenizer_facts(path: Path) -> dict[str, Any]:
    """What a GGUF file says about BOS, in the words of tokenizer_config.json; empty if it says nothing.

    SentencePiece vocabularies add BOS unless the file says otherwise, as in llama.cpp.
    """
    metadata = read_metadata(path)
    default = True if metadata.get("tokenizer.ggml.model") == "llama" else None
    adds, bos = metadata.get("tokenizer.ggml.add_bos_token", default), metadata.get("tokenizer.ggml.bos_token_id")
    tokens = metadata.get("tokenizer.ggml.tokens", [])
    if adds is None:
        return {}
    named = {"bos_token": tokens[bos]} if isinstance(bos, int) and bos < len(tokens) else {}
    return {"add_bos_token": bool(adds), **named}


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _scalar(file, kind)
    entries, count = _scalar(file, 4), _length(file)
    if entries in _SCALARS:
        form = f"<{count}{_SCALARS[entries][1:]}"
        return list(struct.unpack(form, file.read(struct.calcsize(form))))
    return [_value(file, entries) for _ in range(count)]


def _scalar(file: BinaryIO, kind: int) -> Any:
    form = _SCALARS[kind]
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]


def _string(file: BinaryIO) -> str:
    length = _length(file)
    content = file.read(length)
    if len(content) < length:
        raise struct.error("it ends within a text")
    return content.decode(errors="replace")


def _length(file: BinaryIO) -> int:
    length = int(_scalar(file, 10))
    if length > _LONGEST:
        raise struct.error(f"a length of {length}")
    return length
