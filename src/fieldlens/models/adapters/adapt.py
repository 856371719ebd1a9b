"""Any causal language model as evaluation and the lens see it: token ids in, next-token logits out.

Our decoders compute only what the last positions need. Models of transformers are asked through their public interface
alone; what they cannot do is found out by trying, never by their name.
"""

from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.function import FunctionAdapter
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.models.decoder import Decoder


def adapt(model: Any, name: str = "") -> ModelAdapter:
    """A model as a subject: a Decoder, a model of transformers, or a function from ids to logits."""
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
    raise BadInput(f"{type(model).__name__} is no model: give a Decoder, a transformers model or a function of ids")
