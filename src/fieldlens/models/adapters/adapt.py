"""Choose the adapter of a model: token ids in, next-token logits out.

Decoders of this library compute only what the last positions depend on. Transformers models are used through their
public interface only; capabilities are probed, not inferred from names.
"""

from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.function import FunctionAdapter
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.models.decoder import Decoder


def adapt(model: Any, name: str = "") -> ModelAdapter:
    """The adapter of a model: a Decoder, a transformers model, or a function from token ids to logits."""
    if isinstance(model, ModelAdapter):
        return model
    if isinstance(model, Decoder):
        return DecoderAdapter(model, name)
    if isinstance(getattr(model, "decoder", None), Decoder):
        return DecoderAdapter(model.decoder, name)
    if hasattr(model, "get_input_embeddings") and hasattr(model, "config"):
        return HFAdapter(model, name)
    if callable(model):
        return FunctionAdapter(model, name)
    raise BadInput(
        f"{type(model).__name__} is not a model: pass a Decoder, a transformers model or a function from ids to logits"
    )
