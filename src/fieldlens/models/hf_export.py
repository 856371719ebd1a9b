"""Model folders in the format of transformers: importing this module registers them with the Auto classes.

A model folder contains config.json, model.safetensors and optional tokenizer files. Nothing in it is executed.
"""

# No `from __future__ import annotations` in this module: it would disable the config validation of transformers.
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, Self

import safetensors.torch
import torch
from huggingface_hub.dataclasses import strict
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.generation.configuration_utils import GenerationMode
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from fieldlens.core.errors import BadInput, message_only, reraise_as_bad_input
from fieldlens.data.tokenizer import eos_token_id
from fieldlens.kernels.layout import check_positions
from fieldlens.models.decoder import Config, Decoder
from fieldlens.models.finite import not_finite
from fieldlens.models.hf_cache import SlidingLayer
from fieldlens.models.hf_layers import LAYER_KEYS, layer_facts
from fieldlens.models.model_folder import verify_model_folder
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.layers import layer_schemes
from fieldlens.schemes.window import min_window
from fieldlens.storage.folders import MANIFEST, has_manifest

SLIDING_MODES = (
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
)
"""Generation modes that never remove tokens from the cache, as the sliding cache requires."""

_TOKENIZER_FILES = re.compile(r".*(token|vocab|merges|template).*\.(json|txt|jinja)")


