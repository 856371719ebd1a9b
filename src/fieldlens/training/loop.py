"""Training: one loop, any number of processes, resumable to the bit."""

import dataclasses
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch

import fieldlens
from fieldlens.core import distributed as processes
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput, FieldlensError, OutOfMemory
from fieldlens.core.memory import out_of_memory
from fieldlens.data.batches import batch_at
from fieldlens.data.corpus import BUILT_IN, open_corpus
from fieldlens.data.tokens import TokenizedCorpus, tokenize, unigram_perplexity
from fieldlens.schemes.spec import canonical, source_of
from fieldlens.storage.atomic import is_whole, write_folder
from fieldlens.storage.checkpoints import checkpoints_in, newest_checkpoint, save_checkpoint
from fieldlens.storage.content_cache import digest
from fieldlens.storage.run_dir import Run
from fieldlens.training.recipe import Recipe, RunOptions, experiment
from fieldlens.training.trainer import Diverged, Trainer, check_shape


class Stopped(FieldlensError):
    """A signal asked for an end; the current step is saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}, saved: --resume goes on")
        self.exit_code = 128 + signal_number


@contextmanager
def catch_signals() -> Iterator[Callable[[], int]]:
    """Take SIGTERM and SIGINT as wishes: the loop asks which came, and ends after the current step."""
    heard = 0

    def hear(number: int, _: FrameType | None) -> None:
        nonlocal heard
        heard = number

    mine = threading.current_thread() is threading.main_thread()  # no other thread may listen
    before = {number: signal.signal(number, hear) for number in (signal.SIGTERM, signal.SIGINT) if mine}
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
    options: RunOptions = RunOptions(),  # noqa: B008
    watch: Callable[[dict[str, Any]], None] = lambda row: None,
) -> dict[str, Any]:
    """Train a decoder into a run folder; return the run's last status. `watch` is told of each step and validation."""
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"--out {folder} is a file: a folder is needed")
    if options.track:
        _writer_class()
    recipe = dataclasses.replace(recipe, scheme=canonical(recipe.scheme))
    world, run = processes.join(), Run(folder)
    try:
        device, dtype = machine.start()
        tokens = prepare(recipe, world)
        with run.owned() if world.leads else nullcontext():
            known = run.read(run.config)
            identity = {**experiment(recipe, tokens.fingerprint), **source_of(recipe.scheme)}
            check(run, known, identity, resume)
            status = run.read(run.status)
            if status.get("state") == "diverged" or (status.get("state") == "finished" and is_whole(run.model)):
                return status if world.leads else {}
            trainer = Trainer(recipe, tokens, device, dtype, world, options.checkpointing, options.compile)
            check_dtype(run, known, trainer)
            found = newest_checkpoint(run.checkpoints)
            if found is not None:
                trainer.restore(found[1])
            world.wait()  # all have read what is there before one begins to write
            if world.leads:
                for complaint in found[2] if found else []:
                    watch({"warning": f"{complaint}; the one before is used"})
                if found is None and checkpoints_in(run.checkpoints):
                    watch({"warning": "no checkpoint is whole; training starts over"})
                run.write(run.data, {"place": _place(recipe.corpus), **tokens.manifest})
                run.write(run.config, _continued(known, describe(recipe, tokens, identity, trainer, options), trainer))
                run.rewind(trainer.step)
            return loop(trainer, run, tokens, options, watch)
    finally:
        processes.leave()


