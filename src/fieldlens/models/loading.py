"""Loading a model by name: a run folder, a Hugging Face folder or id, a GGUF file.

Nothing from a model folder is executed. Weights that are missing, not finite or altered are refused.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.core.memory import without_collection
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.adapters.base import ModelAdapter, check_causal, weights_hash
from fieldlens.models.decoder import Decoder
from fieldlens.models.finite import not_finite
from fieldlens.models.gguf_reading import read_once
from fieldlens.models.hf_layers import LAYER_KEYS
from fieldlens.models.hub import hub_is_reachable, loading, quiet_transformers, require_gguf
from fieldlens.models.model_folder import verify_model_folder
from fieldlens.models.origin import Origin, find_model
from fieldlens.models.size import check_config, check_weights
from fieldlens.schemes.spec import has_source, source_of
from fieldlens.storage.folders import MANIFEST, has_manifest
from fieldlens.storage.records import ModelRecord
from fieldlens.storage.sealed import digest

_BESIDE = {"_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version"}
"""Keys of a configuration that change no number."""


@dataclass(frozen=True)
class Model:
    """A loaded model, and what results record of it."""

    adapter: ModelAdapter
    about: ModelRecord


def load(
    origin: Origin,
    device: torch.device,
    dtype: torch.dtype,
    train_length: int | None = None,
    hash_weights: bool = True,
    on_note: Callable[[str], None] = lambda note: None,
) -> Model:
    """Load a model and check that it is causal; results need the hash of its weights, which takes seconds."""
    if train_length is not None and train_length < 1:
        raise BadInput(f"train length must be at least 1, got {train_length}")
    _check_source(origin)
    with without_collection():
        model, config = _weights(origin, dtype)
    adapter = adapt(model.to(device), origin.name)
    gguf = origin.path is not None and origin.path.is_file()
    adapter.named_dtype = torch.float16 if gguf else _named_dtype(config)  # llama.cpp caches in float16
    adapter.train_length = train_length or adapter.train_length
    with loading(origin.text):
        check_causal(adapter)
    if origin.path is not None and origin.path.is_dir() and not has_manifest(origin.path):
        on_note(f"{origin.text} has no {MANIFEST} of fieldlens: its files cannot be verified")
    decoder = getattr(model, "decoder", None)
    spec = decoder.config.scheme if isinstance(decoder, Decoder) else None
    about: ModelRecord = {
        **origin.about(),
        "kind": model.config.model_type,
        "scheme": spec,
        "train_length": adapter.train_length,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "dtype": str(dtype).removeprefix("torch."),
        "weights": weights_hash(model) if hash_weights else None,
        "configuration": _configuration(model.config, source_of(spec) if spec else {}),
    }
    return Model(adapter, about)


def load_model(
    name: str | Path,
    *,
    device: str = "auto",
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = "float32",
    train_length: int | None = None,
) -> ModelAdapter:
    """Load a run folder, a Hugging Face folder or id, or a GGUF file, for `perplexity`, `receptive_field`, `generate`.

    These functions then also take text and paths of text files, which the model's own tokenizer encodes.

    Parameters
    ----------
    name
        Path of a folder or a .gguf file, or a Hugging Face id (owner/name).
    device
        cpu, cuda, mps …; auto takes a GPU if there is one.
    dtype
        Type of the weights. The default suits every function: gradients need at least float32. auto is bfloat16 on a
        GPU that supports it.
    train_length
        Training length, if the model's configuration does not say it or is wrong.
    """
    machine = Machine(device, dtype)
    chosen = machine.choose_device()
    origin = find_model(str(name))
    adapter = load(origin, chosen, machine.choose_dtype(chosen), train_length, hash_weights=False).adapter
    adapter.find_tokenizer = lambda: origin.tokenizer
    return adapter


def _check_source(origin: Origin) -> None:
    """Refuse a run whose scheme's file differs from the one it was trained with."""
    about = origin.about()
    if "scheme_source" in about and not has_source(origin.name, about["scheme_source"]):
        raise BadInput(
            f"{origin.text}: the file of scheme '{origin.name}' has changed since this run was trained: restore it or "
            "train again"
        )


