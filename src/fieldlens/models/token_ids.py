"""Token ids from what a caller has: text, a file, the output of a transformers tokenizer, lists, arrays, tensors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fieldlens.core.errors import BadInput
from fieldlens.data.text import open_text
from fieldlens.data.tokenizer import Coder, find_bos
from fieldlens.models.adapters.base import ModelAdapter


def is_text(value: Any) -> bool:
    """Whether a value is text or the path of a text file, which a tokenizer must encode."""
    return isinstance(value, str | Path)


def token_ids(value: Any, adapter: ModelAdapter) -> Any:
    """Text, a path or the output of a transformers tokenizer as token ids; anything else as it is."""
    if is_text(value):
        documents = [value] if isinstance(value, str) else list(open_text(value).documents())
        ids = Coder(_tokenizer(adapter)).whole("\n".join(documents))[0]
        return torch.from_numpy(ids.astype("int64"))
    if isinstance(value, Mapping):
        if "input_ids" not in value:
            raise BadInput(
                f"the output of a tokenizer has input_ids, got the keys {', '.join(map(str, value)) or 'none'}"
            )
        if not torch.as_tensor(value.get("attention_mask", 1)).all():
            raise BadInput("padded token ids are not supported: pass rows of equal length, or one row at a time")
        return value["input_ids"]
    return value


def own_bos(value: Any, adapter: ModelAdapter) -> int | None:
    """The token that the model's tokenizer puts before text; None for token ids, which are taken as they are."""
    values = value if isinstance(value, list | tuple) else [value]
    return find_bos(_tokenizer(adapter)).id if any(map(is_text, values)) else None


def _tokenizer(adapter: ModelAdapter) -> Path:
    if adapter.find_tokenizer is None:
        raise BadInput(f"{adapter.name} has no tokenizer for text: use fieldlens.load_model(path), or pass token ids")
    return adapter.find_tokenizer()
