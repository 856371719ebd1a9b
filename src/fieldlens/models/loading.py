"""The models that a command can be given: a run folder, a Hugging Face folder, a hub id, a GGUF file.

Nothing from a model folder is executed, and weights that are missing or not finite are refused.
"""

import json
from dataclasses import dataclass
from typing import Any

import torch

from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import ModelAdapter, check_causal, weights_hash
from fieldlens.models.decoder import Decoder
from fieldlens.models.hub import _in_one_line, hub_is_reachable, quiet_transformers, require_gguf
from fieldlens.models.origin import Origin
from fieldlens.schemes.spec import parse, source_of
from fieldlens.storage.atomic import Damaged, read_folder
from fieldlens.storage.content_cache import digest

_BESIDE = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
"""What a configuration says that changes no number."""


@dataclass(frozen=True)
class Model:
    """A subject, and what a result says of it."""

    adapter: ModelAdapter
    about: dict[str, Any]


def load(origin: Origin, device: torch.device, dtype: torch.dtype, train_length: int | None = None) -> Model:
    """The model of an origin, ready to be asked, and causal."""
    if train_length is not None and train_length < 1:
        raise BadInput(f"train length is {train_length}: at least 1 is needed")
    _check_source(origin)
    found, described = _weights(origin, dtype)
    one = adapt(found.to(device), origin.name)
    one.named_dtype = _named_dtype(described)
    one.train_length = train_length or one.train_length
    with _in_one_line(origin.text):
        check_causal(one)
    inside = getattr(found, "decoder", None)
    spec = inside.config.scheme if isinstance(inside, Decoder) else None
    about = {
        **origin.about(),
        "kind": found.config.model_type,
        "scheme": spec,
        "train_length": one.train_length,
        "parameters": sum(parameter.numel() for parameter in found.parameters()),
        "dtype": str(dtype).removeprefix("torch."),
        "weights": weights_hash(found),
        "configuration": _configuration(found.config, source_of(spec) if spec else {}),
    }
    return Model(one, about)


def _check_source(origin: Origin) -> None:
    """Refuse a run whose scheme is no longer the one that it was trained with."""
    known = origin.about()
    if "scheme_source" in known and known["scheme_source"] != parse(origin.name)[0].file_hash:
        raise BadInput(
            f"{origin.text}: the file of scheme '{origin.name}' has changed since this run was trained: put it back as "
            "it was, or train again"
        )


def _configuration(config: Any, source: dict[str, str]) -> str:
    """Names what a model computes with its weights: a rotary base, a window or a plugin's formula is in no weight."""
    known = {key: value for key, value in config.to_dict().items() if key not in _BESIDE} | source
    if known.get("model_type") == "fieldlens":  # the hash is that of version 0.1, which called it so
        known["vocabulary"] = known.pop("vocab_size")
    return digest(json.loads(json.dumps(known, sort_keys=True, default=str)))[:16]


def _named_dtype(described: dict[str, Any]) -> torch.dtype | None:
    """The dtype that a configuration names, by its newer or its older word, itself or for its text."""
    text = described.get("text_config")
    places = [described, text] if isinstance(text, dict) else [described]
    names = [str(place[word]) for place in places for word in ("dtype", "torch_dtype") if place.get(word)]
    found = getattr(torch, names[0].removeprefix("torch."), None) if names else None
    return found if isinstance(found, torch.dtype) else None


def _weights(origin: Origin, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    if origin.path is None:
        return _pretrained(origin.text, origin.text, dtype=dtype, local_files_only=not hub_is_reachable())
    if origin.run is not None:
        try:
            read_folder(origin.path, others=True)
        except Damaged as error:
            raise BadInput(f"{origin.text}: the model folder is damaged ({error}); train again, or --resume") from None
    if origin.path.is_file():
        require_gguf(origin.path)
        return _pretrained(str(origin.path.parent), str(origin.path), dtype=dtype, gguf_file=origin.path.name)
    return _pretrained(str(origin.path), origin.text, dtype=dtype)


def _pretrained(place: str, shown: str, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Load by transformers, and refuse what it would let pass: absent or non-finite weights.

    Returns the model, and its configuration as the folder has it.
    """
    from transformers import AutoModelForCausalLM

    import fieldlens.models.hf_export  # noqa: F401

    settings |= {"trust_remote_code": False, "output_loading_info": True}
    if "gguf_file" not in settings:
        settings["use_safetensors"] = True
    with quiet_transformers(), _in_one_line(shown):
        described = _described(place, settings)
        try:
            model, info = AutoModelForCausalLM.from_pretrained(place, attn_implementation="sdpa", **settings)
        except ValueError as error:
            if "attn_implementation" not in str(error) and "scaled_dot_product" not in str(error):
                raise
            model, info = AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager", **settings)
    for what in ("missing_keys", "mismatched_keys"):
        if info[what]:
            raise BadInput(f"{shown}: weights do not fit, {what.replace('_', ' ')}: {sorted(map(str, info[what]))[:5]}")
    broken = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
    if broken:
        raise BadInput(f"{shown}: weights are not finite: {', '.join(broken[:5])}")
    return model.requires_grad_(False), described


def _described(place: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A configuration as it is written; empty in a GGUF file.

    A decoder without its encoder is refused: it would run, and say nothing of what the two say together.
    """
    from transformers import PreTrainedConfig

    if "gguf_file" in settings:
        return {}
    local = {key: settings[key] for key in ("local_files_only",) if key in settings}
    described, _ = PreTrainedConfig.get_config_dict(place, **local)
    alone = any(str(name).endswith("ForCausalLM") for name in described.get("architectures") or [])
    if described.get("is_encoder_decoder") and not alone:
        raise BadInput(f"{place} is an encoder and a decoder: a causal language model is needed")
    return described
