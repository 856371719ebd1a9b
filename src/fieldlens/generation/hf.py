"""Models of transformers generate by their own `generate` and their own caches; we give the window and the choices.

A window is a sliding layer in every place of the cache, and the band of `evaluate --window` in every mask. Whether a
model can be run that way is found out by trying it on a few tokens.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, NonFiniteResult, OutOfMemory
from fieldlens.core.memory import out_of_memory
from fieldlens.generation.engine import CHUNK
from fieldlens.generation.sampling import Sampling
from fieldlens.models.adapters.base import CLOSE, close
from fieldlens.models.adapters.hf import HFAdapter, bytes_held
from fieldlens.models.hf_compat import sliding_window_masks
from fieldlens.schemes.window import min_window

OTHERS = "the modes full and re-encode are left"

Watch = Callable[[Tensor], None]
"""Told the next token of each row, (B,), as soon as it is known."""


def sliding_cache(adapter: HFAdapter, window: int) -> Any:
    """A cache of transformers that keeps `window` keys in every layer; fewer if no layer sees that many."""
    from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

    # one width for all: transformers makes the mask of every layer from the first layer's size
    width = max(min_window(own, window) or window for own in adapter.windows)
    return Cache(layers=[DynamicSlidingWindowLayer(sliding_window=width) for _ in adapter.windows])


def supports_sliding_cache(adapter: HFAdapter, padded: bool = False) -> bool:
    """Whether the model's numbers through a sliding cache are those of a band: some make biases of the whole text."""
    window, tokens = 3, 8
    if adapter.limit is not None and adapter.limit < tokens:
        return False
    ids_BT = adapter.noise(tokens)
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[1, :2] = 0
    try:
        adapter.check_window(window)
        cache = sliding_cache(adapter, window)
        with torch.no_grad(), sliding_window_masks(window):
            for start, stop in ((0, 5), (5, 6), (6, 7), (7, 8)):
                shown = {"attention_mask": mask_BT[:, :stop]} if padded else {}
                part_BT = ids_BT[:, start:stop]
                last = adapter.model(input_ids=part_BT, past_key_values=cache, use_cache=True, **shown).logits[:, -1]
            whole = adapter.model(input_ids=ids_BT, use_cache=False, **shown).logits[:, -1]
    except Exception:  # each model has its own way of not being able to
        return False
    return close(last, whole)


def cache_reset_length(adapter: HFAdapter, most: int) -> int | None:
    """The length, up to `most`, at which the model's own `generate` throws a cache of ours away; None if it never does.

    Some change their rotary positions there, and read the whole text anew into a cache that does not slide.
    """
    lengths = range(1, most + 1)
    first = bisect_left(lengths, True, key=lambda length: _drops(adapter, length))
    return lengths[first] if first < most else None


def _drops(adapter: HFAdapter, length: int) -> bool:
    cache, ids_BT = sliding_cache(adapter, 2), torch.zeros(1, length, dtype=torch.long, device=adapter.device)
    asked = {"past_key_values": cache, "attention_mask": torch.ones_like(ids_BT), "use_cache": True}
    try:
        return adapter.model.prepare_inputs_for_generation(ids_BT, **asked).get("past_key_values") is not cache
    except Exception:  # it does not want to be asked: what comes back in the end will tell
        return False


@torch.no_grad()
def stands_alone(adapter: HFAdapter, padded: bool, anew: bool) -> bool:
    """Whether a row beside another, and behind padding, is what it is alone: some recurrences read the padding too."""
    tokens, padding = min(8, (adapter.limit or 9) - 1), 5 if padded else 0
    if tokens <= padding:
        return True
    ids_BT = adapter.noise(tokens)
    mask_BT = torch.ones_like(ids_BT)
    ids_BT[1, :padding] = mask_BT[1, :padding] = 0
    rows = ((ids_BT, mask_BT), (ids_BT[1:, padding:], mask_BT[1:, padding:]))
    found = []
    with _in_one_line(adapter.name), _own_settings(adapter.model), _hushed():
        for ids, mask in rows:
            asked = {"use_cache": not anew, "output_logits": True}
            made = _generate(adapter, ids, mask, 2, Sampling(), frozenset(), lambda ids_B: None, **asked)
            found.append(torch.cat(made.logits, 1)[-1])
    beside, alone = found
    # half precision is rounded otherwise in a row of another length, and a row that reads padding is far off
    return close(beside, alone, slack=max(CLOSE, 8 * torch.finfo(adapter.dtype).eps))


