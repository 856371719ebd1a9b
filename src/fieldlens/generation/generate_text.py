"""Generates text with a model by name: loads it, reads the prompt and streams the continuation."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.core.format import format_bytes, format_duration
from fieldlens.data.tokenizer import Coder, bos_token_id, eos_token_ids
from fieldlens.extension.load import for_good
from fieldlens.generation.detokenize import Detokenizer
from fieldlens.generation.generate import Generation, generate, parse_prompts, plan
from fieldlens.generation.request import GenerateRequest
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.loading import load
from fieldlens.models.origin import find_model
from fieldlens.storage.provenance import provenance

KIND = "fieldlens generation"


@dataclass(frozen=True)
class GenerationOutput:
    """A continuation with its statistics and provenance."""

    text: str
    ended: bool
    """Whether the end-of-text token was generated."""
    generation: Generation
    about: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        generation = self.generation
        return {
            **self.about,
            "mode": generation.plan.mode,
            "window": generation.plan.window,
            "notes": list(generation.plan.notes),
            "text": self.text,
            "ids": generation.ids[0],
            "ended": self.ended,
            "stats": {
                "prompt_tokens": generation.prompt_tokens,
                "tokens": generation.tokens,
                "tokens_per_second": generation.rate,
                "seconds_to_first_token": generation.first_seconds,
                "cache_bytes": generation.cache_bytes,
            },
        }

    def stats(self) -> str:
        """Return the line that --stats prints."""
        rate, size = self.generation.rate, self.generation.cache_bytes
        seconds = self.generation.first_seconds
        speed = "too few tokens for a rate" if rate is None else f"{rate:.1f} tokens/s"
        cache = "unknown" if size is None else f"{size} bytes ({format_bytes(size)})"
        first = f"{seconds * 1000:.0f} ms" if seconds < 10 else format_duration(seconds)
        counts = f"{self.generation.prompt_tokens} prompt tokens, {self.generation.tokens} new tokens"
        return f"{speed}, first token after {first}, cache {cache}, {counts}"


def generate_text(
    model: str,
    request: GenerateRequest,
    *,
    device: torch.device,
    dtype: torch.dtype,
    on_text: Callable[[str], None] = lambda text: None,
    on_note: Callable[[str], None] = lambda note: None,
) -> GenerationOutput:
    """Continue the prompt. `on_text` receives new text as it is generated, `on_note` the defaults that were chosen."""
    origin, text = find_model(model), request.text()
    if origin.diverged:
        raise BadInput(f"{model} diverged: there is no model to generate with")
    coder, bos = Coder(origin.tokenizer), bos_token_id(origin.tokenizer)
    coder.tokenizer.encode_special_tokens = False  # the user wrote the prompt: parse special tokens in it
    ids = coder.whole(text)[0].tolist()
    ids = ids if bos is None else [bos, *ids]
    notes: list[str] = []
    loaded = load(origin, device, dtype, request.train_length, on_note=notes.append)
    if request.method is not None:
        loaded = for_good(loaded, request.method, bos)
    parse_prompts(ids, loaded.adapter.vocab_size)  # fail before any output
    chosen_plan = plan(loaded.adapter, request.mode, request.window, [len(ids)], request.tokens)
    ends = frozenset() if request.past_end else _end_tokens(loaded.adapter, coder)
    for note in (*notes, *chosen_plan.notes):
        on_note(note)
    detokenizer, pieces = Detokenizer(coder.tokenizer, ids), list[str]()

    def watch(ids_B: Tensor) -> None:
        token = int(ids_B[0])
        if token not in ends:
            emit(detokenizer.put(token))

    def emit(piece: str) -> None:
        if piece:
            pieces.append(piece)
            on_text(piece)

    sampling = replace(request.sampling, vocab_size=coder.vocab_size)
    generation = generate(
        loaded.adapter, [ids], request.tokens, mode=chosen_plan.mode, window=chosen_plan.window, sampling=sampling,
        end=ends, watch=watch,
    )  # fmt: skip
    emit(detokenizer.end())
    about = {"kind": KIND, "model": loaded.about, "prompt": text, **provenance(device, loaded.adapter.kernel())}
    ended = generation.ids[0][-1] in ends
    return GenerationOutput("".join(pieces), ended, replace(generation, plan=chosen_plan), about)


def _end_tokens(adapter: ModelAdapter, coder: Coder) -> frozenset[int]:
    """Return the end-of-text tokens of the tokenizer and of a transformers model's generation_config."""
    config = getattr(getattr(adapter, "model", None), "generation_config", None)
    eos = getattr(config, "eos_token_id", None)
    named = [token for token in (eos if isinstance(eos, list) else [eos]) if token is not None]
    if wrong := [token for token in named if type(token) is not int or token < 0]:
        raise BadInput(f"eos_token_id in generation_config.json must be a token id or a list of them, got {wrong[0]!r}")
    tokens = {*eos_token_ids(coder.tokenizer, coder.folder), *named}
    return frozenset(token for token in tokens if token < adapter.vocab_size)
