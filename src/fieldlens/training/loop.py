"""The training loop: one process or several, resumable to the bit."""

import dataclasses
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fieldlens.core import distributed as processes
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput, FieldlensError, OutOfMemory
from fieldlens.core.events import Estimate, Note, TrainingStep, Warned, Watch, ignore
from fieldlens.core.memory import out_of_memory, peak_memory
from fieldlens.data.batches import batch_at
from fieldlens.data.corpus import BUILT_IN, open_corpus
from fieldlens.data.tokens import TokenizedCorpus, tokenize, unigram_perplexity
from fieldlens.models.size import LAYER_BYTES, check_memory, least_parameters
from fieldlens.schemes.spec import canonical, source_of
from fieldlens.schemes.validation import scheme_warnings
from fieldlens.storage.checkpoints import checkpoints_in, newest_checkpoint, save_checkpoint
from fieldlens.storage.folders import is_whole, write_folder
from fieldlens.storage.provenance import provenance
from fieldlens.storage.records import RunStatus
from fieldlens.storage.run_dir import Run
from fieldlens.storage.sealed import digest
from fieldlens.storage.writable import check_folder
from fieldlens.training.recipe import Recipe, RunOptions, experiment
from fieldlens.training.trainer import Trainer, check_shape
from fieldlens.training.update import Diverged


class Stopped(FieldlensError):
    """A signal stopped the run; the current step is saved."""

    def __init__(self, signal_number: int, step: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signal_number).name} after step {step}, saved: --resume goes on")
        self.exit_code = 128 + signal_number


