"""Attaching a method to a model, with proof: the identity gives the model's own logits, and the method changes them."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.extension.adapters import (
    CroppedAdapter,
    ExtendedDecoderAdapter,
    ExtendedHFAdapter,
    WindowedDecoderAdapter,
    WindowedHFAdapter,
    with_method,
)
from fieldlens.extension.base import ExtensionMethod, Region
from fieldlens.extension.decoder_attach import DecoderAttachment
from fieldlens.extension.discovery import build
from fieldlens.extension.hf_attach import PROBE_TOKENS, RegionAttachment, RotaryAttachment
from fieldlens.extension.hf_probe import Probe
from fieldlens.models.adapters.base import CLOSE, ModelAdapter, close
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.schemes.window import min_window

LONGEST_PROBE = 2048
"""Up to this many tokens, the effect of a method is checked at the length at which it starts."""

MARGIN = 32
"""Tokens past the start of a method at which its effect is checked."""

Attachment = RotaryAttachment | RegionAttachment | DecoderAttachment

FAILURES = (RuntimeError, ValueError, TypeError, AttributeError, KeyError, IndexError, NotImplementedError)
"""Errors of models that cannot be changed in this way."""


@contextmanager
def attached(adapter: ModelAdapter, method: ExtensionMethod, bos: int | None = None) -> Iterator[ModelAdapter]:
    """Context in which a model runs with a method; yields the adapter to use. The model is restored on exit.

    One method can be attached to a model at a time. `bos` is the token that texts may start with.
    """
    if method.crop is not None:
        yield CroppedAdapter(adapter, method, bos)
        return
    if not isinstance(adapter, HFAdapter | DecoderAdapter):
        raise BadInput(f"{method.name} needs a decoder of fieldlens or a transformers model, {adapter.name} is neither")
    if method.window is not None:
        adapter.check_window(method.window)
        windowed = with_method(adapter, method, (WindowedHFAdapter, WindowedDecoderAdapter))
        windowed.windows = tuple(min_window(own, method.window) for own in adapter.windows)
        windowed._croppable = {}
        yield windowed
        return
    if method.kept is not None and any(adapter.windows):
        raise BadInput(f"{adapter.name} has windows of its own: {method.name} needs full attention in every layer")
    attachment = _prove(adapter, method)
    with attachment.open():
        yield with_method(adapter, method, (ExtendedHFAdapter, ExtendedDecoderAdapter))


def configuration(adapter: ModelAdapter, method: ExtensionMethod) -> dict[str, object] | None:
    """What to put into a transformers model's config.json to get a method; None if transformers does not know it."""
    if not isinstance(adapter, HFAdapter) or method.rope_parameters({"rope_theta": 1e4}, 64) is None:
        return None
    attachment = RotaryAttachment(adapter, method)
    changes: dict[str, object] = {"rope_parameters": attachment.parameters}
    if not method.cached and attachment.positions != {method.train_length}:  # dynamic scaling starts there
        changes["max_position_embeddings"] = method.train_length
    return changes


def _prove(adapter: HFAdapter | DecoderAdapter, method: ExtensionMethod) -> Attachment:
    """The attachment of a method, after the identity and the method itself have been tried on random tokens."""
    try:
        return _checked(adapter, method)
    except BadInput:
        raise
    except FAILURES as error:
        message = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadInput(f"{method.name} cannot be attached to {adapter.name}: {message}") from error


def _checked(adapter: HFAdapter | DecoderAdapter, method: ExtensionMethod) -> Attachment:
    ids_BT = adapter.noise(PROBE_TOKENS)
    stock = _logits(adapter, ids_BT)
    identity, attachment, effect = _attachments(adapter, method)
    slack = max(CLOSE if adapter.dtype != torch.float64 else 1e-5, 8 * torch.finfo(adapter.dtype).eps)
    with identity.open():
        same = _logits(adapter, ids_BT)
    if not close(stock, same, slack):
        difference = float((stock - same).abs().max())
        raise BadInput(
            f"{method.name} cannot be attached to {adapter.name}: even with the original relative positions, the "
            f"replaced attention changes its logits by {difference:.1g}"
        )
    with effect.open():
        if close(stock, _logits(adapter, ids_BT), slack):
            raise BadInput(f"{method.name} has no effect on {adapter.name}: its layers ignore the change")
    if (tokens := method.starts + MARGIN) <= LONGEST_PROBE:
        ids_BT = adapter.noise(tokens)[:1]
        stock = _logits(adapter, ids_BT)
        with attachment.open():
            if bool((stock == _logits(adapter, ids_BT)).all()):
                raise BadInput(f"{method.name} has no effect on {adapter.name} at {tokens} tokens: change its options")
    return attachment


def _attachments(
    adapter: HFAdapter | DecoderAdapter, method: ExtensionMethod
) -> tuple[Attachment, Attachment, Attachment]:
    """The identity, the method, and a change that must show on a few tokens."""
    clipped = (
        Region(high=2),
        Region(low=2, a=lambda i: torch.full_like(i, 2), b=torch.zeros_like),
    )
    if isinstance(adapter, DecoderAdapter):
        attachment = DecoderAttachment.of(adapter.decoder, adapter.name, method)
        shown = clipped if attachment.rotates else (Region(high=2),)
        identity, effect = (
            DecoderAttachment(adapter.decoder, adapter.name, regions) for regions in ((Region(),), shown)
        )
        return identity, attachment, effect
    if adapter.stretch is not None:
        raise BadInput(f"{adapter.name} already changes its rotary frequencies with the length of the text: use crop")
    if method.rope_parameters({"rope_theta": 1e4}, 64) is not None:
        changed = RotaryAttachment(adapter, method)
        halved = RotaryAttachment(adapter, build("linear:factor=2", method.train_length))
        return RotaryAttachment(adapter, None), changed, halved
    rotations = Probe(adapter.model, adapter.name, adapter.noise(PROBE_TOKENS)).rotations()
    sinks = method.kept[0] if method.kept else 0
    parts = ((Region(),), method.regions(), clipped)
    first, second, third = (RegionAttachment(adapter, rotations, regions, sinks) for regions in parts)
    return first, second, third


@torch.no_grad()
def _logits(adapter: ModelAdapter, ids_BT: Tensor) -> Tensor:
    tokens = ids_BT.shape[1]
    keep = tokens if tokens <= PROBE_TOKENS else 1
    return torch.cat(list(adapter.logits(ids_BT, keep, None, 0)), 1).double()
