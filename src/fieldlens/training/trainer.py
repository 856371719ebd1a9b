"""The trainer: a decoder, its optimisers and its position in the data, one step at a time."""

import json
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from fieldlens.core.distributed import World
from fieldlens.data.batches import batch_at
from fieldlens.data.tokens import TokenizedCorpus
from fieldlens.kernels.selection import describe_kernels
from fieldlens.models.decoder import Config, Decoder
from fieldlens.models.finite import not_finite
from fieldlens.schemes.validation import check_scheme
from fieldlens.training.loss import LARGEST, cross_entropy
from fieldlens.training.optimisers import make_optimisers, optimiser_tensors, restore_optimisers
from fieldlens.training.recipe import Recipe
from fieldlens.training.update import Diverged, update

VALIDATION_TOKENS, VALIDATION_BATCHES = 16_384, 8
"""Upper bounds of a validation, in tokens and in batches."""


class Objective(nn.Module):
    """Token ids in, mean loss out: the module whose gradients are averaged over processes."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids_BT: Tensor) -> Tensor:
        states_BTD = self.decoder.states(self.decoder.embed(ids_BT[:, :-1]))
        return cross_entropy(states_BTD.flatten(0, 1), self.decoder.head.weight, ids_BT[:, 1:].flatten())


class Trainer:
    """A decoder, its optimisers and its position in the data: everything that a checkpoint holds."""

    def __init__(
        self,
        recipe: Recipe,
        tokens: TokenizedCorpus,
        device: torch.device,
        dtype: torch.dtype,
        world: World,
        checkpointing: bool = False,
        compile: bool = False,
    ) -> None:
        self.recipe, self.world, self.step = recipe, world, 0
        self.device, self.dtype = device, dtype
        self.train_ids, self.validation_ids = tokens.split("train").ids, tokens.split("validation").ids
        torch.manual_seed(recipe.seed)
        self.decoder = Decoder(shape(recipe, tokens.vocab_size))
        self.decoder.checkpointing = checkpointing
        self.decoder.to(self.device, torch.float64 if self.dtype == torch.float64 else torch.float32)
        self.precision: Callable[[], Any] = lambda: (
            torch.autocast(self.device.type, self.dtype) if self.dtype == torch.bfloat16 else nullcontext()
        )
        self.optimisers = make_optimisers(self.decoder, recipe)
        objective: nn.Module = Objective(self.decoder)
        if compile:
            objective = torch.compile(objective)  # type: ignore[assignment]
        self.objective = DistributedDataParallel(objective) if world.size > 1 else objective

    def gradient(self) -> float:
        """Compute the gradient of this step's batch over all processes; return the loss."""
        recipe = self.recipe
        ids_BT = torch.from_numpy(batch_at(self.train_ids, recipe.seed, self.step, recipe.batch, recipe.length))
        loss = 0.0
        for micro in range(recipe.accumulation):
            micro_BT = ids_BT[micro :: recipe.accumulation]
            micro_BT = micro_BT[self.world.rows(len(micro_BT))].to(self.device)
            waits = self.world.size > 1 and micro + 1 < recipe.accumulation
            with self.objective.no_sync() if waits else nullcontext():  # type: ignore[operator]
                with self.precision():
                    part = self.objective(micro_BT) / recipe.accumulation
                part.backward()  # outside of autocast, which would round the gradients of scores and biases
            loss += float(part.detach())
        return self.world.mean(loss)

    def kernel(self) -> str:
        """The attention kernel and why it is used."""
        return describe_kernels(self.decoder.scheme.distinct_schemes, self.device, self.dtype, training=True)

    def advance(self) -> dict[str, Any]:
        """One optimiser step. Raises Diverged, without an update, if the gradient is not finite."""
        loss = self.gradient()
        rate = self.recipe.rate(self.step)
        norm = update(self.decoder, self.optimisers, step=self.step + 1, loss=loss, rate=rate, clip=self.recipe.clip)
        self.step += 1
        return {"step": self.step, "loss": loss, "learning_rate": rate, "gradient_norm": norm}

    @torch.no_grad()
    def validate(self) -> float:
        """Perplexity of segments spread evenly over the validation split, always the same, at the training length."""
        length = self.recipe.length
        limit = min(VALIDATION_BATCHES * self.recipe.batch, max(1, VALIDATION_TOKENS // length))
        count = min((len(self.validation_ids) - 1) // length, limit)
        starts = np.linspace(0, len(self.validation_ids) - 1 - length, count).astype(int)
        rows = np.stack([self.validation_ids[start : start + length + 1] for start in starts])
        losses = []
        self.decoder.eval()
        for batch_BT in torch.from_numpy(rows.astype(np.int64)).split(self.recipe.batch):
            with self.precision():
                losses += [float(Objective(self.decoder)(batch_BT.to(self.device)))] * len(batch_BT)
        self.decoder.train()
        mean = float(np.mean(losses))
        if not mean < LARGEST:
            raise Diverged(f"step {self.step}: validation loss {mean}: diverged")
        return float(np.exp(mean))

    def check_weights(self) -> None:
        """Raise Diverged if a weight is not finite: an update can overflow although its gradient was finite."""
        for name in not_finite(self.decoder):
            raise Diverged(f"step {self.step}: {name} is not finite: diverged, not saved")

    def state(self) -> dict[str, bytes]:
        """The files of a checkpoint."""
        weights = {name: value.cpu().contiguous() for name, value in self.decoder.contents().items()}
        progress = {"step": self.step, "random": torch.get_rng_state().numpy().tobytes().hex()}
        return {
            "weights.safetensors": save(weights),
            "optimiser.safetensors": save(optimiser_tensors(self.optimisers, self.decoder)),
            "state.json": json.dumps(progress).encode(),
        }

    def restore(self, files: dict[str, bytes]) -> None:
        """Restore the files of a checkpoint."""
        weights = load(files["weights.safetensors"])
        progress = json.loads(files["state.json"])
        with torch.no_grad():
            for name, value in self.decoder.contents().items():
                value.copy_(weights[name])
        restore_optimisers(self.optimisers, self.decoder, load(files["optimiser.safetensors"]))
        torch.set_rng_state(torch.from_numpy(np.frombuffer(bytes.fromhex(progress["random"]), np.uint8).copy()))
        self.step = progress["step"]


def shape(recipe: Recipe, vocab_size: int) -> Config:
    """The configuration of the decoder that a recipe describes."""
    padded = -(-vocab_size // recipe.pad_vocabulary) * recipe.pad_vocabulary
    return Config(
        scheme=recipe.scheme, layers=recipe.layers, width=recipe.width, heads=recipe.heads, vocab_size=padded,
        tied=recipe.tied, init_std=recipe.init_std, train_length=recipe.length,
    )  # fmt: skip


def check_shape(recipe: Recipe) -> None:
    """Refuse an impossible decoder or scheme, before any text is read."""
    config = shape(recipe, recipe.bpe)
    check_scheme(config.scheme, config.heads, config.width // config.heads, config.train_length)
