"""Finds out how a transformers model rotates its queries and keys, layer by layer, from its own computation.

One pass records what every layer hands to its attention function. A second pass repeats it with cosine 1 and sine 0,
and hands every layer the recorded attention output, so that its inputs are the same: its queries and keys are then
unrotated. A layer is understood if a rotation leads from the second to the first.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput

NAME = "fieldlens_extension"
"""The name of our attention function in the registries of transformers."""

MATCH = 1e-4
"""Tolerance between two computations of the same queries, relative to the largest."""

AttentionFunction = Callable[..., tuple[Tensor, None]]
OWNERS: dict[nn.Module, AttentionFunction] = {}
"""The attention function of every module of the models that a method is attached to at present."""


@dataclass(frozen=True)
class Rotation:
    """How a layer rotates: `width` dimensions from `offset` on, in pairs, with the frequencies of one rotary call."""

    call: tuple[Any, ...]
    offset: int
    width: int
    interleaved: bool
    """Whether the pairs are (2j, 2j + 1); else (j, j + width/2)."""
    repeated: bool
    """Whether the table lists each frequency twice in a row; else all of them, twice over."""

    def apply(self, x_BHTK: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Rotate queries or keys by a table of the rotary module, (B or 1, T, width)."""
        half = self.width // 2
        pick = slice(None, None, 2) if self.repeated else slice(0, half)
        cos, sin = cos[:, None, :, pick], sin[:, None, :, pick]
        part = x_BHTK[..., self.offset : self.offset + self.width]
        pairs = part.unflatten(-1, (half, 2)) if self.interleaved else part.unflatten(-1, (2, half)).transpose(-1, -2)
        left, right = pairs.unbind(-1)
        turned = torch.stack([left * cos - right * sin, right * cos + left * sin], -1 if self.interleaved else -2)
        parts = [x_BHTK[..., : self.offset], turned.flatten(-2), x_BHTK[..., self.offset + self.width :]]
        return torch.cat(parts, -1) if self.width < x_BHTK.shape[-1] else parts[1]


@dataclass
class RotaryCall:
    """The latest call of a rotary module in a forward pass, and how to repeat it at other positions."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    positions: Tensor
    output: tuple[Tensor, Tensor]

    def tables(self, positions: Tensor, module: nn.Module | None = None) -> tuple[Tensor, Tensor]:
        """Cosines and sines at these positions, by this module or another of the same class."""
        args = [positions if value is self.positions else value for value in self.args]
        kwargs = {key: positions if value is self.positions else value for key, value in self.kwargs.items()}
        return (module or self.module).forward(*args, **kwargs)  # not __call__: without our hook

    @property
    def key(self) -> tuple[Any, ...]:
        """What tells the calls of one forward pass apart: the module, and arguments such as the layer type."""
        plain = [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, str | int)]
        return (id(self.module), *plain)


def rotary_call(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> RotaryCall | None:
    """The call as that of a rotary module; None if its output is not a table of cosines and sines by position."""
    if not (isinstance(output, tuple) and len(output) == 2 and all(isinstance(part, Tensor) for part in output)):
        return None
    cos, sin = output
    integers = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor) and not v.is_floating_point()]
    if cos.shape != sin.shape or not cos.is_floating_point() or len(integers) != 1 or integers[0].ndim != 2:
        return None
    radius = (cos.double() ** 2 + sin.double() ** 2).flatten()
    if not radius.numel() or float(radius.max() - radius.min()) > 1e-2 * float(radius.max()):
        return None
    return RotaryCall(module, args, kwargs, integers[0], (cos, sin))


@contextmanager
def hooked(modules: Any, hook: Callable[..., Any]) -> Iterator[None]:
    """Context in which a forward hook with keyword arguments is set on modules."""
    with ExitStack() as stack:
        for module in modules:
            stack.callback(module.register_forward_hook(hook, with_kwargs=True).remove)
        yield


@contextmanager
def attention_function(model: Any, function: AttentionFunction) -> Iterator[None]:
    """Context in which the attention layers of a model call this function; the implementation is restored."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import sdpa_mask

    AttentionInterface.register(NAME, _dispatch)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # without it every layer would get no mask, silently
    configs = list({id(m.config): m.config for m in model.modules() if hasattr(m, "config")}.values())
    before = [(config, getattr(config, "_attn_implementation_internal", None)) for config in configs]
    modules = list(model.modules())
    OWNERS.update(dict.fromkeys(modules, function))
    try:
        model.set_attn_implementation(NAME)
        yield
    finally:
        for config, implementation in before:
            config._attn_implementation_internal = implementation
        for module in modules:
            OWNERS.pop(module, None)


