"""From a model and a prompt by name to text as it comes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.core.format import format_bytes, format_duration
from fieldlens.data.documents import File
from fieldlens.data.tokenizer import Coder, bos_token_id, eos_token_ids
from fieldlens.generation.detokenize import Detokenizer
from fieldlens.generation.generate import Generation, generate, parse_prompts, plan
from fieldlens.generation.sampling import Sampling
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.models.loading import load
from fieldlens.models.origin import find_model
from fieldlens.storage.provenance import provenance

KIND = "fieldlens generation"


@dataclass(frozen=True)
class GenerateRequest:
    """What `fieldlens generate` was asked."""

    prompt: str | None = None
    file: Path | None = None
    tokens: int = 200
    mode: str | None = None
    window: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    past_end: bool = False
    """Go on when the end-of-text token comes."""
    train_length: int | None = None

    def __post_init__(self) -> None:
        if self.tokens < 1:
            raise BadInput(f"tokens is {self.tokens}: at least 1 is needed")
        if (self.prompt is None) == (self.file is None):
            raise BadInput("give either --prompt TEXT or --prompt-file FILE")

    def text(self) -> str:
        """The prompt: all of it, as it is."""
        if self.file is not None:
            if not self.file.exists() or self.file.is_dir():
                raise BadInput(f"{self.file} is no file: --prompt-file takes a text file")
            (text,) = File("prompt", self.file, None).documents()
        else:
            text = self.prompt or ""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput(f"the prompt is not UTF-8 from character {error.start} on") from None
        if not text:
            raise BadInput("the prompt is empty: at least one character is needed")
        return text


@dataclass(frozen=True)
class GenerationOutput:
    """A continuation, and how it was made."""

    text: str
    ended: bool
    """Whether the end-of-text token came."""
    made: Generation
    about: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        made = self.made
        return {
            **self.about,
            "mode": made.plan.mode,
            "window": made.plan.window,
            "notes": list(made.plan.notes),
            "text": self.text,
            "ids": made.ids[0],
            "ended": self.ended,
            "stats": {
                "prompt_tokens": made.prompt_tokens,
                "tokens": made.tokens,
                "tokens_per_second": made.rate,
                "seconds_to_first_token": made.first_seconds,
                "cache_bytes": made.cache_bytes,
            },
        }

    def stats(self) -> str:
        """What --stats prints."""
        made = self.made
        rate = "too few tokens for a rate" if made.rate is None else f"{made.rate:.1f} tokens/s"
        cache = (
            "unknown" if made.cache_bytes is None else f"{made.cache_bytes} bytes ({format_bytes(made.cache_bytes)})"
        )
        first = (
            f"{made.first_seconds * 1000:.0f} ms" if made.first_seconds < 10 else format_duration(made.first_seconds)
        )
        counts = f"{made.prompt_tokens} tokens of prompt, {made.tokens} new"
        return f"{rate}, first token after {first}, cache {cache}, {counts}"


def answer(
    model: str,
    question: GenerateRequest,
    device: torch.device,
    dtype: torch.dtype,
    show: Callable[[str], None] = lambda text: None,
    tell: Callable[[str], None] = lambda note: None,
) -> GenerationOutput:
    """Continue the prompt: `show` is given text as it comes, `tell` what was chosen for the user."""
    origin, text = find_model(model), question.text()
    if origin.diverged:
        raise BadInput(f"{model} diverged: there is no model to generate with")
    coder, first = Coder(origin.tokenizer), bos_token_id(origin.tokenizer)
    coder.tokenizer.encode_special_tokens = False  # the prompt is the user's own: a chat's marks are marks
    ids = coder.whole(text)[0].tolist()
    ids = ids if first is None else [first, *ids]
    loaded = load(origin, device, dtype, question.train_length)
    parse_prompts(ids, loaded.adapter.vocab_size)  # refused before anything is said
    settled = plan(loaded.adapter, question.mode, question.window, [len(ids)], question.tokens)
    for note in settled.notes:
        tell(note)
    stream, shown = Detokenizer(coder.tokenizer, ids), []
    ends = frozenset() if question.past_end else _ends(loaded.adapter, coder)

    def watch(ids_B: Tensor) -> None:
        token = int(ids_B[0])
        if token not in ends:
            put(stream.put(token))

    def put(new: str) -> None:
        if new:
            shown.append(new)
            show(new)

    sampling = replace(question.sampling, known=coder.vocab_size)
    made = generate(
        loaded.adapter, [ids], question.tokens, mode=settled.mode, window=settled.window, sampling=sampling,
        end=ends, watch=watch,
    )  # fmt: skip
    put(stream.end())
    about = {"kind": KIND, "model": loaded.about, "prompt": text, **provenance(device)}
    return GenerationOutput("".join(shown), made.ids[0][-1] in ends, replace(made, plan=settled), about)


def _ends(model: ModelAdapter, coder: Coder) -> frozenset[int]:
    """The tokens after which there is no more to say: the tokenizer's, and those that a model of transformers names."""
    named = getattr(getattr(model, "model", None), "generation_config", None)
    theirs = getattr(named, "eos_token_id", None)
    found = {*eos_token_ids(coder.tokenizer, coder.folder), *(theirs if isinstance(theirs, list) else [theirs])}
    return frozenset(token for token in found if token is not None and token < model.vocab_size)
