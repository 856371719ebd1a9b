"""The optimisers of a training: AdamW for every parameter, or Muon for the hidden matrices and AdamW for the rest."""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from fieldlens.core.device import bfloat16_runs
from fieldlens.core.errors import BadInput
from fieldlens.models.decoder import Decoder
from fieldlens.training.recipe import Recipe


def make_optimisers(decoder: Decoder, recipe: Recipe) -> list[Optimizer]:
    """The optimisers of a recipe; together they hold every parameter once."""
    groups = decoder.parameter_groups(recipe.weight_decay)
    muon: list[Optimizer] = []
    if recipe.optimiser == "muon":
        hidden = {id(parameter) for parameter in decoder.blocks.parameters() if parameter.ndim == 2}
        matrices = [parameter for parameter in groups[0]["params"] if id(parameter) in hidden]
        groups[0]["params"] = [parameter for parameter in groups[0]["params"] if id(parameter) not in hidden]
        if matrices[0].device.type == "cpu" and not bfloat16_runs():
            raise BadInput("optimiser muon computes in bfloat16, which does not run on this CPU: use optimiser adamw")
        # An update of Muon then has the size of one of AdamW, so that one learning rate serves both.
        muon = [Muon(matrices, recipe.learning_rate, recipe.weight_decay, adjust_lr_fn="match_rms_adamw")]
    betas = (recipe.beta1, recipe.beta2)
    return [AdamW(groups, recipe.learning_rate, betas, recipe.epsilon, fused=True), *muon]


def optimiser_tensors(optimisers: Sequence[Optimizer], module: nn.Module) -> dict[str, Tensor]:
    """The state of the optimisers, each tensor by the name of its parameter and its own: `head.weight/exp_avg`."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": value.detach().cpu().contiguous()
        for optimiser in optimisers
        for parameter, values in optimiser.state.items()
        for key, value in values.items()
    }


def restore_optimisers(optimisers: Sequence[Optimizer], module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Restore what `optimiser_tensors` returned."""
    names = {id(parameter): name for name, parameter in module.named_parameters()}
    by_parameter: dict[str, dict[str, Tensor]] = {}
    for path, value in tensors.items():
        name, _, key = path.rpartition("/")
        by_parameter.setdefault(name, {})[key] = value
    for optimiser in optimisers:
        ordered = [names[id(parameter)] for group in optimiser.param_groups for parameter in group["params"]]
        states = {place: by_parameter[name] for place, name in enumerate(ordered) if name in by_parameter}
        # load_state_dict moves each tensor to the device and dtype that the optimiser needs
        optimiser.load_state_dict({"state": states, "param_groups": optimiser.state_dict()["param_groups"]})


def step_all(optimisers: Sequence[Optimizer], learning_rate: float) -> None:
    """One step of every optimiser; the gradients are then released."""
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = learning_rate
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
