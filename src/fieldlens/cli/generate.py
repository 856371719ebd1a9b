"""fieldlens generate: text of any length at constant cost per token."""

import io
import json
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from fieldlens.core.device import Machine


def generate(
    model: str,
    *,
    prompt: Annotated[str | None, Parameter(allow_leading_hyphen=True)] = None,
    prompt_file: Path | None = None,
    tokens: int = 200,
    window: int | None = None,
    mode: Literal["sliding", "full", "re-encode"] | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    past_end: bool = False,
    train_length: int | None = None,
    stats: bool = False,
    as_json: Annotated[bool, Parameter(name="--json")] = False,
    machine: Annotated[Machine, Parameter(name="*")] = Machine(),  # noqa: B008
) -> None:
    """Continue a prompt for as long as you like, at constant cost.

    Example: fieldlens generate runs/sandwich --prompt "def main(" --tokens 500 --temperature 0.8

    A sliding cache keeps time and memory per token constant. The new text goes to standard output as it comes,
    everything else to standard error. Without --temperature, --top-k and --top-p the likeliest token is taken.

    Parameters
    ----------
    model
        A run folder, a Hugging Face folder or id, a GGUF file.
    prompt
        The text to continue; or --prompt-file.
    prompt_file
        A text file to continue.
    tokens
        How many new tokens, at most.
    window
        Keys and values that the cache keeps in each layer; the training length unless given.
    mode
        sliding (the cache), full (everything is kept) or re-encode (the last tokens are read anew for each new one).
    temperature
        Draw tokens, at this temperature; 0 takes the likeliest.
    top_k
        Draw from so many of the likeliest tokens.
    top_p
        Draw from the fewest tokens whose chances add up to this.
    seed
        Decides what is drawn.
    past_end
        Go on past the end-of-text token, into another document.
    train_length
        The model's training length, if its configuration does not say it or is wrong.
    stats
        Say tokens per second, time to the first token and bytes of the cache.
    as_json
        Print JSON, once all is done.
    """
    from fieldlens.generation.command import GenerateRequest, answer
    from fieldlens.generation.sampling import Sampling

    sampling = Sampling(temperature, top_k, top_p, seed)
    question = GenerateRequest(prompt, prompt_file, tokens, mode, window, sampling, past_end, train_length)
    device, dtype = machine.start()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that cannot show a character shows a question mark
    found = answer(model, question, device, dtype, _silent if as_json else _show, _silent if as_json else _tell)
    if as_json:
        print(json.dumps(found.to_json(), ensure_ascii=False))
        return
    _show("\n")
    if stats:
        _tell(found.stats())


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _tell(note: str) -> None:
    print(note, file=sys.stderr)


def _silent(text: str) -> None: ...