@strict
class FieldlensConfig(PreTrainedConfig):
    """A `Config` in the format of transformers."""

    model_type = "fieldlens"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    attribute_map = {  # noqa: RUF012
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "vocabulary": "vocab_size",  # the name in files of version 0.1
        "intermediate_size": "mlp_width",
    }

    scheme: str = Config.scheme
    window: int | None = Config.window
    layers: int = Config.layers
    width: int = Config.width
    heads: int = Config.heads
    vocab_size: int = Config.vocab_size
    mlp_width: int | None = Config.mlp_width
    norm_eps: float = Config.norm_eps
    init_std: float = Config.init_std
    train_length: int | None = Config.train_length
    tie_word_embeddings: bool = Config.tied
    use_cache: bool = True

    @classmethod
    def of(cls, config: Config) -> Self:
        """Convert the configuration of a decoder."""
        values = asdict(config)
        return cls(tie_word_embeddings=values.pop("tied"), **values)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Called by transformers to read config.json; validation errors become a `BadInput` of one line."""
        try:
            return super().from_dict({k: v for k, v in config_dict.items() if k not in LAYER_KEYS}, **kwargs)
        except StrictDataclassError as error:
            raise BadInput(f"config.json: {' '.join(str(error.__cause__ or error).split())}") from error

    @property
    def layer_types(self) -> list[str] | None:
        """Which layers have a window, for the caches of transformers; None without windows."""
        return layer_facts(self.scheme, self.layers).get("layer_types")

    @property
    def sliding_window(self) -> int | None:
        """The largest window of all layers."""
        return layer_facts(self.scheme, self.layers).get("sliding_window")

    def to_dict(self) -> dict[str, Any]:
        """The contents of config.json, with what other programs read about the layers."""
        return super().to_dict() | layer_facts(self.scheme, self.layers)

    def shape(self) -> Config:
        """The configuration of the decoder."""
        values = {field.name: getattr(self, field.name) for field in fields(Config) if field.name != "tied"}
        return Config(tied=self.tie_word_embeddings, **values)

    def validate_architecture(self) -> None:
        """Called by transformers: apply the checks of `Config`."""
        self.shape()


class FieldlensForCausalLM(PreTrainedModel, GenerationMixin):
    """A `Decoder` with the interface of transformers."""

    config_class = FieldlensConfig
    base_model_prefix = "decoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # always used, whatever attn_implementation is
    _no_split_modules = ["Block"]  # noqa: RUF012
    _tied_weights_keys = {"decoder.head.weight": "decoder.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FieldlensConfig, decoder: Decoder | None = None) -> None:
        super().__init__(config)
        self.decoder = decoder or Decoder(config.shape())
        self.post_init()

    @classmethod
    def of(cls, decoder: Decoder) -> Self:
        """Wrap a decoder without copying its weights, for example to call `save_pretrained`."""
        return cls(FieldlensConfig.of(decoder.config), decoder)

    def _init_weights(self, module: nn.Module) -> None:
        """Called by transformers; nothing to do, the decoder initialises itself."""

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Load a model folder. Unlike transformers, reject altered, missing, mismatched and non-finite weights."""
        if Path(folder).is_dir():
            verify_model_folder(Path(folder))
        return_info = kwargs.pop("output_loading_info", False)
        kwargs |= {"use_safetensors": True, "ignore_mismatched_sizes": True}  # rejected below, with both sizes
        problems = (RuntimeError, SafetensorError)
        with reraise_as_bad_input(f"{folder}: the weights cannot be loaded", problems, message_only):
            model, info = super().from_pretrained(folder, *args, output_loading_info=True, **kwargs)
        for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info[problem]:
                keys = sorted(map(str, info[problem]))
                raise BadInput(
                    f"{folder}: the weights do not fit the configuration, {problem.replace('_', ' ')}: {keys}"
                )
        if any(weight.is_meta for weight in model.parameters()):
            raise BadInput(f"{folder}: weights offloaded to disk are not supported: remove device_map")
        broken = not_finite(model)
        if broken:
            raise BadInput(f"{folder}: weights are not finite: {', '.join(broken)}")
        model.decoder.scheme = _rebuild_scheme(model.decoder)
        return (model, info) if return_info else model

    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Write a model folder; a manifest of an earlier model in it is removed, since it no longer applies."""
        result = super().save_pretrained(save_directory, *args, **kwargs)
        if has_manifest(Path(save_directory)):
            (Path(save_directory) / MANIFEST).unlink()
        return result

    def _set_gradient_checkpointing(self, enable: bool = True, *_: Any, **__: Any) -> None:
        """Called by `gradient_checkpointing_enable` and `gradient_checkpointing_disable`; applies to every block."""
        self.decoder.checkpointing = enable

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        self.decoder.embedding = value

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder.head

    def set_output_embeddings(self, value: nn.Linear) -> None:
        self.decoder.head = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: Cache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        if output_attentions or (output_attentions is None and self.config.output_attentions):
            raise BadInput("output_attentions is not supported: attention weights are never materialised")
        if self.training:
            self.decoder.scheme.project()  # other training loops do not call it
        if (input_ids is None) == (inputs_embeds is None):
            raise BadInput("pass exactly one of input_ids and inputs_embeds")
        x_BTD = inputs_embeds if input_ids is None else self.decoder.embed(input_ids)
        assert x_BTD is not None
        use_cache = self.config.use_cache if use_cache is None else use_cache
        recomputes = self.decoder.checkpointing and torch.is_grad_enabled()  # would append to the cache twice
        if past_key_values is None and use_cache and not recomputes:
            past_key_values = self._new_cache(attention_mask)
        positions, key_positions = self._positions(x_BTD, attention_mask, position_ids, past_key_values)
        layers = past_key_values.layers if past_key_values else []
        windows = [getattr(layer, "window", None) for layer in layers] or [None] * self.config.layers
        if any(windows) and _has_holes(attention_mask):
            raise BadInput("padding after a token is not supported with a sliding cache: pad on the left")
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        with _record_inputs(self.decoder.blocks if output_hidden_states else ()) as block_inputs:
            states_BTD = self.decoder.states(x_BTD, positions, key_positions, window=windows, cache=past_key_values)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.decoder.head(states_BTD[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        hidden = (*block_inputs, states_BTD) if output_hidden_states else None
        return CausalLMOutputWithPast(
            loss=loss, logits=logits_BTV, past_key_values=past_key_values, hidden_states=hidden
        )

    def sliding_cache(self, window: int | None = None) -> Cache:
        """A sliding cache for `past_key_values`; the smaller of `window` and the window of the model applies."""
        return Cache(layers=[SlidingLayer(min_window(window, own)) for own in self.decoder.windows])

    def _new_cache(self, attention_mask: Tensor | None) -> Cache:
        """A sliding cache. Padding counts as tokens, so with padding after a token all tokens are kept."""
        if not _has_holes(attention_mask):
            return self.sliding_cache()
        return Cache(layers=[SlidingLayer(None) for _ in range(self.config.layers)])

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *rest: Any, **named: Any
    ) -> Any:
        """Called by `generate`: use a sliding cache unless a cache or a cache implementation was specified."""
        mask_BT = model_kwargs.get("attention_mask")
        if mask_BT is not None and mask_BT.ndim == 2 and not bool(mask_BT[:, -1].all()):
            raise BadInput("a prompt ends in padding: pad on the left (tokenizer.padding_side = 'left')")
        options = generation_config
        default = options.use_cache is not False and options.cache_implementation in (None, "dynamic")
        default = default and not options.is_assistant  # tokens of an assistant may be removed
        if default and generation_mode in SLIDING_MODES and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = self._new_cache(model_kwargs.get("attention_mask"))
            return None
        return super()._prepare_cache_for_generation(generation_config, model_kwargs, generation_mode, *rest, **named)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """Called by transformers for preallocated caches; the 2-D mask is enough, a 4-D mask is never made."""
        return attention_mask

    def _positions(
        self, x_BTD: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor | list[Tensor] | None]:
        """Positions of queries, and of the cached and new keys of each layer, from the attention mask; -1: padding."""
        tokens = x_BTD.shape[1]
        cached = cache.get_seq_length() if cache is not None else 0
        if attention_mask is None:
            attention_mask = torch.ones(1, cached + tokens, dtype=torch.long, device=x_BTD.device)
        if attention_mask.ndim != 2 or attention_mask.shape[1] != cached + tokens:
            shape = tuple(attention_mask.shape)
            raise BadInput(f"attention_mask must have shape (batch, {cached + tokens}), got {shape}")
        padding = attention_mask == 0
        all_positions = ((~padding).long().cumsum(1) - 1).masked_fill(padding, -1)
        if position_ids is not None:
            check_positions("position_ids", position_ids, *x_BTD.shape[:2])
            new_positions = torch.atleast_2d(position_ids).masked_fill(padding[:, -tokens:], -1)
            before = nn.functional.pad(new_positions.cummax(1).values[:, :-1], (1, 0), value=-1)
            if not bool(((new_positions > before) | padding[:, -tokens:]).all()):
                raise BadInput(
                    "position_ids must increase within a row: packing several texts into one is not supported"
                )
            if cached and not bool((new_positions == all_positions[:, -tokens:]).all()):
                raise BadInput("with a cache, position_ids must equal the positions counted from attention_mask")
            all_positions = new_positions if not cached else all_positions
        if cache is None:
            return all_positions, None
        sizes = [cache.get_mask_sizes(tokens, number) for number in range(self.config.layers)]
        views = {}
        for keys, offset in set(sizes):
            key_positions = all_positions[..., offset : offset + keys]
            missing = keys - key_positions.shape[-1]  # empty slots of a preallocated cache
            views[keys, offset] = nn.functional.pad(key_positions, (0, missing), value=-1) if missing else key_positions
        return all_positions[..., -tokens:], [views[size] for size in sizes]


def _rebuild_scheme(decoder: Decoder) -> Scheme:
    """Build the scheme again and load its state.

    Transformers builds models on the meta device, which leaves tensors that are not in the state dict uninitialised.
    """
    config = decoder.config
    head_width = config.width // config.heads
    rebuilt = layer_schemes(config.scheme, config.layers, config.heads, head_width, config.train_length)
    rebuilt = rebuilt.to(decoder.embedding.weight)
    rebuilt.load_state_dict(decoder.scheme.state_dict())
    return rebuilt.train(decoder.training)


@contextmanager
def _record_inputs(blocks: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """Record the input of each block during the next forward pass."""
    inputs: list[Tensor] = []
    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(lambda _, args: inputs.append(args[0])).remove)
        yield inputs


def _has_holes(attention_mask: Tensor | None) -> bool:
    """Whether any padding comes after a token."""
    return (
        attention_mask is not None
        and attention_mask.ndim == 2
        and bool(((attention_mask != 0).long().diff() < 0).any())
    )


def folder_files(decoder: Decoder, tokenizer: Path | None = None) -> dict[str, bytes]:
    """The files of a model folder by name."""
    config = FieldlensConfig.of(decoder.config)
    config.architectures, config.dtype = [FieldlensForCausalLM.__name__], decoder.embedding.weight.dtype
    weights = {f"decoder.{name}": value.cpu().contiguous() for name, value in decoder.contents().items()}
    files = {
        "config.json": config.to_json_string().encode(),
        "model.safetensors": safetensors.torch.save(weights, metadata={"format": "pt"}),
    }
    if tokenizer:
        end = eos_token_id(tokenizer)
        files["generation_config.json"] = json.dumps({"eos_token_id": end, "pad_token_id": end}).encode()
    for path in sorted(tokenizer.iterdir()) if tokenizer else []:
        if _TOKENIZER_FILES.fullmatch(path.name):
            files[path.name] = path.read_bytes()
    return files


AutoConfig.register(FieldlensConfig.model_type, FieldlensConfig)
AutoModelForCausalLM.register(FieldlensConfig, FieldlensForCausalLM)
