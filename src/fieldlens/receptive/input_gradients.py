"""Gradients at the input embeddings: how strongly each input token influences the prediction of a model.

One method for every model: a forward hook replaces the output of the embedding layer by a leaf tensor. Weights do not
require gradients, only the last row of logits is computed, and activations can be recomputed in the backward pass to
save memory.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import product
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
"""The scalar to differentiate: log p of the true next token, or the largest logit."""

ROUNDING = 64
"""A gradient whose first-order effect is below this many rounding errors of the logits is undefined."""


class EmbeddingHook:
    """Computes gradients at the output of a model's embedding layer."""

    def __init__(
        self,
        adapter: ModelAdapter,
        checkpointing: bool = False,
        shortcut: bool = False,
        layers: list[nn.Module] | None = None,
    ) -> None:
        self.adapter, self.checkpointing, self.shortcut = adapter, checkpointing, shortcut
        self.module, self.embedding = _module_and_embedding(adapter)
        self.layer_modules = layers_of(adapter) if layers is None else layers
        """The layers of the model, bottom up."""
        self.reason = ""
        """Why the most recent undefined gradient is undefined."""
        self.has_other_inputs = False
        """Whether token ids also enter the model elsewhere; gradients do not include that path."""

    def norms(self, ids_BT: Tensor, target: Target = "log-likelihood", window: int | None = None) -> Tensor:
        """‖∂ target / ∂ embedding‖ of each context token: (B, T) float64.

        `ids_BT` holds the context and then the true next token. A row is NaN if its gradient is not finite, zero or
        below rounding error.
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
        """Gradient norms of the outputs of layers (all, or `chosen`) along a random direction: (R, B, T) float64."""
        inputs_BT = ids_BT[:, :-1].to(self.adapter.device)
        norms = []
        with self.open() as leaf, layer_outputs(self.layer_modules) as outputs, torch.enable_grad():
            for _ in self.adapter.logits(inputs_BT, 1, window, 0):
                pass
            generator = torch.Generator().manual_seed(0)
            numbers = list(range(len(outputs)) if chosen is None else chosen)
            for number in numbers:
                last_BD = outputs[number][1][:, -1]
                direction_D = torch.randn(last_BD.shape[-1], generator=generator).to(last_BD)
                gradient_BTD = _gradient((last_BD @ direction_D).sum(), leaf(), keep=number != numbers[-1])
                norms.append(self._norms(gradient_BTD, leaf(), last_BD.detach()))
        return torch.stack(norms)

    @contextmanager
    def open(self) -> Iterator[Callable[[], Tensor]]:
        """Context in which the embeddings of the next forward pass are a leaf tensor; yields a function to get it."""
        leaves: list[Tensor] = []

        def cut(module: nn.Module, arguments: Any, output: Tensor) -> Tensor:
            leaf = output.detach().requires_grad_()
            leaves.append(leaf)
            return leaf.clone()  # some models scale embeddings in place

        def leaf() -> Tensor:
            if len(leaves) != 1:
                raise BadInput(f"{self.adapter.name} calls its embedding layer {len(leaves)} times, expected once")
            return leaves[0]

        with ExitStack() as stack:
            stack.enter_context(frozen(self.module))
            if self.checkpointing:
                stack.enter_context(recomputing(self.adapter, self.layer_modules, self.shortcut))
            if self.shortcut:
                stack.enter_context(last_query(self.layer_modules[-1]))
            handle = self.embedding.register_forward_hook(cut)
            stack.callback(handle.remove)
            yield leaf

    def _norms(self, gradient_BTD: Tensor, leaf_BTD: Tensor, output_BV: Tensor) -> Tensor:
        """Norms over the width, NaN in rows where the gradient is undefined."""
        # float64: squares of values below 1e-19 underflow in float32, and gradients at a window's edge are that small
        norms_BT, sizes_BT = (
            torch.linalg.vector_norm(x_BTD.detach().cpu(), dim=-1, dtype=torch.float64)
            for x_BTD in (gradient_BTD, leaf_BTD)
        )
        effect_B = (norms_BT * sizes_BT).sum(1)
        rounding_B = (
            ROUNDING * torch.finfo(self.adapter.dtype).eps * output_BV.abs().amax(1).double().cpu().clamp(min=1e-3)
        )
        finite_B, large_B = torch.isfinite(norms_BT).all(1), effect_B > rounding_B
        defined_B = finite_B & large_B
        if not finite_B.all():
            self.reason = "the gradient is not finite: the model produced NaN or inf"
        elif not large_B.all():
            self.reason = "the gradient is zero or below rounding error: the prediction does not depend on the text"
        return norms_BT.where(defined_B[:, None], torch.nan)

    def check(self) -> None:
        """Raise BadInput if the hook changes the logits; detect other inputs of token ids."""
        ids_BT = self.adapter.noise(min(8, self.adapter.limit or 8))[:1]
        with torch.no_grad():
            plain = next(self.adapter.logits(ids_BT, 1, None, 0)).double()
        with self.open() as leaf, torch.enable_grad():
            hooked = next(self.adapter.logits(ids_BT, 1, None, 0)).double()
            if not hooked.requires_grad:
                raise BadInput(f"{self.adapter.name} cannot be measured: its logits do not depend on its embeddings")
            embedded = leaf().detach()
        handle = self.embedding.register_forward_hook(lambda *_: embedded.clone())
        try:
            with torch.no_grad():
                other_ids_BT = (ids_BT + 1) % self.adapter.vocab_size
                other = next(self.adapter.logits(other_ids_BT, 1, None, 0)).double()
                self.has_other_inputs = not close(plain, other)
        finally:
            handle.remove()
        if not close(plain, hooked):
            raise BadInput(f"{self.adapter.name} cannot be measured: a hook on its embeddings changes its logits")


def embedding_hook(adapter: ModelAdapter, checkpointing: bool = False) -> EmbeddingHook:
    """A checked EmbeddingHook; checkpointing and the last-query shortcut are used only if they do not change logits."""
    layers = layers_of(adapter)
    recompute = (True, False) if checkpointing and layers else (False,)
    shortcut = (True, False) if isinstance(adapter, HFAdapter) and layers else (False,)
    *faster, plain = (EmbeddingHook(adapter, *settings, layers) for settings in product(recompute, shortcut))
    for hook in faster:
        if _passes_check(hook):
            return hook
    plain.check()
    return plain


def _passes_check(hook: EmbeddingHook) -> bool:
    try:
        hook.check()
    except (RuntimeError, BadInput):
        return False
    return True


def layers_of(adapter: ModelAdapter) -> list[nn.Module]:
    """The layers of a model, bottom up; empty if they cannot be identified."""
    if isinstance(adapter, DecoderAdapter):
        return list(adapter.decoder.blocks)
    if isinstance(adapter, HFAdapter):
        from transformers.modeling_layers import GradientCheckpointingLayer

        candidates = [module for module in adapter.model.modules() if isinstance(module, GradientCheckpointingLayer)]
        return _run_once(adapter, candidates)
    return []


def _run_once(adapter: ModelAdapter, candidates: list[nn.Module]) -> list[nn.Module]:
    """The candidates that run exactly once on text, with outputs (B, T, D); excludes vision and audio encoders."""
    ids_BT = torch.zeros(1, min(8, adapter.limit or 8), dtype=torch.long, device=adapter.device)
    with layer_outputs(candidates) as outputs, torch.no_grad():
        for _ in adapter.logits(ids_BT, 1, None, 0):
            pass
    ran = [layer for layer, states in outputs if getattr(states, "ndim", 0) == 3]
    return [layer for layer in candidates if ran.count(layer) == 1]


@contextmanager
def layer_outputs(layers: Sequence[nn.Module]) -> Iterator[list[tuple[nn.Module, Any]]]:
    """Context that collects (layer, output) of the next forward pass, in the order in which layers run."""
    outputs: list[tuple[nn.Module, Any]] = []

    def keep(module: nn.Module, arguments: Any, output: Any) -> None:
        outputs.append((module, output[0] if isinstance(output, tuple) else output))

    with ExitStack() as stack:
        for layer in layers:
            stack.callback(layer.register_forward_hook(keep).remove)
        yield outputs


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Context in which no parameter requires a gradient."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    for parameter in trainable:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trainable:
            parameter.requires_grad_(True)


@contextmanager
def recomputing(adapter: ModelAdapter, layers: Sequence[nn.Module], shortcut: bool = False) -> Iterator[None]:
    """Context with gradient checkpointing: each layer keeps only its input and is recomputed in the backward pass."""
    if isinstance(adapter, DecoderAdapter):
        before, adapter.decoder.checkpointing = adapter.decoder.checkpointing, True
        try:
            yield
        finally:
            adapter.decoder.checkpointing = before
        return
    # transformers checkpoints only layers in training mode: set it on these modules only, with dropout 0
    with ExitStack() as stack:
        for layer in layers:
            recompute = functools.partial(checkpoint, use_reentrant=False)
            if shortcut and layer is layers[-1]:  # the recomputation may not run the hooks of the layer
                recompute = functools.partial(recompute, context_fn=lambda: (nullcontext(), LastQuery()))
            changes = {"training": True, "gradient_checkpointing": True, "_gradient_checkpointing_func": recompute}
            changes |= {name: 0.0 for name, value in vars(layer).items() if "drop" in name and isinstance(value, float)}
            stack.callback(vars(layer).update, {name: vars(layer)[name] for name in changes if name in vars(layer)})
            for name in changes:
                if name not in vars(layer):
                    stack.callback(vars(layer).pop, name)
            vars(layer).update(changes)
        yield


def _gradient(scalar: Tensor, leaf: Tensor, keep: bool = False) -> Tensor:
    """∂ scalar / ∂ leaf, zero if there is no dependence; `keep` retains the graph."""
    if not scalar.requires_grad:
        return torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(scalar, leaf, retain_graph=keep, allow_unused=True)
    return torch.zeros_like(leaf) if gradient is None else gradient


def _module_and_embedding(adapter: ModelAdapter) -> tuple[nn.Module, nn.Module]:
    if isinstance(adapter, DecoderAdapter):
        return adapter.decoder, adapter.decoder.embedding
    if isinstance(adapter, HFAdapter):
        return adapter.model, adapter.model.get_input_embeddings()
    function = getattr(adapter, "function", None)
    embedding = getattr(function, "embedding", None)
    if isinstance(function, nn.Module) and isinstance(embedding, nn.Module):
        return function, embedding
    raise BadInput(f"{adapter.name} cannot be measured: it needs a submodule named embedding for its input tokens")