def _dispatch(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return OWNERS.get(module, sdpa_attention_forward)(module, *args, **kwargs)


class Probe:
    """What one model's layers do: the rotation of each attention module, None for a layer without rotation."""

    def __init__(self, model: Any, name: str, ids_BT: Tensor) -> None:
        self.model, self.name, self.ids_BT = model, name, ids_BT
        self.calls: dict[tuple[Any, ...], RotaryCall] = {}
        self.recorded: list[tuple[nn.Module, Tensor, Tensor, tuple[Tensor, None]]] = []

    def rotary_calls(self) -> dict[tuple[Any, ...], RotaryCall]:
        """The calls of rotary modules in a forward pass. BadInput if there are none."""
        leaves = [m for m in self.model.modules() if not any(True for _ in m.children()) and not list(m.parameters())]
        with hooked(leaves, self._note_rotary):
            self._forward()
        if not self.calls:
            raise BadInput(f"{self.name} has no rotary module that maps positions to cosines and sines")
        return self.calls

    def rotations(self) -> dict[nn.Module, Rotation | None]:
        """The rotation of every attention module. BadInput if there is none, or if a layer is not understood."""
        with attention_function(self.model, self._record):
            self.rotary_calls()
        if not self.recorded:
            raise BadInput(f"{self.name} does not use the attention registry of transformers")
        unrotated: list[tuple[nn.Module, Tensor, Tensor]] = []

        def replay(module: nn.Module, q: Tensor, k: Tensor, *_: Any, **__: Any) -> tuple[Tensor, None]:
            unrotated.append((module, q, k))
            return self.recorded[len(unrotated) - 1][3]

        rotary = {id(call.module): call.module for call in self.calls.values()}.values()
        with hooked(rotary, neutral), attention_function(self.model, replay):
            self._forward()
        return self._match(unrotated)

    def _forward(self) -> None:
        with torch.no_grad():
            self.model(input_ids=self.ids_BT, use_cache=False)

    def _note_rotary(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        call = rotary_call(module, args, kwargs, output)
        if call is not None:
            self.calls[call.key] = call

    def _record(self, module: nn.Module, q: Tensor, k: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, None]:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        output = sdpa_attention_forward(module, q, k, *args, **kwargs)
        self.recorded.append((module, q, k, output))
        return output

    def _match(self, unrotated: list[tuple[nn.Module, Tensor, Tensor]]) -> dict[nn.Module, Rotation | None]:
        rotations: dict[nn.Module, Rotation | None] = {}
        for number, ((module, q, k, _), (_, raw_q, raw_k)) in enumerate(zip(self.recorded, unrotated, strict=True)):
            rotation = self._rotation(number, (q, k), (raw_q, raw_k))
            if rotations.setdefault(module, rotation) != rotation:
                raise BadInput(f"{self.name}: attention layer {number} rotates differently each time it runs")
        if not any(rotations.values()):
            raise BadInput(f"{self.name} does not rotate its queries and keys in any layer")
        return rotations

    def _rotation(self, number: int, seen: tuple[Tensor, Tensor], raw: tuple[Tensor, Tensor]) -> Rotation | None:
        """The rotation from raw to seen queries and keys of one layer, by trial; None if they are equal."""
        if all(map(_equal, seen, raw)):
            return None
        for key, call in self.calls.items():
            width, head = call.output[0].shape[-1], raw[0].shape[-1]
            offsets = dict.fromkeys((0, head - width)) if width <= head and width % 2 == 0 else {}
            for offset, interleaved, repeated in product(offsets, (False, True), (False, True)):
                rotation = Rotation(key, offset, width, interleaved, repeated)
                if all(_equal(x, rotation.apply(y, *call.output)) for x, y in zip(seen, raw, strict=True)):
                    return rotation
        raise BadInput(
            f"{self.name}: attention layer {number} changes its queries and keys by something other than a rotation "
            "of half-split or interleaved pairs"
        )


def neutral(module: nn.Module, args: Any, kwargs: Any, output: Any) -> tuple[Tensor, Tensor]:
    """A hook that makes a rotary module rotate by nothing."""
    cos, sin = output
    return torch.ones_like(cos), torch.zeros_like(sin)


def _equal(a: Tensor, b: Tensor) -> bool:
    tolerance = max(MATCH, 4 * torch.finfo(a.dtype).eps)
    return bool((a - b).abs().max() <= tolerance * a.abs().max().clamp(min=1e-30))
