"""From a model and a prompt by name to text as it comes."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fieldlens.documents import File
from fieldlens.effort import spoken, spoken_bytes
from fieldlens.errors import BadInput
from fieldlens.generation import Generation, generate, plan, prompts_of
from fieldlens.models import find, load
from fieldlens.results import provenance
from fieldlens.sampling import Sampling
from fieldlens.stream import Stream
from fieldlens.subject import Subject
from fieldlens.tokenizer import Coder, begins_with, ends_of

KIND = "fieldlens generation"


@dataclass(frozen=True)
class Question:
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
class Answer:
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
            "unknown" if made.cache_bytes is None else f"{made.cache_bytes} bytes ({spoken_bytes(made.cache_bytes)})"
        )
        first = f"{made.first_seconds * 1000:.0f} ms" if made.first_seconds < 10 else spoken(made.first_seconds)
        counts = f"{made.prompt_tokens} tokens of prompt, {made.tokens} new"
        return f"{rate}, first token after {first}, cache {cache}, {counts}"


def answer(
    model: str,
    question: Question,
    device: torch.device,
    dtype: torch.dtype,
    show: Callable[[str], None] = lambda text: None,
    tell: Callable[[str], None] = lambda note: None,
) -> Answer:
    """Continue the prompt: `show` is given text as it comes, `tell` what was chosen for the user."""
    origin, text = find(model), question.text()
    if origin.diverged:
        raise BadInput(f"{model} diverged: there is no model to generate with")
    coder, first = Coder(origin.tokenizer), begins_with(origin.tokenizer)
    coder.tokenizer.encode_special_tokens = False  # the prompt is the user's own: a chat's marks are marks
    ids = coder.whole(text)[0].tolist()
    ids = ids if first is None else [first, *ids]
    loaded = load(origin, device, dtype, question.train_length)
    prompts_of(ids, loaded.subject.vocabulary)  # refused before anything is said
    settled = plan(loaded.subject, question.mode, question.window, [len(ids)], question.tokens)
    for note in settled.notes:
        tell(note)
    stream, shown = Stream(coder.tokenizer, ids), []
    ends = frozenset() if question.past_end else _ends(loaded.subject, coder)

    def watch(ids_B: Tensor) -> None:
        token = int(ids_B[0])
        if token not in ends:
            put(stream.put(token))

    def put(new: str) -> None:
        if new:
            shown.append(new)
            show(new)

    sampling = replace(question.sampling, known=coder.vocabulary)
    made = generate(
        loaded.subject, [ids], question.tokens, mode=settled.mode, window=settled.window, sampling=sampling,
        end=ends, watch=watch,
    )  # fmt: skip
    put(stream.end())
    about = {"kind": KIND, "model": loaded.about, "prompt": text, **provenance(device)}
    return Answer("".join(shown), made.ids[0][-1] in ends, replace(made, plan=settled), about)


def _ends(model: Subject, coder: Coder) -> frozenset[int]:
    """The tokens after which there is no more to say: the tokenizer's, and those that a model of transformers names."""
    named = getattr(getattr(model, "model", None), "generation_config", None)
    theirs = getattr(named, "eos_token_id", None)
    found = {*ends_of(coder.tokenizer, coder.folder), *(theirs if isinstance(theirs, list) else [theirs])}
    return frozenset(token for token in found if token is not None and token < model.vocabulary)