def write(
    adapter: HFAdapter,
    ids_BT: Tensor,
    mask_BT: Tensor,
    tokens: int,
    window: int | None,
    anew: bool,
    sampling: Sampling,
    ends: frozenset[int],
    watch: Watch,
) -> int | None:
    """Continue each row by up to so many tokens, through a cache or reading the last ones anew for each.

    Returns the bytes of the cache at the end, if they can be counted.
    """
    with _in_one_line(adapter.name), _seeded(sampling.seed, adapter.device), _own_settings(adapter.model), _hushed():
        if anew:
            assert window is not None
            return _write_anew(adapter, ids_BT, mask_BT, tokens, window, sampling, ends, watch)
        cache = None if window is None else sliding_cache(adapter, window)  # without a window: their own choice
        with sliding_window_masks(window):
            kept: dict[str, Any] = {
                "past_key_values": cache,
                "use_cache": True,
            }  # some configurations say no, and then read all anew
            if window is not None and ids_BT.shape[1] > CHUNK:  # a mask of the whole prompt would be quadratic
                kept["prefill_chunk_size"] = CHUNK
            made = _generate(adapter, ids_BT, mask_BT, tokens, sampling, ends, watch, **kept)
        if cache is not None and made.past_key_values is not cache:
            raise BadInput(f"{adapter.name} went over to a cache of its own, which does not slide: {OTHERS}")
    return bytes_held(made.past_key_values)


def _write_anew(
    adapter: HFAdapter,
    ids_BT: Tensor,
    mask_BT: Tensor,
    tokens: int,
    window: int,
    sampling: Sampling,
    ends: frozenset[int],
    watch: Watch,
) -> int:
    """The last `window` tokens from the beginning, for each new one."""
    over_B = torch.zeros(len(ids_BT), dtype=torch.bool, device=ids_BT.device)
    for _ in range(tokens):
        ids_BT, mask_BT = ids_BT[:, -window:], mask_BT[:, -window:]
        made = _generate(adapter, ids_BT, mask_BT, 1, sampling, frozenset(), watch, use_cache=False)
        ids_BT = made.sequences
        mask_BT = torch.cat([mask_BT, torch.ones_like(mask_BT[:, :1])], 1)
        over_B |= torch.tensor([token in ends for token in ids_BT[:, -1].tolist()], device=ids_BT.device)
        if bool(over_B.all()):
            break
    return 0


def _generate(
    adapter: HFAdapter, ids_BT: Tensor, mask_BT: Tensor, tokens: int, sampling: Sampling, ends: frozenset[int],
    watch: Watch, **more: Any,
) -> Any:  # fmt: skip
    chosen: dict[str, Any] = {"do_sample": False}
    if not sampling.greedy:
        chosen = {
            "do_sample": True,
            "temperature": sampling.effective_temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        }
    return adapter.model.generate(
        ids_BT,
        logits_processor=_refusing(adapter.name, sampling.known),
        attention_mask=mask_BT,
        max_new_tokens=tokens,
        eos_token_id=sorted(ends) or None,
        pad_token_id=min(ends, default=0),
        return_dict_in_generate=True,
        streamer=_streamer(watch),
        **chosen,
        **{name: value for name, value in more.items() if value is not None},
    )


def _refusing(name: str, known: int | None) -> Any:
    """Logits that are no numbers end it: transformers would go on with any token. Ids that are no text get none."""
    from transformers import LogitsProcessor, LogitsProcessorList

    class Refusing(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            if bool((scores.isnan() | (scores == torch.inf)).any()):
                raise NonFiniteResult(f"the logits of {name} are not finite: no token can be chosen")
            if known is not None and known < scores.shape[-1]:
                scores = scores.index_fill(-1, torch.arange(known, scores.shape[-1], device=scores.device), -torch.inf)
            return scores

    return LogitsProcessorList([Refusing()])


def _streamer(watch: Watch) -> Any:
    from transformers.generation.streamers import BaseStreamer

    class Streamer(BaseStreamer):
        """Passes on what `generate` says, but for the prompt, which comes first."""

        prompt = True

        def put(self, value: Tensor) -> None:
            if not self.prompt:
                watch(value)
            self.prompt = False

        def end(self) -> None: ...

    return Streamer()


@contextmanager
def _in_one_line(name: str) -> Iterator[None]:
    """Whatever a model of transformers says when it cannot go on: some have limits that no configuration names."""
    try:
        yield
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        said = " ".join(str(error).split()) or type(error).__name__
        kind = OutOfMemory if out_of_memory(error) else BadInput
        raise kind(f"{name} cannot generate this: {said[:300]}") from error


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """transformers draws from torch's own random state: set it, and put it back."""
    with torch.random.fork_rng([device] if device.type != "cpu" else [], device_type=device.type):
        torch.manual_seed(seed)
        yield


@contextmanager
def _hushed() -> Iterator[None]:
    """Keep transformers from giving advice between our lines."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


@contextmanager
def _own_settings(model: Any) -> Iterator[None]:
    """While this holds, what the model's folder says about generation counts for nothing: the command says it all."""
    from transformers import GenerationConfig

    kept, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = kept
