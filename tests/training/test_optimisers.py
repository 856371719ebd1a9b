"""Optimisers: each parameter is in one of them, Muon's update, and exact resumption."""

import numpy as np
import pytest
import torch
from safetensors.torch import load

from fieldlens.core.device import bfloat16_runs
from fieldlens.core.distributed import World
from fieldlens.core.errors import BadInput
from fieldlens.data.tokens import TokenizedCorpus
from fieldlens.training.recipe import recipe
from fieldlens.training.trainer import Trainer

needs_bfloat16 = pytest.mark.skipif(not bfloat16_runs(), reason="bfloat16 does not run on this CPU")


class RandomTokens:
    """The part of a tokenized corpus that a trainer reads."""

    vocab_size = 300

    def split(self, name: str) -> "RandomTokens":
        self.ids = np.random.default_rng(0).integers(0, 300, 5000).astype(np.uint16)
        return self


def trainer(**changes: object) -> Trainer:
    tokens: TokenizedCorpus = RandomTokens()  # type: ignore[assignment]
    return Trainer(recipe("smoke", scheme="kerple", **changes), tokens, torch.device("cpu"), torch.float32, World())


@needs_bfloat16
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_is_in_one_optimiser(optimiser: str, tied: bool) -> None:
    built = trainer(optimiser=optimiser, tied=tied)
    held = [id(p) for each in built.optimisers for group in each.param_groups for p in group["params"]]
    assert sorted(held) == sorted(id(parameter) for parameter in built.decoder.parameters())


@needs_bfloat16
def test_muon_takes_the_matrices_of_the_layers_alone() -> None:
    built = trainer(optimiser="muon")
    (matrices,) = (group["params"] for group in built.optimisers[1].param_groups)
    names = {id(parameter): name for name, parameter in built.decoder.named_parameters()}
    kinds = {names[id(parameter)].split(".", 2)[2] for parameter in matrices}
    assert kinds == {"qkv.weight", "attention_out.weight", "mlp_in.weight", "mlp_out.weight"}
    assert all(names[id(parameter)].startswith("blocks.") for parameter in matrices)


@needs_bfloat16
def test_an_update_of_muon_is_nearly_orthogonal() -> None:
    built = trainer(optimiser="muon", weight_decay=0.0, warmup=0)
    weight = built.decoder.blocks[0].mlp_in.weight
    before = weight.detach().clone()
    built.advance()
    singular = torch.linalg.svdvals(weight.detach() - before)
    assert float(singular.max() / singular.median()) < 2  # a gradient has singular values of many sizes


@needs_bfloat16
@pytest.mark.parametrize("optimiser", ["adamw", "muon"])
def test_a_restored_trainer_goes_on_to_the_bit(optimiser: str) -> None:
    through, stopped = trainer(optimiser=optimiser), trainer(optimiser=optimiser)
    for _ in range(3):
        stopped.advance()
    resumed = trainer(optimiser=optimiser)
    resumed.restore(stopped.state())
    for _ in range(6):
        through.advance()
    for _ in range(3):
        resumed.advance()
    for file in ("weights.safetensors", "optimiser.safetensors"):
        expected, actual = load(through.state()[file]), load(resumed.state()[file])
        assert expected.keys() == actual.keys()
        assert all(torch.equal(expected[name], actual[name]) for name in expected)


def test_muon_is_refused_where_bfloat16_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fieldlens.training.optimisers.bfloat16_runs", lambda: False)
    with pytest.raises(BadInput, match="does not run on this CPU: use optimiser adamw"):
        trainer(optimiser="muon")
