"""Training: exact steps, exact resumption, faults with real processes."""

import json
import random
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import short_training as training
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import fieldlens.models.hf_export  # noqa: F401
from fieldlens import cli
from fieldlens.core.device import Machine
from fieldlens.core.distributed import World
from fieldlens.core.errors import BadInput, OutOfMemory
from fieldlens.core.events import Event, TrainingStep, Warned
from fieldlens.data.batches import batch_at
from fieldlens.data.corpus import open_corpus
from fieldlens.data.tokens import TokenizedCorpus, tokenize
from fieldlens.storage.atomic import FAILPOINT
from fieldlens.storage.checkpoints import checkpoints_in, newest_checkpoint
from fieldlens.storage.folders import read_folder
from fieldlens.storage.run_dir import Occupied, Run
from fieldlens.training.loop import Stopped, train
from fieldlens.training.recipe import Recipe, RunOptions, recipe
from fieldlens.training.trainer import Objective, Trainer
from fieldlens.training.update import Diverged

CPU = Machine(device="cpu", threads=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training.write_corpus(tmp_path_factory.mktemp("training") / "corpus")


@pytest.fixture(scope="module")
def whole(corpus: Path) -> Path:
    """An undisturbed run."""
    out = corpus.parent / "whole"
    done = training.train(corpus, out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture
def tokens(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> TokenizedCorpus:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    return tokenize(open_corpus(str(corpus)), 512, None, 500_000)


def small(corpus: Path, **changes: object) -> Recipe:
    return recipe("smoke", corpus=str(corpus), **changes)


def trainer(chosen: Recipe, tokens: TokenizedCorpus, dtype: str = "float64") -> Trainer:
    return Trainer(chosen, tokens, *Machine("cpu", dtype, 1).start(), World())  # type: ignore[arg-type]


def test_a_step_is_adam_by_hand(corpus: Path, tokens: TokenizedCorpus) -> None:
    """Two steps against an independent float64 implementation: gradients by autograd, everything after by numpy."""
    chosen = small(corpus, weight_decay=0.1, clip=0.5, accumulation=2, scheme="kerple")
    tested, reference = trainer(chosen, tokens), trainer(chosen, tokens)
    decays = {id(p) for p in reference.decoder.parameter_groups(0.1)[0]["params"]}
    moments = {name: (0.0, 0.0) for name, _ in reference.decoder.named_parameters()}
    for step in range(2):
        tested.advance()
        ids = torch.from_numpy(batch_at(reference.train_ids, chosen.seed, step, chosen.batch, chosen.length))
        logits = reference.decoder(ids[:, :-1])
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten()).backward()
        norm = np.sqrt(sum(float((p.grad**2).sum()) for p in reference.decoder.parameters()))  # type: ignore[operator]
        rate, scale = chosen.rate(step), min(1.0, chosen.clip / (norm + 1e-6))
        with torch.no_grad():
            for name, p in reference.decoder.named_parameters():
                assert p.grad is not None
                g = p.grad.numpy() * scale
                m = chosen.beta1 * moments[name][0] + (1 - chosen.beta1) * g
                v = chosen.beta2 * moments[name][1] + (1 - chosen.beta2) * g**2
                moments[name] = (m, v)
                w = p.numpy() * (1 - rate * (0.1 if id(p) in decays else 0.0))
                m_hat, v_hat = m / (1 - chosen.beta1 ** (step + 1)), v / (1 - chosen.beta2 ** (step + 1))
                p.copy_(torch.from_numpy(w - rate * m_hat / (np.sqrt(v_hat) + chosen.epsilon)))
                p.grad = None
        reference.decoder.scheme.project()
        for parameter, expected in zip(tested.decoder.parameters(), reference.decoder.parameters(), strict=True):
            assert (parameter - expected).abs().max() < 1e-10


def test_one_batch_can_be_overfitted(corpus: Path, tokens: TokenizedCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = small(corpus, batch=4, steps=150, learning_rate=1e-2, final_learning_rate=1e-3, width=64)
    monkeypatch.setattr(
        "fieldlens.training.trainer.batch_at", lambda ids, seed, step, *rest: batch_at(ids, seed, 0, *rest)
    )
    taught = trainer(chosen, tokens, "float32")
    losses = [taught.advance()["loss"] for _ in range(chosen.steps)]
    assert losses[-1] < 0.05


def test_accumulation_changes_nothing_but_round_off(corpus: Path, tokens: TokenizedCorpus) -> None:
    single, split = (trainer(small(corpus, accumulation=n), tokens) for n in (1, 4))
    for _ in range(3):
        assert single.advance()["loss"] == pytest.approx(split.advance()["loss"], rel=1e-12)


def test_activation_checkpointing_changes_nothing(corpus: Path, tokens: TokenizedCorpus) -> None:
    plain, again = (trainer(small(corpus), tokens) for _ in range(2))
    again.decoder.checkpointing = True
    for _ in range(2):
        assert plain.advance() == again.advance()


def test_the_run_folder_is_complete(whole: Path) -> None:
    assert json.loads((whole / "status.json").read_text())["state"] == "finished"
    config = json.loads((whole / "config.json").read_text())
    assert config["recipe"]["scheme"] == "kerple"
    assert config["machine"]["threads"] == 1
    assert [row["step"] for row in training.logged(whole)] == list(range(1, 13))
    model = AutoModelForCausalLM.from_pretrained(whole / "model")
    tokenizer = AutoTokenizer.from_pretrained(whole / "model")
    assert model.config.train_length == 32
    ids = tokenizer("abc", return_tensors="pt").input_ids
    assert model(ids).logits.shape[-1] == model.config.vocab_size
    weights = read_folder(checkpoints_in(whole / "checkpoints")[-1])["weights.safetensors"]
    assert len(weights) > 10_000


def test_training_is_reproducible_to_the_bit(corpus: Path, whole: Path, tmp_path: Path) -> None:
    assert training.train(corpus, tmp_path / "again").returncode == 0
    assert training.ending(tmp_path / "again") == training.ending(whole)


@pytest.mark.parametrize("moment", [0.3, 0.9])
def test_a_killed_run_resumes_to_the_bit(corpus: Path, whole: Path, moment: float, tmp_path: Path) -> None:
    out = tmp_path / "run"
    # Killed during step or save: wait until a share of the steps is logged.
    process = training.start(corpus, out)
    while not (out / "metrics.jsonl").exists() or len(training.logged(out)) < 12 * moment - 1:
        assert process.poll() is None
        time.sleep(0.005)
    training.kill(process)
    assert training.train(corpus, out, "--resume").returncode == 0
    assert training.ending(out) == training.ending(whole)
    assert [row["step"] for row in training.logged(out)] == list(range(1, 13))


@pytest.mark.parametrize("when", random.Random(1).sample(range(1, 60), 3))
def test_a_kill_at_a_change_to_the_disk(corpus: Path, whole: Path, when: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert training.train(corpus, out, **{FAILPOINT: f"{when}:kill"}).returncode == -signal.SIGKILL
    assert training.train(corpus, out, "--resume").returncode == 0
    assert training.ending(out) == training.ending(whole)
    assert [row["step"] for row in training.logged(out)] == list(range(1, 13))


def test_a_full_disk_leaves_the_checkpoint_before(corpus: Path, whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = training.train(corpus, out, **{FAILPOINT: "31:ENOSPC"})
    assert done.returncode == 4
    assert done.stderr.strip().splitlines()[-1].startswith("fieldlens: ")
    assert "the disk is full" in done.stderr
    checkpoint = newest_checkpoint(out / "checkpoints")
    assert checkpoint is not None
    assert checkpoint[2] == []
    assert training.train(corpus, out, "--resume").returncode == 0
    assert training.ending(out) == training.ending(whole)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_ends(corpus: Path, whole: Path, number: signal.Signals, code: int, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = training.start(corpus, out, "--save-every", "1000")
    while not (out / "metrics.jsonl").exists() or not training.logged(out):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(number)
    assert process.wait() == code
    assert json.loads((out / "status.json").read_text())["state"] == "stopped"
    step = newest_checkpoint(out / "checkpoints")
    assert step is not None
    assert step[0] == training.logged(out)[-1]["step"] < 12
    assert training.train(corpus, out, "--resume", "--save-every", "1000").returncode == 0
    assert training.ending(out) == training.ending(whole)


def test_two_processes_train_and_resume(corpus: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert training.train(corpus, first, processes=2).returncode == 0
    second = tmp_path / "second"
    process = training.start(corpus, second, processes=2)
    while not (second / "metrics.jsonl").exists() or len(training.logged(second)) < 7:
        assert process.poll() is None
        time.sleep(0.005)
    training.kill(process)
    assert training.train(corpus, second, "--resume", processes=2).returncode == 0
    assert training.ending(second) == training.ending(first)
    assert [row["step"] for row in training.logged(second)] == list(range(1, 13))


def test_validation_is_spread_over_the_split(
    corpus: Path, tokens: TokenizedCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_trainer = trainer(small(corpus), tokens)
    model_trainer.validation_ids = np.arange(100_000) % 500
    seen: list[torch.Tensor] = []
    monkeypatch.setattr(Objective, "forward", lambda self, ids: seen.append(ids) or torch.zeros(()))
    assert model_trainer.validate() == 1.0
    firsts = torch.cat(seen)[:, 0].numpy()
    assert firsts[0] == 0
    assert firsts[-1] == (100_000 - 1 - model_trainer.recipe.length) % 500
    assert np.ptp(np.diff(firsts) % 500) <= 1  # evenly


def test_validation_runs_in_evaluation_mode(corpus: Path, tokens: TokenizedCorpus) -> None:
    """A scheme of one's own may compute something else in training, such as dropout."""
    model_trainer = trainer(small(corpus), tokens)
    modes: list[bool] = []
    model_trainer.decoder.blocks[0].register_forward_pre_hook(lambda block, _: modes.append(block.training))
    model_trainer.validate()
    assert modes
    assert not any(modes)
    assert model_trainer.decoder.training


def test_a_loss_that_is_not_finite_ends_the_run(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    calls = []
    forward = Objective.forward

    def breaks(self: Objective, ids: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return forward(self, ids) * (float("nan") if len(calls) > 5 else 1.0)

    monkeypatch.setattr(Objective, "forward", breaks)
    options = RunOptions(save_every=1, validate_every=100)
    with pytest.raises(Diverged, match="step 6: loss nan"):
        train(small(corpus), tmp_path, machine=CPU, options=options)
    run = Run(tmp_path)
    assert run.read(run.status)["state"] == "diverged"
    checkpoint = newest_checkpoint(run.checkpoints)
    assert checkpoint is not None
    assert checkpoint[0] == 5
    weights = torch.frombuffer(bytearray(checkpoint[1]["weights.safetensors"][-4096:]), dtype=torch.float32)
    assert bool(torch.isfinite(weights).all())
    assert train(small(corpus), tmp_path, resume=True, machine=CPU)["state"] == "diverged"


def test_weights_that_are_not_finite_end_the_run(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    recipe = small(corpus, steps=3, learning_rate=1e38, warmup=0, weight_decay=1e38)
    with pytest.raises(Diverged, match=r"step 1: .* is not finite: diverged, not saved"):
        train(recipe, tmp_path, machine=CPU, options=RunOptions(save_every=1, validate_every=100))
    run = Run(tmp_path)
    assert run.read(run.status)["state"] == "diverged"
    assert "NaN" not in run.status.read_text()
    assert not checkpoints_in(run.checkpoints)
    assert not run.model.exists()


def test_a_huge_validation_loss_is_a_divergence(corpus: Path, tokens: TokenizedCorpus) -> None:
    model_trainer = trainer(small(corpus), tokens)
    with torch.no_grad():
        model_trainer.decoder.head.weight.mul_(1e6)
    with pytest.raises(Diverged, match="validation loss"):
        model_trainer.validate()


def test_a_damaged_model_folder_is_written_again(
    corpus: Path, whole: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shutil.copytree(whole, tmp_path / "run")
    run, before = Run(tmp_path / "run"), training.ending(whole)
    (run.model / "mine.txt").write_text("a file of the user's does no harm")
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    train(small(corpus, scheme="kerple", steps=12), run.folder, resume=True, machine=CPU)
    assert (run.model / "mine.txt").exists()
    (run.model / "model.safetensors").write_bytes(b"other")
    run.metrics.unlink()
    status = train(small(corpus, scheme="kerple", steps=12), run.folder, resume=True, machine=CPU)
    assert training.ending(run.folder) == before
    expected = json.loads((whole / "status.json").read_text())
    assert status["validation_perplexity"] == pytest.approx(expected["validation_perplexity"])


def test_another_precision_is_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    train(small(corpus, steps=2), tmp_path, machine=Machine("cpu", "float64", 1))
    Run(tmp_path).write_status("stopped", step=2)
    with pytest.raises(BadInput, match="was started in float64 and cannot be resumed in float32: give --dtype float64"):
        train(small(corpus, steps=2), tmp_path, resume=True, machine=CPU)
    assert train(small(corpus, steps=2), tmp_path, resume=True, machine=Machine("cpu", "float64", 1))["step"] == 2


def test_out_of_memory_is_one_line(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))

    def allocate(self: Objective, ids: torch.Tensor) -> torch.Tensor:
        return torch.empty(2**60)

    monkeypatch.setattr(Objective, "forward", allocate)
    with pytest.raises(OutOfMemory, match="not enough memory for step 1, with 8 sequences at once"):
        train(small(corpus), tmp_path, machine=CPU)
    assert Run(tmp_path).read(Run(tmp_path).status)["state"] == "stopped"


def test_any_thread_may_train(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    with ThreadPoolExecutor() as pool:
        done = pool.submit(train, small(corpus, steps=1), tmp_path, machine=CPU)
    assert done.result()["state"] == "finished"


def test_a_folder_of_something_else_is_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(BadInput, match="has no seal: it was not written by fieldlens"):
        train(small(corpus), tmp_path, resume=True, machine=CPU)
    assert (tmp_path / "config.json").read_text() == '{"model_type": "llama"}'


def test_a_finished_run_is_left_alone(corpus: Path, whole: Path) -> None:
    before = {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()}
    assert training.train(corpus, whole, "--resume").returncode == 0
    assert {path: path.read_bytes() for path in whole.rglob("*") if path.is_file()} == before


def test_a_run_has_one_owner(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    with Run(tmp_path).owned(), pytest.raises(Occupied, match="another process is training here"):
        train(small(corpus), tmp_path, machine=CPU)


def test_another_experiment_is_refused(corpus: Path, whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    assert (
        train(small(corpus, scheme="kerple:kind=log", steps=12), whole, resume=True, machine=CPU)["state"] == "finished"
    )
    with pytest.raises(BadInput, match="already contains a run: continue it with --resume"):
        train(small(corpus, scheme="kerple", steps=12), whole, machine=CPU)
    with pytest.raises(BadInput, match=r"these fields differ: seed \(1235 -> 7\), steps \(12 -> 20\)"):
        train(small(corpus, scheme="kerple", seed=7), whole, resume=True, machine=CPU)


def test_runs_are_listed_with_their_state(
    corpus: Path, whole: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    run = Run(tmp_path / "killed")
    run.folder.mkdir()
    run.write_status("running", step=3)
    run.write(run.config, {"recipe": {"scheme": "t5", "steps": 9, "corpus": "c", "seed": 1}})
    cli.main(["runs", str(tmp_path), "--json"])
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["state"], row["scheme"], row["steps"]) == ("interrupted", "t5", 9)
    with run.owned():
        cli.main(["runs", str(tmp_path)])
    assert "running" in capsys.readouterr().out
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "status.json").write_text("[]")
    cli.main(["runs", str(tmp_path), "--json"])
    assert {row["state"] for row in json.loads(capsys.readouterr().out)} == {"interrupted", "unreadable"}
    cli.main(["runs", str(tmp_path)])
    assert "unreadable" in capsys.readouterr().out
    cli.main(["runs", str(whole.parent), "--json"])
    rows = {Path(row["run"]).name: row for row in json.loads(capsys.readouterr().out)}
    assert (rows["whole"]["state"], rows["whole"]["step"]) == ("finished", 12)


def test_an_extra_that_is_missing_is_named(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadInput, match=r"pip install 'fieldlens\[track\]'"):
        train(small(corpus), tmp_path / "out", machine=CPU, options=RunOptions(track=True))
    assert not (tmp_path / "out").exists()


def test_events_are_tracked(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    train(small(corpus, steps=2), tmp_path, machine=CPU, options=RunOptions(track=True))
    assert list((tmp_path / "track").iterdir())


def test_starting_over_is_reported(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    (tmp_path / "checkpoints" / "step-000000001").mkdir(parents=True)
    events: list[Event] = []
    train(small(corpus, steps=2), tmp_path, resume=True, machine=CPU, watch=events.append)
    assert events[0] == Warned("no checkpoint is intact; training starts over")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scheme": "sandwhich"}, "did you mean 'sandwich'"),
        ({"width": 30}, "width 30 is not a multiple of heads 4"),
        ({"init_std": -1.0}, "init_std must be greater than 0, got -1"),
        ({"scheme": "sandwich:dims=3"}, "dims must be an even number between 2 and 65536, got 3"),
    ],
)
def test_bad_recipes_write_nothing(
    changes: dict[str, object], message: str, corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not even tokens."""
    monkeypatch.setenv("FIELDLENS_CACHE", str(tmp_path / "cache"))
    with pytest.raises(BadInput, match=message):
        train(small(corpus, **changes), tmp_path / "out", machine=CPU)
    assert not list(tmp_path.iterdir())


def test_a_short_text_is_refused_before_the_run(corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    with pytest.raises(BadInput, match="tokens: at least 2000001 are needed for length 1000000"):
        train(small(corpus, length=10**6), tmp_path / "out", machine=CPU)
    assert not (tmp_path / "out").exists()


def test_steps_and_random_state_are_restored(corpus: Path, tokens: TokenizedCorpus) -> None:
    first = trainer(small(corpus), tokens)
    first.advance()
    torch.rand(7)
    saved, following = first.state(), torch.rand(3)
    second = trainer(small(corpus), tokens)
    second.restore(saved)
    assert torch.equal(torch.rand(3), following)
    assert second.step == 1


def test_versions_machine_and_text_of_a_run_are_recorded(
    corpus: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also if it was resumed on another machine; and the text with its path."""
    monkeypatch.setenv("FIELDLENS_CACHE", str(corpus.parent / "cache"))
    monkeypatch.chdir(corpus.parent)
    chosen, run = recipe("smoke", corpus="corpus", steps=4), Run(tmp_path / "run")

    def interrupt(event: Event) -> None:
        if isinstance(event, TrainingStep) and event.step == 2:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped):
        train(chosen, run.folder, machine=CPU, watch=interrupt)
    assert "later" not in run.read(run.config)
    before = torch.get_num_threads()
    try:
        train(chosen, run.folder, resume=True, machine=Machine(device="cpu", threads=2))
    finally:
        torch.set_num_threads(before)
    (later,) = run.read(run.config)["later"]
    assert (later["from_step"], later["machine"]["threads"]) == (3, 2)
    data = run.read(run.data)
    assert (data["place"], data["corpus"]) == (str(corpus), open_corpus(str(corpus)).fingerprint())
    assert data["splits"]["train"]["documents"] > 0
