"""Training: one loop, any number of processes, resumable to the bit."""

import dataclasses
import json
import platform
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import fieldlens
from fieldlens import processes
from fieldlens.checkpoint import newest_step, save_step, write_folder
from fieldlens.corpus import open_corpus
from fieldlens.decoder import Config, Decoder
from fieldlens.errors import BadInput, FieldlensError
from fieldlens.loss import cross_entropy
from fieldlens.machine import Machine
from fieldlens.order import batch_at
from fieldlens.recipe import Recipe, address, experiment
from fieldlens.run import Run
from fieldlens.tokens import TokenizedCorpus, tokenize, unigram_perplexity

VALIDATION_BATCHES = 8


class Diverged(FieldlensError):
    """The loss or its gradient is no longer a number."""

    exit_code = 3


class Stopped(FieldlensError):
    """A signal asked for an end; the current step is saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}, saved: --resume goes on")
        self.exit_code = 128 + signal_number


@dataclass(frozen=True)
class Habits:
    """What a run does beside the experiment; none of it changes the numbers that are trained.

    Parameters
    ----------
    save_every
        Steps between checkpoints.
    validate_every
        Steps between validations; a tenth of the run unless given.
    checkpointing
        Compute activations again in backward instead of keeping them.
    compile
        Compile the decoder with torch.compile.
    track
        Write TensorBoard events into the run folder (extra: track).
    """

    save_every: int = 500
    validate_every: int | None = None
    checkpointing: bool = False
    compile: bool = False
    track: bool = False

    def __post_init__(self) -> None:
        for what in ("save_every", "validate_every"):
            value = getattr(self, what)
            if value is not None and value < 1:
                raise BadInput(f"{what} is {value}: at least 1 is needed")


class Objective(nn.Module):
    """Tokens in, mean loss out: what the processes share the gradients of."""

    def __init__(self, decoder: Decoder) -> None:
        super().__init__()
        self.decoder = decoder

    def forward(self, ids_BT: Tensor) -> Tensor:
        states_BTD = self.decoder.states(self.decoder.embed(ids_BT[:, :-1]))
        return cross_entropy(states_BTD.flatten(0, 1), self.decoder.head.weight, ids_BT[:, 1:].flatten())


class Trainer:
    """A decoder, its optimiser and its place in the data: everything that a checkpoint holds."""

    def __init__(
        self, recipe: Recipe, tokens: TokenizedCorpus, machine: Machine, habits: Habits, world: processes.World
    ) -> None:
        self.recipe, self.world, self.step = recipe, world, 0
        self.device, dtype = machine.start()
        self.train_ids, self.validation_ids = tokens.split("train").ids, tokens.split("validation").ids
        torch.manual_seed(recipe.seed)
        self.decoder = Decoder(shape(recipe, tokens.vocabulary))
        self.decoder.checkpointing = habits.checkpointing
        self.decoder.to(self.device, torch.float64 if dtype == torch.float64 else torch.float32)
        half = dtype == torch.bfloat16
        self.precision: Callable[[], Any] = lambda: torch.autocast(self.device.type, dtype) if half else nullcontext()
        groups = self.decoder.parameter_groups(recipe.weight_decay)
        betas = (recipe.beta1, recipe.beta2)
        self.optimiser = torch.optim.AdamW(groups, recipe.learning_rate, betas, recipe.epsilon, fused=True)
        objective: nn.Module = Objective(self.decoder)
        if habits.compile:
            objective = torch.compile(objective)  # type: ignore[assignment]
        self.objective = DistributedDataParallel(objective) if world.size > 1 else objective

    def gradient(self) -> float:
        """The gradient of this step's batch, over all processes, and its loss."""
        recipe = self.recipe
        ids_BT = torch.from_numpy(batch_at(self.train_ids, recipe.seed, self.step, recipe.batch, recipe.length))
        loss = 0.0
        for micro in range(recipe.accumulation):
            some_BT = ids_BT[micro :: recipe.accumulation]
            some_BT = some_BT[self.world.rows(len(some_BT))].to(self.device)
            waits = self.world.size > 1 and micro + 1 < recipe.accumulation
            with self.objective.no_sync() if waits else nullcontext(), self.precision():  # type: ignore[operator]
                part = self.objective(some_BT) / recipe.accumulation
                part.backward()
            loss += float(part.detach())
        return self.world.mean(loss)

    def advance(self) -> dict[str, Any]:
        """One optimiser step. Nothing is updated if the gradient is not finite."""
        loss = self.gradient()
        norm = float(nn.utils.clip_grad_norm_(self.decoder.parameters(), self.recipe.clip))
        rate = self.recipe.rate(self.step)
        if not np.isfinite(norm) or not np.isfinite(loss):
            raise Diverged(f"step {self.step + 1}: loss {loss}, gradient norm {norm}: diverged, nothing was updated")
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self.decoder.scheme.project()
        self.step += 1
        return {"step": self.step, "loss": loss, "learning_rate": rate, "gradient_norm": norm}

    @torch.no_grad()
    def validate(self) -> float:
        """Perplexity of a fixed part of the validation split, at the training length."""
        length = self.recipe.length
        pieces = min((len(self.validation_ids) - 1) // length, VALIDATION_BATCHES * self.recipe.batch)
        if pieces < 1:
            return float("nan")
        rows = np.stack([self.validation_ids[n * length : (n + 1) * length + 1] for n in range(pieces)])
        losses = []
        for some in torch.from_numpy(rows.astype(np.int64)).split(self.recipe.batch):
            with self.precision():
                losses += [float(Objective(self.decoder)(some.to(self.device)))] * len(some)
        return float(np.exp(np.mean(losses)))

    def state(self) -> dict[str, bytes]:
        """The files of a checkpoint."""
        names = {id(parameter): name for name, parameter in self.decoder.named_parameters()}
        moments = {
            f"{names[id(parameter)]}/{key}": value.detach().cpu().contiguous()
            for parameter, values in self.optimiser.state.items()
            for key, value in values.items()
        }
        weights = {name: value.detach().cpu().contiguous() for name, value in self.decoder.named_parameters()}
        progress = {"step": self.step, "random": torch.get_rng_state().numpy().tobytes().hex()}
        return {
            "weights.safetensors": save(weights),
            "optimiser.safetensors": save(moments),
            "state.json": json.dumps(progress).encode(),
        }

    def restore(self, files: dict[str, bytes]) -> None:
        """Go on from the files of a checkpoint."""
        weights, moments = load(files["weights.safetensors"]), load(files["optimiser.safetensors"])
        progress = json.loads(files["state.json"])
        with torch.no_grad():
            for name, parameter in self.decoder.named_parameters():
                parameter.copy_(weights[name])
        for name, parameter in self.decoder.named_parameters():
            keys = [key for key in moments if key.startswith(f"{name}/")]
            if keys:
                place = {key: parameter.device if moments[key].ndim else torch.device("cpu") for key in keys}
                self.optimiser.state[parameter] = {key.rpartition("/")[2]: moments[key].to(place[key]) for key in keys}
        torch.set_rng_state(torch.from_numpy(np.frombuffer(bytes.fromhex(progress["random"]), np.uint8).copy()))
        self.step = progress["step"]


def shape(recipe: Recipe, vocabulary: int) -> Config:
    """The decoder that a recipe asks for."""
    padded = -(-vocabulary // recipe.pad_vocabulary) * recipe.pad_vocabulary
    return Config(
        scheme=recipe.scheme, layers=recipe.layers, width=recipe.width, heads=recipe.heads, vocabulary=padded,
        tied=recipe.tied, train_length=recipe.length,
    )  # fmt: skip


@contextmanager
def listening() -> Iterator[Callable[[], int]]:
    """Take SIGTERM and SIGINT as wishes: the loop asks which came, and ends after the current step."""
    heard = 0

    def hear(number: int, _: FrameType | None) -> None:
        nonlocal heard
        heard = number

    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    machine: Machine = Machine(),  # noqa: B008
    habits: Habits = Habits(),  # noqa: B008
    watch: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Train a decoder into a run folder; return the run's last status. `watch` is told of each step and validation."""
    world, run = processes.join(), Run(folder)
    try:
        machine.start()
        tokens = prepare(recipe, world)
        with run.owned() if world.leads else nullcontext():
            known = run.read(run.config)
            identity = experiment(recipe, tokens.fingerprint)
            check(run, known, identity, resume)
            status = run.read(run.status)
            if status.get("state") in ("finished", "diverged"):
                return status
            trainer = Trainer(recipe, tokens, machine, habits, world)
            found = newest_step(run.checkpoints)
            if found is not None:
                trainer.restore(found[1])
            world.wait()  # all have read what is there before one begins to write
            if world.leads:
                for complaint in found[2] if found else []:
                    watch({"warning": f"{complaint}; the one before is used"})
                run.write_config(known or describe(recipe, tokens, identity, trainer))
                run.rewind(trainer.step)
            return loop(trainer, run, tokens, habits, watch)
    finally:
        processes.leave()


def prepare(recipe: Recipe, world: processes.World) -> TokenizedCorpus:
    """The tokens; the leading process makes them, the others then find them."""
    corpus = open_corpus(recipe.corpus)
    tokenizer = Path(recipe.tokenizer) if recipe.tokenizer else None
    if not world.leads:
        world.wait()
    tokens = tokenize(corpus, recipe.bpe, tokenizer, recipe.max_bytes, progress=world.leads)
    if world.leads:
        world.wait()
    world.rows(recipe.batch // recipe.accumulation)
    batch_at(tokens.split("train").ids, recipe.seed, 0, 1, recipe.length)
    shape(recipe, tokens.vocabulary)
    return tokens


def check(run: Run, known: dict[str, Any], identity: dict[str, Any], resume: bool) -> None:
    """Refuse to mix experiments in one folder."""
    if known and not resume:
        raise BadInput(f"{run.folder} holds a run already: --resume continues it, another --out starts afresh")
    if known and known["experiment"] != identity:
        was = known["experiment"]
        differing = sorted(key for key in was.keys() | identity.keys() if was.get(key) != identity.get(key))
        changes = ", ".join(f"{key} ({was.get(key)} -> {identity.get(key)})" for key in differing)
        raise BadInput(f"{run.folder} holds another experiment; these differ: {changes}")


def describe(recipe: Recipe, tokens: TokenizedCorpus, identity: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """What a run folder says of itself: the experiment, and where and with what it ran."""
    return {
        "recipe": dataclasses.asdict(recipe),
        "experiment": identity,
        "address": address(identity),
        "parameters": sum(parameter.numel() for parameter in trainer.decoder.parameters()),
        "unigram_perplexity": unigram_perplexity(tokens),
        "versions": {
            "fieldlens": fieldlens.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "device": str(trainer.device),
            "threads": torch.get_num_threads(),
            "processes": trainer.world.size,
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
    }


def loop(
    trainer: Trainer, run: Run, tokens: TokenizedCorpus, habits: Habits, watch: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Step until the recipe is done, a signal comes, or the numbers break."""
    recipe, leads = trainer.recipe, trainer.world.leads
    every = habits.validate_every or max(1, recipe.steps // 10)
    saved, start, begun = trainer.step, trainer.step, time.perf_counter()
    writer = _tracker(run) if habits.track and leads else None
    if leads:
        run.write_status("running", step=trainer.step)
    with listening() as heard:
        while trainer.step < recipe.steps:
            try:
                row = trainer.advance()
            except Diverged as error:
                if leads:
                    run.write_status("diverged", step=trainer.step, reason=str(error))
                raise
            if trainer.step % every == 0 or trainer.step == recipe.steps:
                row["validation_perplexity"] = trainer.validate() if leads else None
            stop = trainer.world.any(heard())
            if leads:
                run.log(row)
                if writer is not None:
                    _track(writer, row)
                speed = (trainer.step - start) * recipe.batch * recipe.length / (time.perf_counter() - begun)
                watch({**row, "steps": recipe.steps, "tokens_per_second": speed})
            done = trainer.step == recipe.steps
            if leads and (done or stop or trainer.step - saved >= habits.save_every):
                run.sync()
                save_step(
                    run.checkpoints, trainer.step, trainer.state(), {"experiment": run.read(run.config)["address"]}
                )
                saved = trainer.step
            if stop and not done:
                if leads:
                    run.write_status("stopped", step=trainer.step)
                raise Stopped(stop, trainer.step)
    return finish(trainer, run, tokens) if leads else {}


def finish(trainer: Trainer, run: Run, tokens: TokenizedCorpus) -> dict[str, Any]:
    """Write the model folder, then say that the run is finished."""
    from fieldlens.huggingface import folder_files

    about = {"address": run.read(run.config)["address"]}
    write_folder(run.model, folder_files(trainer.decoder, tokens.tokenizer), about)
    last = run.history()[-1]
    run.write_status("finished", **{key: last[key] for key in ("step", "loss", "validation_perplexity")})
    return run.read(run.status)


def _tracker(run: Run) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInput("--track needs TensorBoard: pip install 'fieldlens[track]'") from None
    return SummaryWriter(str(run.folder / "track"))


def _track(writer: Any, row: dict[str, Any]) -> None:
    for key, value in row.items():
        if key != "step" and value is not None:
            writer.add_scalar(key, value, row["step"])
