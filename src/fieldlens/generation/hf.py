"""Generation with transformers models, through their own `generate` and caches.

A window means a sliding cache in every layer and the band of `evaluate --window` in every mask. Whether a model
supports this is probed on a few tokens.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput, NonFiniteResult, message_only, reraise_as_bad_input
from fieldlens.core.memory import out_of_memory
from fieldlens.extension.adapters import ExtendedHFAdapter
from fieldlens.generation.engine import CHUNK
from fieldlens.generation.sampling import Continuation, TokenCallback
from fieldlens.models.adapters.base import CLOSE, close
from fieldlens.models.adapters.hf import HFAdapter, bytes_held
from fieldlens.models.hf_compat import sliding_window_masks
from fieldlens.models.hub import quiet_transformers
from fieldlens.schemes.window import min_window

OTHER_MODES = "use mode full or re-encode"

UNSUPPORTED = (RuntimeError, ValueError, TypeError, AttributeError, IndexError, KeyError, NotImplementedError)
"""What models raise that do not support a cache or a window."""


def sliding_cache(adapter: HFAdapter, window: int) -> Any:
    """Create a transformers cache that keeps `window` keys in every layer, or fewer if no layer sees that many."""
    from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

    # the same width for all layers: transformers derives the mask of every layer from the size of the first
    width = max(min_window(layer_window, window) or window for layer_window in adapter.windows)
    return Cache(layers=[DynamicSlidingWindowLayer(sliding_window=width) for _ in adapter.windows])


def is_our_own(error: Exception) -> bool:
    """Whether an error comes from the code of this library, not from a model's; or from a lack of memory."""
    if isinstance(error, BadInput):  # how we say that a model is not supported
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace is not None else ""
    return out_of_memory(error) or module.split(".")[0] == "fieldlens"


def supports_sliding_cache(adapter: HFAdapter, padded: bool = False) -> bool:
    """Whether the logits through a sliding cache equal those of a banded mask.

    They differ, for example, in models that compute biases from the whole text.
    """
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
                mask = {"attention_mask": mask_BT[:, :stop]} if padded else {}
                chunk_BT = ids_BT[:, start:stop]
                cached = adapter.model(input_ids=chunk_BT, past_key_values=cache, use_cache=True, **mask).logits[:, -1]
            banded = adapter.model(input_ids=ids_BT, use_cache=False, **mask).logits[:, -1]
    except UNSUPPORTED as error:
        if is_our_own(error):
            raise
        return False
    return close(cached, banded)


def cache_reset_length(adapter: HFAdapter, maximum: int) -> int | None:
    """Return the length, up to `maximum`, at which the model's `generate` discards our cache; None if it never does.

    Some models change their rotary positions there, and encode the whole text again into a cache that does not slide.
    """
    lengths = range(1, maximum + 1)
    first = bisect_left(lengths, True, key=lambda length: _discards_cache(adapter, length))
    return lengths[first] if first < maximum else None


def _discards_cache(adapter: HFAdapter, length: int) -> bool:
    cache, ids_BT = sliding_cache(adapter, 2), torch.zeros(1, length, dtype=torch.long, device=adapter.device)
    inputs = {"past_key_values": cache, "attention_mask": torch.ones_like(ids_BT), "use_cache": True}
    try:
        return adapter.model.prepare_inputs_for_generation(ids_BT, **inputs).get("past_key_values") is not cache
    except UNSUPPORTED as error:  # the model cannot be probed: the returned cache is checked after generation
        if is_our_own(error):
            raise
        return False


@torch.no_grad()
def stands_alone(adapter: HFAdapter, padded: bool, reencode: bool) -> bool:
    """Whether a row has the same logits in a batch, and after padding, as alone.

    Some recurrent models do not ignore padding.
    """
    tokens, padding = min(8, (adapter.limit or 9) - 1), 5 if padded else 0
    if tokens <= padding:
        return True
    ids_BT = adapter.noise(tokens)
    mask_BT = torch.ones_like(ids_BT)
    ids_BT[1, :padding] = mask_BT[1, :padding] = 0
    inputs = ((ids_BT, mask_BT), (ids_BT[1:, padding:], mask_BT[1:, padding:]))
    logits = []
    with _errors_as_bad_input(adapter.name), _default_generation_config(adapter.model), quiet_transformers(stderr=True):
        for ids, mask in inputs:
            options = {"use_cache": not reencode, "output_logits": True}
            output = _generate(adapter, ids, mask, Continuation(tokens=2), **options)
            logits.append(torch.cat(output.logits, 1)[-1])
    batched, alone = logits
    # half precision rounds differently in a row of another length; a row that reads padding is far off
    return close(batched, alone, slack=max(CLOSE, 8 * torch.finfo(adapter.dtype).eps))