@contextmanager
def catch_signals() -> Iterator[Callable[[], int]]:
    """Record SIGTERM and SIGINT instead of ending; the caller asks which one came."""
    received = 0

    def record(number: int, _: FrameType | None) -> None:
        nonlocal received
        received = number

    main = threading.current_thread() is threading.main_thread()  # only the main thread can set handlers
    handlers = {number: signal.signal(number, record) for number in (signal.SIGTERM, signal.SIGINT) if main}
    try:
        yield lambda: received
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def train(
    recipe: Recipe,
    folder: Path,
    *,
    resume: bool = False,
    machine: Machine = Machine(),  # noqa: B008
    options: RunOptions = RunOptions(),  # noqa: B008
    watch: Watch = ignore,
) -> RunStatus:
    """Train a decoder into a run folder and return the final status. `watch` receives each step and validation."""
    check_folder(folder)
    if options.track:
        _writer_class()
    recipe = dataclasses.replace(recipe, scheme=canonical(recipe.scheme))
    world = processes.join()
    try:
        device, dtype = machine.start()
        check_size(recipe, device, world)
        tokens = prepare(recipe, world)
        identity = {**experiment(recipe, tokens.fingerprint), **source_of(recipe.scheme)}
        run = Run(folder)
        with run.owned() if world.leads else nullcontext():
            config = run.read(run.config)
            check(run, config, identity, resume)
            status = run.read_status()
            if status.get("state") == "diverged" or (status.get("state") == "finished" and is_whole(run.model)):
                return status if world.leads else {}
            trainer = Trainer(
                recipe, tokens, device, dtype, world, checkpointing=options.checkpointing, compile=options.compile
            )
            for warning in scheme_warnings(recipe.scheme, recipe.heads, recipe.width // recipe.heads, recipe.length):
                watch(Warned(warning))
            check_dtype(run, config, trainer)
            restore(trainer, run, watch)
            if world.leads:
                data = {"place": _place(recipe.corpus), **tokens.manifest}
                record = describe(recipe, tokens, identity, trainer, options)
                run.begin(trainer.step, data, _continued(config, record, trainer))
            return loop(trainer, run, tokens, options, watch)
    finally:
        processes.leave()


def check_size(recipe: Recipe, device: torch.device, world: processes.World) -> None:
    """Refuse a recipe that cannot fit in memory, from a lower bound: weights, gradients and moments, activations."""
    parameters = least_parameters(recipe.layers, recipe.width, 0 if recipe.tokenizer else recipe.bpe)
    model = parameters * 4 * torch.float32.itemsize + recipe.layers * LAYER_BYTES
    sizes = f"layers {recipe.layers:,}, width {recipe.width:,}, bpe {recipe.bpe:,}"
    check_memory(f"a decoder with {sizes}", model, device, "give smaller sizes")
    ids = recipe.batch * (recipe.length + 1) * torch.int64.itemsize
    sequences = recipe.batch // recipe.accumulation // world.size
    activations = sequences * recipe.length * recipe.width * recipe.layers * torch.float32.itemsize
    name = f"a step of batch {recipe.batch:,} and length {recipe.length:,}"
    check_memory(name, ids + activations, device, "give a smaller --batch or --length, or more --accumulation")


def prepare(recipe: Recipe, world: processes.World) -> TokenizedCorpus:
    """The tokens; the leading process tokenizes, the others then find them in the cache."""
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
    count = len(tokens.split("validation").ids)
    if count <= recipe.length:
        minimum = f"at least {recipe.length + 1} are needed for length {recipe.length}"
        raise BadInput(f"the validation split has {count} tokens: {minimum}")
    return tokens


def check(run: Run, config: dict[str, Any], identity: dict[str, Any], resume: bool) -> None:
    """Refuse to mix experiments in one folder."""
    if config and not resume:
        raise BadInput(f"{run.folder} already contains a run: continue it with --resume or give another --out")
    if config and "experiment" not in config:
        raise BadInput(f"{run.config} was not written by fieldlens train: give another --out")
    if config and config["experiment"] != identity:
        before = config["experiment"]
        keys = sorted(key for key in before.keys() | identity.keys() if before.get(key) != identity.get(key))
        changes = ", ".join(f"{key} ({before.get(key)} -> {identity.get(key)})" for key in keys)
        raise BadInput(f"{run.folder} contains another experiment; these fields differ: {changes}")


def restore(trainer: Trainer, run: Run, watch: Watch) -> None:
    """Restore the newest intact checkpoint, if there is one."""
    checkpoint = newest_checkpoint(run.checkpoints)
    if checkpoint is not None:
        trainer.restore(checkpoint[1])
    trainer.world.wait()  # every process has read the checkpoint before one of them writes
    if trainer.world.leads:
        for problem in checkpoint[2] if checkpoint else []:
            watch(Warned(f"{problem}; the previous checkpoint is used"))
        if checkpoint is None and checkpoints_in(run.checkpoints):
            watch(Warned("no checkpoint is intact; training starts over"))


def check_dtype(run: Run, config: dict[str, Any], trainer: Trainer) -> None:
    """Refuse to resume in another precision."""
    before, now = config.get("machine", {}).get("dtype"), _name(trainer.dtype)
    if before and before != now:
        raise BadInput(f"{run.folder} was started in {before} and cannot be resumed in {now}: give --dtype {before}")


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _place(corpus: str) -> str:
    """A corpus by a name that is valid from any folder."""
    return str(Path(corpus).resolve()) if corpus not in BUILT_IN and Path(corpus).exists() else corpus


def _continued(config: dict[str, Any], new: dict[str, Any], trainer: Trainer) -> dict[str, Any]:
    """The record of a run; a resumed one adds new versions or another machine, and from which step on."""
    if not config:
        return new
    later = config.get("later", [])
    latest = later[-1] if later else config
    current = {key: new[key] for key in ("versions", "machine")}
    if any(latest.get(key) != current[key] for key in current):
        return {**config, "later": [*later, {"from_step": trainer.step, **current}]}
    return config


def describe(
    recipe: Recipe, tokens: TokenizedCorpus, identity: dict[str, Any], trainer: Trainer, options: RunOptions
) -> dict[str, Any]:
    """The record of a run: recipe, identity, versions and machine."""
    return {
        "recipe": dataclasses.asdict(recipe),
        "experiment": identity,
        "address": digest(identity)[:16],
        "parameters": sum(parameter.numel() for parameter in trainer.decoder.parameters()),
        "unigram_perplexity": unigram_perplexity(tokens),
        **provenance(
            trainer.device,
            trainer.kernel(),
            dtype=_name(trainer.dtype),
            processes=trainer.world.size,
            compiled=options.compile,
        ),
    }


def loop(trainer: Trainer, run: Run, tokens: TokenizedCorpus, options: RunOptions, watch: Watch) -> RunStatus:
    """Train until the recipe is done, a signal arrives, or the loss diverges."""
    recipe, leads = trainer.recipe, trainer.world.leads
    every = options.validate_every or max(1, recipe.steps // 10)
    saved, report = trainer.step, _StepReport(recipe, trainer.step, watch)
    purge = {"purge_step": trainer.step + 1} if trainer.step else {}  # repeated steps replace the earlier ones
    writer = _writer_class()(str(run.folder / "track"), **purge) if options.track and leads else None
    with catch_signals() as received, _record_failure(trainer, run):
        while trainer.step < recipe.steps:
            row = trainer.advance()
            if trainer.step % every == 0 or trainer.step == recipe.steps:
                row["validation_perplexity"] = trainer.validate() if leads else None
            stop = trainer.world.any(received())
            if leads:
                run.log(row)
                if writer is not None:
                    _track(writer, row)
                report(row)
            done = trainer.step == recipe.steps
            if done or stop or trainer.step - saved >= options.save_every:
                trainer.check_weights()
                saved = trainer.step
                if leads:
                    files = trainer.state()
                    run.sync()
                    about = {"experiment": run.read(run.config)["address"]}
                    save_checkpoint(run.checkpoints, trainer.step, files, about)
            if stop and not done:
                if leads:
                    run.write_status("stopped", step=trainer.step)
                raise Stopped(stop, trainer.step)
    return finish(trainer, run, tokens) if leads else {}


class _StepReport:
    """Reports each step with its speed, and after the second step an estimate of the time left and the memory."""

    def __init__(self, recipe: Recipe, step: int, watch: Watch) -> None:
        self.recipe, self.watch, self.start, self.began = recipe, watch, step, time.perf_counter()
        self.first: tuple[int, float] | None = None
        """Number and time of the first step, which is left out of the estimate: it includes the warm-up."""

    def __call__(self, row: dict[str, Any]) -> None:
        now, step, left = time.perf_counter(), row["step"], self.recipe.steps - row["step"]
        if self.first is None:
            self.first = step, now
            fields = " ".join(f"{key}={value}" for key, value in dataclasses.asdict(self.recipe).items())
            self.watch(Note(f"recipe: {fields}"))
        elif step == self.first[0] + 1:
            self.watch(Estimate((now - self.first[1]) * left, peak_memory(), with_weights=True))
        seconds = (now - self.began) / (step - self.start)
        speed = self.recipe.batch * self.recipe.length / seconds
        validation = row.get("validation_perplexity")
        self.watch(TrainingStep(step, self.recipe.steps, row["loss"], speed, seconds * left, validation))


@contextmanager
def _record_failure(trainer: Trainer, run: Run) -> Iterator[None]:
    """Record in the status that the run diverged or ran out of memory."""
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
            "or start a new run with more --accumulation"
        ) from error


def finish(trainer: Trainer, run: Run, tokens: TokenizedCorpus) -> RunStatus:
    """Write the model folder, then mark the run as finished."""
    from fieldlens.models.hf_export import folder_files

    about = {"address": run.read(run.config)["address"]}
    write_folder(run.model, folder_files(trainer.decoder, tokens.tokenizer), about)
    last = next((row for row in reversed(run.history()) if row["step"] == trainer.step), None)
    if last is None:  # the metrics are damaged
        last = {"step": trainer.step, "loss": None, "validation_perplexity": trainer.validate()}
    run.write_status("finished", **{key: last[key] for key in ("step", "loss", "validation_perplexity")})
    return run.read_status()


def _writer_class() -> Any:
    """TensorBoard's writer (extra: track)."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise BadInput("--track needs TensorBoard: pip install 'fieldlens[track]'") from None
    return SummaryWriter


def _track(writer: Any, row: dict[str, Any]) -> None:
    for key, value in row.items():
        if key != "step" and value is not None:
            writer.add_scalar(key, value, row["step"])