def prepare(recipe: Recipe, world: processes.World) -> TokenizedCorpus:
    """The tokens; the leading process makes them, the others then find them."""
    check_shape(recipe)
    corpus = open_corpus(recipe.corpus)
    tokenizer = Path(recipe.tokenizer) if recipe.tokenizer else None
    if not world.leads:
        world.wait()
    tokens = tokenize(corpus, recipe.bpe, tokenizer, recipe.max_bytes, progress=world.leads)
    if world.leads:
        world.wait()
    world.rows(recipe.batch // recipe.accumulation)
    batch_at(tokens.split("train").ids, recipe.seed, 0, 1, recipe.length)
    held = len(tokens.split("validation").ids)
    if held <= recipe.length:
        raise BadInput(f"the validation split has {held} tokens: more than length {recipe.length} are needed")
    return tokens


def check(run: Run, known: dict[str, Any], identity: dict[str, Any], resume: bool) -> None:
    """Refuse to mix experiments in one folder."""
    if known and not resume:
        raise BadInput(f"{run.folder} holds a run already: --resume continues it, another --out starts afresh")
    if known and "experiment" not in known:
        raise BadInput(f"{run.config} is not what a run writes: give another --out")
    if known and known["experiment"] != identity:
        was = known["experiment"]
        differing = sorted(key for key in was.keys() | identity.keys() if was.get(key) != identity.get(key))
        changes = ", ".join(f"{key} ({was.get(key)} -> {identity.get(key)})" for key in differing)
        raise BadInput(f"{run.folder} holds another experiment; these differ: {changes}")


def check_dtype(run: Run, known: dict[str, Any], trainer: Trainer) -> None:
    """Refuse to go on in another precision: that is another computation."""
    was, now = known.get("machine", {}).get("dtype"), _name(trainer.dtype)
    if was and was != now:
        raise BadInput(f"{run.folder} was begun in {was} and would go on in {now}: give --dtype {was}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _place(corpus: str) -> str:
    """A corpus by a name that means the same from any folder."""
    return str(Path(corpus).resolve()) if corpus not in BUILT_IN and Path(corpus).exists() else corpus


def _continued(known: dict[str, Any], new: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """What a run says of itself; one that goes on elsewhere, or otherwise, than it did also says from which step on."""
    if not known:
        return new
    later = known.get("later", [])
    latest = later[-1] if later else known
    here = {key: new[key] for key in ("versions", "machine")}
    if any(latest.get(key) != here[key] for key in here):
        return {**known, "later": [*later, {"from_step": trainer.step, **here}]}
    return known


def describe(
    recipe: Recipe, tokens: TokenizedCorpus, identity: dict[str, Any], trainer: Trainer, options: RunOptions
) -> dict[str, Any]:
    """What a run folder says of itself: the experiment, and where and with what it ran."""
    return {
        "recipe": dataclasses.asdict(recipe),
        "experiment": identity,
        "address": digest(identity)[:16],
        "parameters": sum(parameter.numel() for parameter in trainer.decoder.parameters()),
        "unigram_perplexity": unigram_perplexity(tokens),
        "versions": {
            "fieldlens": fieldlens.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "machine": {
            "device": str(trainer.device),
            "dtype": _name(trainer.dtype),
            "threads": torch.get_num_threads(),
            "processes": trainer.world.size,
            "capability": torch.backends.cpu.get_cpu_capability(),
            "compiled": options.compile,
        },
    }


def loop(
    trainer: Trainer, run: Run, tokens: TokenizedCorpus, options: RunOptions, watch: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Step until the recipe is done, a signal comes, or the numbers break."""
    recipe, leads = trainer.recipe, trainer.world.leads
    every = options.validate_every or max(1, recipe.steps // 10)
    saved, start, begun = trainer.step, trainer.step, time.perf_counter()
    again = {"purge_step": trainer.step + 1} if trainer.step else {}  # steps that are done twice are shown once
    writer = _writer_class()(str(run.folder / "track"), **again) if options.track and leads else None
    if leads:
        run.write_status("running", step=trainer.step)
    with catch_signals() as heard, _ends_told(trainer, run):
        while trainer.step < recipe.steps:
            row = trainer.advance()
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
            if done or stop or trainer.step - saved >= options.save_every:
                trainer.check_weights()
                saved = trainer.step
                if leads:
                    run.sync()
                    about = {"experiment": run.read(run.config)["address"]}
                    save_checkpoint(run.checkpoints, trainer.step, trainer.state(), about)
            if stop and not done:
                if leads:
                    run.write_status("stopped", step=trainer.step)
                raise Stopped(stop, trainer.step)
    return finish(trainer, run, tokens) if leads else {}


@contextmanager
def _ends_told(trainer: Trainer, run: Run) -> Iterator[None]:
    """Say in the run's status that its numbers broke, or that memory did not suffice."""
    try:
        yield
    except Diverged as error:
        if trainer.world.leads:
            run.write_status("diverged", step=trainer.step, reason=str(error))
        raise
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            raise
        if trainer.world.leads:
            run.write_status("stopped", step=trainer.step)
        micro = trainer.recipe.batch // trainer.recipe.accumulation
        raise OutOfMemory(
            f"not enough memory for step {trainer.step + 1}, with {micro} sequences at once: give --checkpointing, "
            "or start afresh with more --accumulation"
        ) from error


def finish(trainer: Trainer, run: Run, tokens: TokenizedCorpus) -> dict[str, Any]:
    """Write the model folder, then say that the run is finished."""
    from fieldlens.models.hf_export import folder_files

    about = {"address": run.read(run.config)["address"]}
    write_folder(run.model, folder_files(trainer.decoder, tokens.tokenizer), about)
    last = next((row for row in reversed(run.history()) if row["step"] == trainer.step), None)
    if last is None:  # the metrics were lost
        last = {"step": trainer.step, "loss": None, "validation_perplexity": trainer.validate()}
    run.write_status("finished", **{key: last[key] for key in ("step", "loss", "validation_perplexity")})
    return run.read(run.status)


def _writer_class() -> Any:
    """TensorBoard's writer, which is an extra."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInput("--track needs TensorBoard: pip install 'fieldlens[track]'") from None
    return SummaryWriter


def _track(writer: Any, row: dict[str, Any]) -> None:
    for key, value in row.items():
        if key != "step" and value is not None:
            writer.add_scalar(key, value, row["step"])
