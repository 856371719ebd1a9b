"""Attaches a method to a transformers model: unrotated keys in the cache, rotation inside the attention function.

Nothing depends on the name of an architecture, and no weight or configuration of the model is changed for good: hooks
and an attention function are set, and removed on exit.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fieldlens.core.errors import BadInput
from fieldlens.extension.attention import RegionInputs, Visibility, attend
from fieldlens.extension.base import ExtensionMethod, Region
from fieldlens.extension.hf_probe import Probe, RotaryCall, Rotation, attention_function, hooked, neutral, rotary_call
from fieldlens.extension.rope import changed_rotary
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.models.hf_compat import reset_dynamic_rope

PROBE_TOKENS = 12


class RotaryAttachment:
    """Another set of rotary frequencies: the rotary modules return the tables of modules with changed parameters."""

    def __init__(self, adapter: HFAdapter, method: ExtensionMethod | None) -> None:
        self.adapter, self.parameters = adapter, dict[str, Any]()
        self.positions: set[int | None] = set()
        """`max_position_embeddings` of the model's own rotary modules."""
        probe = Probe(adapter.model, adapter.name, adapter.noise(PROBE_TOKENS))
        self.changed: dict[nn.Module, Any] = {}
        for call in probe.rotary_calls().values():
            if not hasattr(getattr(call.module, "config", None), "rope_parameters"):
                raise BadInput(f"{adapter.name}: its rotary module takes no rope_parameters of transformers")
            if call.module not in self.changed:
                try:
                    changed = changed_rotary(call.module, method, call.output[0].shape[-1])
                except (TypeError, KeyError, AttributeError) as error:
                    raise BadInput(f"{adapter.name}: its rotary module cannot be rebuilt ({error})") from error
                self.changed[call.module] = changed
                self.parameters = changed.config.rope_parameters
                self.positions.add(getattr(call.module.config, "max_position_embeddings", None))

    @contextmanager
    def open(self) -> Iterator[None]:
        """Context in which the model has the changed frequencies."""
        with hooked(self.changed, self._swap):
            yield

    def _swap(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> tuple[Tensor, Tensor] | None:
        call = rotary_call(module, args, kwargs, output)
        if call is None:
            return None
        changed = self.changed[module]
        reset_dynamic_rope(changed)
        return call.tables(call.positions, changed)


class RegionAttachment:
    """Other distances and masks: rotary modules rotate by nothing, and the attention function rotates by region."""

    def __init__(
        self, adapter: HFAdapter, rotations: dict[nn.Module, Rotation | None], regions: tuple[Region, ...], sinks: int
    ) -> None:
        self.adapter, self.rotations, self.regions, self.sinks = adapter, rotations, regions, sinks
        self.calls: dict[tuple[Any, ...], RotaryCall] = {}
        self.tables: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}
        """Cosines and sines of the present forward pass, shared by its layers."""
        self.positions = torch.zeros(1, 1, dtype=torch.long)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Context in which the method is attached."""
        keys = {rotation.call[0] for rotation in self.rotations.values() if rotation}
        modules = [module for module in self.adapter.model.modules() if id(module) in keys]
        with ExitStack() as stack:
            stack.enter_context(hooked(modules, self._neutralise))
            stack.enter_context(attention_function(self.adapter.model, self._attention))
            yield

    def _neutralise(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> tuple[Tensor, Tensor]:
        call = rotary_call(module, args, kwargs, output)
        if call is None:
            raise BadInput(f"{self.adapter.name}: an extension method needs 2-D position ids")
        self.calls[call.key], self.positions = call, call.positions
        self.tables.clear()
        return neutral(module, args, kwargs, output)

    def _attention(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """The attention function that transformers calls: unrotated queries and keys in, (B, T, H, V) out."""
        groups = query.shape[1] // key.shape[1]

        def per_query_head(x: Tensor) -> Tensor:
            return x.repeat_interleave(groups, 1) if groups > 1 else x

        rotation = self.rotations[module]
        q_positions = self.positions[:, -query.shape[2] :]
        k_positions = self._key_positions(key.shape[2])
        inputs = []
        for number, region in enumerate(self.regions):
            q, k = query, key
            if rotation is not None:
                q = rotation.apply(q, *self._tables(rotation, ("q", number, q.shape[2]), region.a(q_positions)))
                k = rotation.apply(k, *self._tables(rotation, ("k", number, k.shape[2]), region.b(k_positions)))
            inputs.append(RegionInputs(region, q, per_query_head(k)))
        mask = _as_bool(attention_mask, key.shape[2])
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        output_BHTV = attend(inputs, per_query_head(value), Visibility(q_positions, k_positions, mask), scale)
        return output_BHTV.transpose(1, 2).contiguous(), None

    def _tables(self, rotation: Rotation, name: tuple[Any, ...], positions: Tensor) -> tuple[Tensor, Tensor]:
        key = (rotation.call, *name)
        if key not in self.tables:
            self.tables[key] = self.calls[rotation.call].tables(positions)
        return self.tables[key]

    def _key_positions(self, keys: int) -> Tensor:
        """Positions of the keys: the last tokens, in front of them the first ones if the cache has dropped others."""
        last_B1 = self.positions[:, -1:]
        longest = int(last_B1.max()) + 1
        if keys > longest:
            raise BadInput(f"{self.adapter.name}: an extension method needs a cache without unused slots")
        positions_BS = last_B1 - (keys - 1) + torch.arange(keys, device=last_B1.device)
        if self.sinks and keys < longest:
            first_S = torch.arange(self.sinks, device=last_B1.device).expand(len(last_B1), -1)
            positions_BS = torch.cat([first_S, positions_BS[:, self.sinks :]], 1)
        return positions_BS


def _as_bool(mask: Tensor | None, keys: int) -> Tensor | None:
    """The mask of a model as booleans."""
    if mask is None:
        return None
    return mask[..., :keys] if mask.dtype == torch.bool else mask[..., :keys] >= 0