def write(
    adapter: HFAdapter,
    ids_BT: Tensor,
    mask_BT: Tensor,
    continuation: Continuation,
    *,
    window: int | None,
    reencode: bool,
) -> int | None:
    """Continue each row, with a cache or by re-encoding the last tokens.

    Returns the size of the cache in bytes at the end, or None if it is unknown.
    """
    with (
        _errors_as_bad_input(adapter.name),
        _seeded(continuation.sampling.seed, adapter.device),
        _default_generation_config(adapter.model),
        quiet_transformers(stderr=True),
    ):
        if reencode:
            assert window is not None
            return _write_reencoding(adapter, ids_BT, mask_BT, continuation, window)
        cache = None if window is None else sliding_cache(adapter, window)  # None: the model's default cache
        if isinstance(adapter, ExtendedHFAdapter) and adapter.method.kept is not None:
            from fieldlens.extension.hf_sinks import sink_cache

            cache = sink_cache(len(adapter.windows), *adapter.method.kept)
        with sliding_window_masks(window):
            # some configurations disable the cache, and would then encode everything for each token
            options: dict[str, Any] = {"past_key_values": cache, "use_cache": True}
            if cache is not None and ids_BT.shape[1] > CHUNK:  # a mask of the whole prompt would be quadratic
                options["prefill_chunk_size"] = CHUNK
            output = _generate(adapter, ids_BT, mask_BT, continuation, **options)
        if cache is not None and output.past_key_values is not cache:
            raise BadInput(f"{adapter.name} replaced the sliding cache with its own, unbounded cache: {OTHER_MODES}")
    return bytes_held(output.past_key_values)


def _write_reencoding(
    adapter: HFAdapter, ids_BT: Tensor, mask_BT: Tensor, continuation: Continuation, window: int
) -> int:
    """Encode the last `window` tokens from the beginning for each new token."""
    single = replace(continuation, tokens=1, ends=frozenset())
    finished_B = torch.zeros(len(ids_BT), dtype=torch.bool, device=ids_BT.device)
    for _ in range(continuation.tokens):
        ids_BT, mask_BT = ids_BT[:, -window:], mask_BT[:, -window:]
        output = _generate(adapter, ids_BT, mask_BT, single, use_cache=False)
        ids_BT = output.sequences
        mask_BT = torch.cat([mask_BT, torch.ones_like(mask_BT[:, :1])], 1)
        ended = [token in continuation.ends for token in ids_BT[:, -1].tolist()]
        finished_B |= torch.tensor(ended, device=ids_BT.device)
        if bool(finished_B.all()):
            break
    return 0


def _generate(adapter: HFAdapter, ids_BT: Tensor, mask_BT: Tensor, continuation: Continuation, **options: Any) -> Any:
    sampling, ends = continuation.sampling, continuation.ends
    flags: dict[str, Any] = {"do_sample": False}
    if not sampling.greedy:
        flags = {
            "do_sample": True,
            "temperature": sampling.effective_temperature,
            "top_k": sampling.top_k or 0,
            "top_p": 1.0 if sampling.top_p is None else sampling.top_p,
        }
    return adapter.model.generate(
        ids_BT,
        logits_processor=_logits_processor(adapter.name, sampling.vocab_size),
        attention_mask=mask_BT,
        max_new_tokens=continuation.tokens,
        eos_token_id=sorted(ends) or None,
        pad_token_id=min(ends, default=0),
        return_dict_in_generate=True,
        streamer=_streamer(continuation.watch),
        **flags,
        **{name: value for name, value in options.items() if value is not None},
    )


def _logits_processor(name: str, vocab_size: int | None) -> Any:
    """Raise on NaN or inf logits, with which transformers would continue, and exclude ids beyond the tokenizer's."""
    from transformers import LogitsProcessor, LogitsProcessorList

    class Checked(LogitsProcessor):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            if bool((scores.isnan() | (scores == torch.inf)).any()):
                raise NonFiniteResult(f"{name} produced NaN or inf logits: no token can be sampled")
            if vocab_size is not None and vocab_size < scores.shape[-1]:
                excluded = torch.arange(vocab_size, scores.shape[-1], device=scores.device)
                scores = scores.index_fill(-1, excluded, -torch.inf)
            return scores

    return LogitsProcessorList([Checked()])


def _streamer(watch: TokenCallback) -> Any:
    from transformers.generation.streamers import BaseStreamer

    class Streamer(BaseStreamer):
        """Passes new tokens on; the first call has the prompt and is skipped."""

        prompt = True

        def put(self, value: Tensor) -> None:
            if not self.prompt:
                watch(value)
            self.prompt = False

        def end(self) -> None: ...

    return Streamer()


def _errors_as_bad_input(name: str) -> AbstractContextManager[None]:
    """Convert errors of a transformers model to one line: some have limits that their configuration does not state."""
    catch = (RuntimeError, ValueError, IndexError, TypeError, AttributeError)
    return reraise_as_bad_input(f"{name} failed to generate", catch, message_only)


@contextmanager
def _seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the global random state of torch, which transformers samples from, and restore it afterwards."""
    with torch.random.fork_rng([device] if device.type != "cpu" else [], device_type=device.type):
        torch.manual_seed(seed)
        yield


@contextmanager
def _default_generation_config(model: Any) -> Iterator[None]:
    """Ignore the model's generation_config: all options come from the caller."""
    from transformers import GenerationConfig

    saved, model.generation_config = model.generation_config, GenerationConfig()
    try:
        yield
    finally:
        model.generation_config = saved
