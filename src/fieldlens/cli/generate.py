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
    method: str | None = None,
    sinks: int | None = None,
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
    """Generate text from a prompt, at constant cost per token.

    Example: fieldlens generate runs/sandwich --prompt "def main(" --tokens 500 --temperature 0.8

    A sliding key-value cache keeps time and memory per token constant. The generated text is streamed to standard
    output, everything else goes to standard error. Decoding is greedy unless --temperature, --top-k or --top-p is set.

    Parameters
    ----------
    model
        Run folder, Hugging Face folder or id, or GGUF file.
    prompt
        Text to continue. Give either this or --prompt-file.
    prompt_file
        Text file to continue.
    tokens
        Maximum number of new tokens.
    window
        Number of keys and values that the cache keeps per layer. Default: the training length.
    method
        Extension method to run the model with, such as self-extend or yarn:factor=4; see fieldlens extend.
    sinks
        With --window: also keep this many first keys; short for --method streaming:sinks=S,window=W.
    mode
        sliding: cache the last keys and values; full: cache all of them; re-encode: encode the last tokens again for
        each new token.
    temperature
        Sampling temperature; 0 is greedy.
    top_k
        Sample from the k most likely tokens.
    top_p
        Sample from the smallest set of tokens with at least this total probability.
    seed
        Random seed for sampling.
    past_end
        Continue after the end-of-text token, into another document.
    train_length
        Training length of the model, if its configuration does not state it or is wrong.
    stats
        Print tokens per second, time to the first token and cache size in bytes.
    as_json
        Print JSON at the end, instead of streaming the text.
    """
    from fieldlens.generation.generate_text import generate_text
    from fieldlens.generation.request import GenerateRequest
    from fieldlens.generation.sampling import Sampling

    request = GenerateRequest(
        prompt=prompt,
        file=prompt_file,
        tokens=tokens,
        mode=mode,
        window=window,
        method=method,
        sinks=sinks,
        sampling=Sampling(temperature, top_k, top_p, seed),
        past_end=past_end,
        train_length=train_length,
    )
    device, dtype = machine.start()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # characters that the terminal cannot encode become question marks
    show, note = (_ignore, _ignore) if as_json else (_show, _note)
    output = generate_text(model, request, device=device, dtype=dtype, on_text=show, on_note=note)
    if as_json:
        print(json.dumps(output.to_json(), ensure_ascii=False))
        return
    _show("\n")
    if stats:
        _note(output.stats())


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(text: str) -> None:
    print(text, file=sys.stderr)


def _ignore(text: str) -> None: ...
