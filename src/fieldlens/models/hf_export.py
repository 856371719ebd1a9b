"""Our model folders in transformers: after importing this module the Auto classes know them.

A model folder is config.json + model.safetensors, and tokenizer files if there are any. Nothing in it is executed.
"""

# No `from __future__ import annotations` here: it would switch off transformers' validation of the configuration.
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

from fieldlens.core.errors import BadInput
from fieldlens.data.tokenizer import eos_token_id
from fieldlens.kernels.layout import check_positions
from fieldlens.models.decoder import Config, Decoder
from fieldlens.models.hf_cache import SlidingLayer
from fieldlens.schemes.base import Scheme
from fieldlens.schemes.spec import scheme
from fieldlens.schemes.window import min_window

OURS = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE)
"""Ways of generating that never take a token back, which a sliding cache cannot do."""

_OF_TOKENIZER = re.compile(r".*(token|vocab|merges|template).*\.(json|txt|jinja)")


@strict
class FieldlensConfig(PreTrainedConfig):
    """A `Config` as transformers keeps it."""

    model_type = "fieldlens"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012
    attribute_map = {  # noqa: RUF012
        "hidden_size": "width",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "vocabulary": "vocab_size",  # as version 0.1 wrote it
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
        """The transformers form of a decoder's configuration."""
        values = asdict(config)
        return cls(tie_word_embeddings=values.pop("tied"), **values)

    @classmethod
    def from_dict(cls, *arguments: Any, **kwargs: Any) -> Any:
        """Called by transformers to read config.json; what is wrong with it is said in one line."""
        try:
            return super().from_dict(*arguments, **kwargs)
        except StrictDataclassError as error:
            raise BadInput(f"config.json: {' '.join(str(error.__cause__ or error).split())}") from error

    def shape(self) -> Config:
        """The configuration of the decoder inside."""
        values = {field.name: getattr(self, field.name) for field in fields(Config) if field.name != "tied"}
        return Config(tied=self.tie_word_embeddings, **values)

    def validate_architecture(self) -> None:
        """Called by transformers: whatever `Config` refuses is refused here too."""
        self.shape()


class FieldlensForCausalLM(PreTrainedModel, GenerationMixin):
    """A `Decoder` as transformers runs it."""

    config_class = FieldlensConfig
    base_model_prefix = "decoder"
    supports_gradient_checkpointing = True
    _supports_sdpa = True  # which is what runs, whatever is asked for
    _no_split_modules = ["Block"]  # noqa: RUF012
    _tied_weights_keys = {"decoder.head.weight": "decoder.embedding.weight"}  # noqa: RUF012

    def __init__(self, config: FieldlensConfig, decoder: Decoder | None = None) -> None:
        super().__init__(config)
        self.decoder = decoder or Decoder(config.shape())
        self.post_init()

    @classmethod
    def of(cls, decoder: Decoder) -> Self:
        """Wrap a decoder, sharing its weights, so that `save_pretrained` writes its model folder."""
        return cls(FieldlensConfig.of(decoder.config), decoder)

    def _init_weights(self, module: nn.Module) -> None:
        """A decoder has initialised itself."""

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str], *args: Any, **kwargs: Any) -> Any:
        """Load a model folder; refuse what transformers would let pass: absent, foreign or non-finite weights."""
        wants_info = kwargs.pop("output_loading_info", False)
        kwargs |= {"use_safetensors": True, "ignore_mismatched_sizes": True}  # they are refused below, with both sizes
        try:
            model, info = super().from_pretrained(folder, *args, output_loading_info=True, **kwargs)
        except (RuntimeError, SafetensorError) as error:
            raise BadInput(f"{folder}: the weights cannot be loaded: {' '.join(str(error).split())}") from error
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            if info[what]:
                raise BadInput(
                    f"{folder}: weights do not fit, {what.replace('_', ' ')}: {sorted(map(str, info[what]))}"
                )
        if any(weight.is_meta for weight in model.parameters()):
            raise BadInput(f"{folder}: weights that wait on the disk are not offered: leave device_map out")
        broken = [name for name, weight in model.named_parameters() if not torch.isfinite(weight).all()]
        if broken:
            raise BadInput(f"{folder}: weights are not finite: {', '.join(broken)}")
        model.decoder.scheme = _made_anew(model.decoder)
        return (model, info) if wants_info else model

    def _set_gradient_checkpointing(self, enable: bool = True, *_: Any, **__: Any) -> None:
        """Called by `gradient_checkpointing_enable` and `_disable`: every block, or none."""
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
            raise BadInput("output_attentions is not offered: the matrix of attention is never made")
        if self.training:
            self.decoder.scheme.project()  # a loop that is not ours calls it nowhere
        if (input_ids is None) == (inputs_embeds is None):
            raise BadInput("give either input_ids or inputs_embeds")
        x_BTD = inputs_embeds if input_ids is None else self.decoder.embed(input_ids)
        assert x_BTD is not None
        wants_cache = self.config.use_cache if use_cache is None else use_cache
        recomputes = self.decoder.checkpointing and torch.is_grad_enabled()  # a second pass would fill the cache again
        if past_key_values is None and wants_cache and not recomputes:
            past_key_values = self._new_cache(attention_mask)
        positions, key_positions = self._positions(x_BTD, attention_mask, position_ids, past_key_values)
        window = getattr(past_key_values.layers[0], "window", None) if past_key_values else None
        if window is not None and _has_holes(attention_mask):
            raise BadInput("padding behind a text does not go with a cache that slides: pad in front of it")
        shown = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        with _entering(self.decoder.blocks if shown else ()) as earlier:
            states_BTD = self.decoder.states(x_BTD, positions, key_positions, window=window, cache=past_key_values)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits_BTV = self.decoder.head(states_BTD[:, keep])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits=logits_BTV, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        hidden = (*earlier, states_BTD) if shown else None
        return CausalLMOutputWithPast(
            loss=loss, logits=logits_BTV, past_key_values=past_key_values, hidden_states=hidden
        )

    def sliding_cache(self, window: int | None = None) -> Cache:
        """A cache of ours for `past_key_values`; of this window and the model's own the smaller counts."""
        width = min_window(window, self.decoder.scheme.window)
        return Cache(layers=[SlidingLayer(width) for _ in range(self.config.layers)])

    def _new_cache(self, attention_mask: Tensor | None) -> Cache:
        """Ours; it counts tokens, padding too, so where padding lies among them everything is kept."""
        if not _has_holes(attention_mask):
            return self.sliding_cache()
        return Cache(layers=[SlidingLayer(None) for _ in range(self.config.layers)])

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], generation_mode: Any, *rest: Any, **named: Any
    ) -> Any:
        """Called by `generate`: unless a cache or a kind of cache is given, ours."""
        free = generation_config.use_cache is not False and generation_config.cache_implementation in (None, "dynamic")
        free = free and not generation_config.is_assistant  # whose tokens are taken back
        if free and generation_mode in OURS and model_kwargs.get("past_key_values") is None:
            model_kwargs["past_key_values"] = self._new_cache(model_kwargs.get("attention_mask"))
            return None
        return super()._prepare_cache_for_generation(generation_config, model_kwargs, generation_mode, *rest, **named)

    @staticmethod
    def create_masks_for_generate(attention_mask: Tensor | None, **_: Any) -> Tensor | None:
        """Called by transformers for preallocated caches: positions are all we need, never a matrix."""
        return attention_mask

    def _positions(
        self, x_BTD: Tensor, attention_mask: Tensor | None, position_ids: Tensor | None, cache: Cache | None
    ) -> tuple[Tensor, Tensor | None]:
        """Where queries and keys stand, padding at -1. Padding is counted by the mask, wherever it lies."""
        tokens = x_BTD.shape[1]
        seen = cache.get_seq_length() if cache is not None else 0
        if attention_mask is None:
            attention_mask = torch.ones(1, seen + tokens, dtype=torch.long, device=x_BTD.device)
        if attention_mask.ndim != 2 or attention_mask.shape[1] != seen + tokens:
            wanted = f"(batch, {seen + tokens})"
            raise BadInput(f"attention_mask has the shape {tuple(attention_mask.shape)}, wanted is {wanted}")
        padding = attention_mask == 0
        everywhere = ((~padding).long().cumsum(1) - 1).masked_fill(padding, -1)
        if position_ids is not None:
            check_positions("position_ids", position_ids, *x_BTD.shape[:2])
            given = torch.atleast_2d(position_ids).masked_fill(padding[:, -tokens:], -1)
            before = nn.functional.pad(given.cummax(1).values[:, :-1], (1, 0), value=-1)
            if not bool(((given > before) | padding[:, -tokens:]).all()):
                raise BadInput("position_ids fall or repeat in a row: several texts in one row are not told apart")
            if seen and not bool((given == everywhere[:, -tokens:]).all()):
                raise BadInput("position_ids disagree with the attention_mask; with a cache they must count on from it")
            everywhere = given if not seen else everywhere
        if cache is None:
            return everywhere, None
        keys, offset = cache.get_mask_sizes(tokens, 0)
        key_positions = everywhere[..., offset : offset + keys]
        if key_positions.shape[-1] < keys:  # slots of a preallocated cache that are not filled yet
            key_positions = nn.functional.pad(key_positions, (0, keys - key_positions.shape[-1]), value=-1)
        return everywhere[..., -tokens:], key_positions


