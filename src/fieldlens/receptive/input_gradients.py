"""Influence: how strongly each input token moves a model's prediction, by the gradient at the input embeddings.

One seam for every model: the output of the embedding layer is replaced by a leaf of the graph. Weights need no
gradients, only the last row of logits is asked for, and activations are computed again in backward where they would not
fit into memory.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from fieldlens.core.errors import BadInput
from fieldlens.models.adapters.base import ModelAdapter, close
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.models.adapters.hf import HFAdapter
from fieldlens.receptive.last_query import LastQuery, last_query

Target = Literal["log-likelihood", "top-logit"]
"""What is differentiated: log p of the true next token, or the largest logit."""

GRAIN = 64
"""A gradient whose first-order effect is below so many rounding errors of the logits is round-off."""


class EmbeddingHook:
    """A subject opened at its embeddings: `norms` tells what the gradient is at each of them."""

    def __init__(self, adapter: ModelAdapter, checkpointing: bool = False, shortcut: bool = False) -> None:
        self.adapter, self.checkpointing, self.shortcut = adapter, checkpointing, shortcut
        self.module, self.embedding = _parts(adapter)
        self.its_layers = layers_of(adapter)
        """Its layers, bottom up."""
        self.reason = ""
        """Why the last gradient that was undefined was so."""
        self.besides = False
        """Whether tokens also come in elsewhere, past the embeddings: shares know nothing of that."""

    def norms(self, ids_BT: Tensor, target: Target = "log-likelihood", window: int | None = None) -> Tensor:
        """‖∂ target / ∂ embedding‖ of each context token; ids are context and then the true next token: (B, T) float64.

        A row is nan where the gradient is not finite, or zero or no more than round-off.
        """
        inputs_BT, truth_B = ids_BT[:, :-1].to(self.adapter.device), ids_BT[:, -1].to(self.adapter.device)
        with self.open() as leaf, torch.enable_grad():
            (logits_BtV,) = self.adapter.logits(inputs_BT, 1, window, 0)
            wide_BV = logits_BtV[:, -1].to(torch.promote_types(logits_BtV.dtype, torch.float32))
            if target == "log-likelihood":
                scalar = wide_BV.log_softmax(1).gather(1, truth_B[:, None]).sum()
            else:
                scalar = wide_BV.max(1).values.sum()
            gradient_BTD = _gradient(scalar, leaf())
        return self._norms(gradient_BTD, leaf(), wide_BV.detach())

    def layers(self, ids_BT: Tensor, window: int | None = None, chosen: Sequence[int] | None = None) -> Tensor:
        """The same for the output of each layer, or of those chosen, along a random direction: (R, B, T) float64."""
        inputs_BT = ids_BT[:, :-1].to(self.adapter.device)
        found = []
        with self.open() as leaf, layer_outputs(self.its_layers) as outputs, torch.enable_grad():
            for _ in self.adapter.logits(inputs_BT, 1, window, 0):
                pass
            chance = torch.Generator().manual_seed(0)
            wanted = list(range(len(outputs)) if chosen is None else chosen)
            for number in wanted:
                last_BD = outputs[number][1][:, -1]
                direction_D = torch.randn(last_BD.shape[-1], generator=chance).to(last_BD)
                gradient_BTD = _gradient((last_BD @ direction_D).sum(), leaf(), keep=number != wanted[-1])
                found.append(self._norms(gradient_BTD, leaf(), last_BD.detach()))
        return torch.stack(found)

    @contextmanager
    def open(self) -> Iterator[Callable[[], Tensor]]:
        """While this holds, the embeddings of the next forward are a leaf that gradients stop at."""
        leaves: list[Tensor] = []

        def cut(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
            leaf = output.detach().requires_grad_()
            leaves.append(leaf)
            return leaf.clone()  # some models scale what they are given in place

        def leaf() -> Tensor:
            if len(leaves) != 1:
                raise BadInput(f"{self.adapter.name} looks its tokens up {len(leaves)} times: once is wanted")
            return leaves[0]

        with ExitStack() as stack:
            stack.enter_context(frozen(self.module))
            if self.checkpointing:
                stack.enter_context(recomputing(self.adapter, self.its_layers, self.shortcut))
            if self.shortcut:
                stack.enter_context(last_query(self.its_layers[-1]))
            handle = self.embedding.register_forward_hook(cut)
            stack.callback(handle.remove)
            yield leaf

    def _norms(self, gradient_BTD: Tensor, leaf_BTD: Tensor, outcome_BV: Tensor) -> Tensor:
        # In float64: the squares of what is below 1e-19 are zero in float32, and a window's edge is that small.
        norms_BT, sizes_BT = (
            torch.linalg.vector_norm(x_BTD.detach().cpu(), dim=-1, dtype=torch.float64)
            for x_BTD in (gradient_BTD, leaf_BTD)
        )
        effect_B = (norms_BT * sizes_BT).sum(1)
        grain_B = GRAIN * torch.finfo(self.adapter.dtype).eps * outcome_BV.abs().amax(1).double().cpu().clamp(min=1e-3)
        finite_B, large_B = torch.isfinite(norms_BT).all(1), effect_B > grain_B
        defined_B = finite_B & large_B
        if not finite_B.all():
            self.reason = "the gradient is not finite: the model computes something that is no number"
        elif not large_B.all():
            self.reason = "the gradient is zero or no more than round-off: the prediction does not depend on the text"
        return norms_BT.where(defined_B[:, None], torch.nan)

    def check(self) -> None:
        """The seam must not change what the model says."""
        ids_BT = self.adapter.noise(min(8, self.adapter.limit or 8))[:1]
        with torch.no_grad():
            plain = next(self.adapter.logits(ids_BT, 1, None, 0)).double()
        with self.open() as leaf, torch.enable_grad():
            cut = next(self.adapter.logits(ids_BT, 1, None, 0)).double()
            if not cut.requires_grad:
                raise BadInput(f"{self.adapter.name} cannot be measured: its logits do not depend on its embeddings")
            embedded = leaf().detach()
        handle = self.embedding.register_forward_hook(lambda *_: embedded.clone())
        try:
            with torch.no_grad():
                others = (ids_BT + 1) % self.adapter.vocab_size
                self.besides = not close(plain, next(self.adapter.logits(others, 1, None, 0)).double())
        finally:
            handle.remove()
        if not close(plain, cut):
            raise BadInput(f"{self.adapter.name} cannot be measured: opened at its embeddings it predicts otherwise")


def embedding_hook(adapter: ModelAdapter, checkpointing: bool = False) -> EmbeddingHook:
    """A subject opened at its embeddings, after a look that this changes nothing; without what changes something."""
    found = EmbeddingHook(adapter, checkpointing and can_recompute(adapter), can_shortcut(adapter))
    found.check()
    return found


def can_recompute(adapter: ModelAdapter) -> bool:
    """Whether activations can be computed again, to the same logits."""
    return bool(layers_of(adapter)) and _unchanged(EmbeddingHook(adapter, checkpointing=True))


def can_shortcut(adapter: ModelAdapter) -> bool:
    """Whether the top layer of a transformers model can attend from its last position alone, to the same logits."""
    return (
        isinstance(adapter, HFAdapter)
        and bool(layers_of(adapter))
        and _unchanged(EmbeddingHook(adapter, shortcut=True))
    )


def _unchanged(opened: EmbeddingHook) -> bool:
    try:
        opened.check()
    except (RuntimeError, BadInput):
        return False
    return True


def layers_of(adapter: ModelAdapter) -> list[nn.Module]:
    """The layers of a model, bottom up; none where they cannot be told."""
    if isinstance(adapter, DecoderAdapter):
        return list(adapter.decoder.blocks)
    if isinstance(adapter, HFAdapter):
        from transformers.modeling_layers import GradientCheckpointingLayer

        found = [module for module in adapter.model.modules() if isinstance(module, GradientCheckpointingLayer)]
        return _run_once(adapter, found)
    return []


def _run_once(adapter: ModelAdapter, found: list[nn.Module]) -> list[nn.Module]:
    """Of some layers those that a text runs through, once, as states (B, T, D): not those of an eye or an ear."""
    ids_BT = torch.zeros(1, min(8, adapter.limit or 8), dtype=torch.long, device=adapter.device)
    with layer_outputs(found) as outputs, torch.no_grad():
        for _ in adapter.logits(ids_BT, 1, None, 0):
            pass
    ran = [layer for layer, states in outputs if getattr(states, "ndim", 0) == 3]
    return [layer for layer in found if ran.count(layer) == 1]


@contextmanager
def layer_outputs(layers: Sequence[nn.Module]) -> Iterator[list[tuple[nn.Module, Any]]]:
    """What these layers give in the next forward, in the order in which they run."""
    outputs: list[tuple[nn.Module, Any]] = []

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        outputs.append((module, output[0] if isinstance(output, tuple) else output))

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(keep).remove)
        yield outputs


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """While this holds, no weight asks for a gradient."""
    asked = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in asked:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in asked:
            parameter.requires_grad_(True)


@contextmanager
def recomputing(adapter: ModelAdapter, layers: Sequence[nn.Module], shortcut: bool = False) -> Iterator[None]:
    """While this holds, each layer keeps only its input and is computed again in backward; the top one as it was."""
    if isinstance(adapter, DecoderAdapter):
        before, adapter.decoder.checkpointing = adapter.decoder.checkpointing, True
        try:
            yield
        finally:
            adapter.decoder.checkpointing = before
        return
    # transformers recomputes only layers in training mode: these modules alone are put there, with their dropout off
    with ExitStack() as stack:
        for layer in layers:
            again = functools.partial(checkpoint, use_reentrant=False)
            if shortcut and layer is layers[-1]:  # hooks of a layer may stay outside of what is computed again
                again = functools.partial(again, context_fn=lambda: (nullcontext(), LastQuery()))
            changes = {"training": True, "gradient_checkpointing": True, "_gradient_checkpointing_func": again}
            changes |= {name: 0.0 for name, value in vars(layer).items() if "drop" in name and isinstance(value, float)}
            stack.callback(vars(layer).update, {name: vars(layer)[name] for name in changes if name in vars(layer)})
            for name in changes:
                if name not in vars(layer):
                    stack.callback(vars(layer).pop, name)
            vars(layer).update(changes)
        yield


def _gradient(scalar: Tensor, leaf: Tensor, keep: bool = False) -> Tensor:
    if not scalar.requires_grad:
        return torch.zeros_like(leaf)
    (found,) = torch.autograd.grad(scalar, leaf, retain_graph=keep, allow_unused=True)
    return torch.zeros_like(leaf) if found is None else found


def _parts(adapter: ModelAdapter) -> tuple[nn.Module, nn.Module]:
    if isinstance(adapter, DecoderAdapter):
        return adapter.decoder, adapter.decoder.embedding
    if isinstance(adapter, HFAdapter):
        return adapter.model, adapter.model.get_input_embeddings()
    function = getattr(adapter, "function", None)
    embedding = getattr(function, "embedding", None)
    if isinstance(function, nn.Module) and isinstance(embedding, nn.Module):
        return function, embedding
    raise BadInput(
        f"{adapter.name} cannot be measured: a model needs a module named embedding that looks its tokens up"
    )