def _configuration(config: Any, source: dict[str, str]) -> str:
    """Hash of what a model computes with its weights: rotary base, windows, the formula of a plugin."""
    fields = {key: value for key, value in config.to_dict().items() if key not in _BESIDE} | source
    if fields.get("model_type") == "fieldlens":  # as in version 0.1, so that its hashes stay valid
        fields = {key: value for key, value in fields.items() if key not in LAYER_KEYS}
        fields["vocabulary"] = fields.pop("vocab_size")
    return digest(json.loads(json.dumps(fields, sort_keys=True, default=str)))[:16]


def _named_dtype(config: dict[str, Any]) -> torch.dtype | None:
    """The dtype that a configuration names, itself or for its text model, by the current or the older key."""
    text = config.get("text_config")
    parts = [config, text] if isinstance(text, dict) else [config]
    names = [str(part[key]) for part in parts for key in ("dtype", "torch_dtype") if part.get(key)]
    dtype = getattr(torch, names[0].removeprefix("torch."), None) if names else None
    return dtype if isinstance(dtype, torch.dtype) else None


def _weights(origin: Origin, dtype: torch.dtype) -> tuple[Any, dict[str, Any]]:
    if origin.path is None:
        return _pretrained(origin.text, origin.text, dtype=dtype, local_files_only=not hub_is_reachable())
    verify_model_folder(origin.path, required=origin.run is not None)
    if origin.path.is_file():
        require_gguf(origin.path)
        with read_once():
            return _pretrained(str(origin.path.parent), str(origin.path), dtype=dtype, gguf_file=origin.path.name)
    return _pretrained(str(origin.path), origin.text, dtype=dtype)


def _pretrained(place: str, name: str, **settings: Any) -> tuple[Any, dict[str, Any]]:
    """Load with transformers; refuse what it lets pass: missing or non-finite weights.

    Returns the model, and the configuration as its folder has it.
    """
    from transformers import AutoModelForCausalLM

    import fieldlens.models.hf_export  # noqa: F401

    settings |= {"trust_remote_code": False, "output_loading_info": True}
    if "gguf_file" not in settings:
        settings["use_safetensors"] = True
    with quiet_transformers(), loading(name):
        config = _config(place, settings)
        check_config(name, config, settings["dtype"])
        if Path(place).is_dir() and "gguf_file" not in settings:
            check_weights(name, Path(place), settings["dtype"])
        try:
            model, info = AutoModelForCausalLM.from_pretrained(place, attn_implementation="sdpa", **settings)
        except ValueError as error:
            if "attn_implementation" not in str(error) and "scaled_dot_product" not in str(error):
                raise
            model, info = AutoModelForCausalLM.from_pretrained(place, attn_implementation="eager", **settings)
    for kind in ("missing_keys", "mismatched_keys"):
        if info[kind]:
            keys = sorted(map(str, info[kind]))[:5]
            raise BadInput(f"{name}: the weights do not fit the configuration, {kind.replace('_', ' ')}: {keys}")
    broken = not_finite(model)
    if broken:
        raise BadInput(f"{name}: weights are not finite: {', '.join(broken[:5])}")
    return model.requires_grad_(False), config


def _config(place: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The configuration as the folder has it; empty for a GGUF file. A decoder without its encoder is refused."""
    from transformers import PreTrainedConfig

    if "gguf_file" in settings:
        return {}
    local = {key: settings[key] for key in ("local_files_only",) if key in settings}
    config, _ = PreTrainedConfig.get_config_dict(place, **local)
    alone = any(str(name).endswith("ForCausalLM") for name in config.get("architectures") or [])
    if config.get("is_encoder_decoder") and not alone:
        raise BadInput(f"{place} is an encoder-decoder: a causal language model is needed")
    return config