def _made_anew(decoder: Decoder) -> Scheme:
    """The scheme with what was loaded of it: transformers makes models without memory, so that the rest is garbage."""
    config = decoder.config
    fresh = scheme(config.scheme, config.heads, config.width // config.heads).to(decoder.embedding.weight)
    fresh.load_state_dict(decoder.scheme.state_dict())
    return fresh.train(decoder.training)


@contextmanager
def _entering(blocks: Iterable[nn.Module]) -> Iterator[list[Tensor]]:
    """What each of these blocks is given in the next forward."""
    found: list[Tensor] = []
    with ExitStack() as stack:
        for block in blocks:
            stack.callback(block.register_forward_pre_hook(lambda _, given: found.append(given[0])).remove)
        yield found


def _has_holes(attention_mask: Tensor | None) -> bool:
    """Whether some padding comes after a token."""
    return (
        attention_mask is not None
        and attention_mask.ndim == 2
        and bool(((attention_mask != 0).long().diff() < 0).any())
    )


def folder_files(decoder: Decoder, tokenizer: Path | None = None) -> dict[str, bytes]:
    """The files of a model folder, for a writer that makes them durable."""
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
        if _OF_TOKENIZER.fullmatch(path.name):
            files[path.name] = path.read_bytes()
    return files


AutoConfig.register(FieldlensConfig.model_type, FieldlensConfig)
AutoModelForCausalLM.register(FieldlensConfig, FieldlensForCausalLM)
