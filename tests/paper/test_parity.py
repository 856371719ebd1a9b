"""Parity: labelled strings, small models that learn short ones, and trials that are performed once."""

import dataclasses
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from made_up_worlds import judge

from fieldlens.cli import main
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.paper import parity
from fieldlens.paper.artifact import find, redraw, state
from fieldlens.paper.parity import RECENT, SCHEMES, SEEDS, Task, Trial, perform, perform_all, strings
from fieldlens.paper.results import PaperResults
from fieldlens.storage.results import write_result
from fieldlens.study.plan import Study, read_study

QUICK = Task(
    longest=2, tested=(1, 2, 6), trials=128, layers=2, width=32, heads=2, batch=64, steps=200, learning_rate=3e-3,
    warmup=10, look_every=10,
)  # fmt: skip


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


def write_results(
    folder: Path, near: float, far: float, seeds: int = 3, others: float = 0.9, schemes: Sequence[str] = SCHEMES
) -> None:
    """Write results: accuracy `near` up to 20 bits and `far` beyond, `others` for schemes without a recency bias."""
    for scheme in schemes:
        for seed in SEEDS[:seeds]:
            trial = Trial(scheme, seed)
            beyond = far if scheme in RECENT else others
            accuracy = {str(bits): near if bits <= 20 else beyond for bits in trial.task.tested}
            content = {"kind": parity.KIND, "address": trial.address, "scheme": scheme, "seed": seed}
            write_result(trial.file(folder / "parity"), content | {"accuracy": accuracy})


def test_strings_end_in_a_separator_and_are_labelled_by_their_ones() -> None:
    bits_B = torch.tensor([1, 4, 7, 7])
    ids_BT, parity_B = strings(bits_B, torch.Generator().manual_seed(0))
    for ids, bits, odd in zip(ids_BT.tolist(), bits_B.tolist(), parity_B.tolist(), strict=True):
        assert set(ids[:bits]) <= {0, 1}
        assert ids[bits] == parity.SEPARATOR
        assert set(ids[bits + 1 :]) <= {parity.PADDING}
        assert ids[:bits].count(1) % 2 == odd


def test_a_trial_that_lacks_a_length_is_stale(tmp_path: Path) -> None:
    write_results(tmp_path, 1.0, 0.5, seeds=1, schemes=["alibi"])
    trial = Trial("alibi", SEEDS[0])
    assert trial.state(tmp_path / "parity") == "done"
    content = json.loads(trial.file(tmp_path / "parity").read_text())
    del content["accuracy"]["200"]
    write_result(trial.file(tmp_path / "parity"), content)
    assert trial.state(tmp_path / "parity") == "stale"
    assert trial.accuracy(tmp_path / "parity") is None


def test_both_answers_are_equally_frequent() -> None:
    _, parity_B = strings(torch.full((4000,), 9), torch.Generator().manual_seed(0))
    assert abs(float(parity_B.double().mean()) - 0.5) < 0.03


def test_padding_changes_no_answer() -> None:
    model, _ = parity.train(Trial("kerple", 1, Task(longest=2, layers=1, width=16, heads=2, batch=4, steps=2)))
    bits_B = torch.tensor([2, 5])
    ids_BT, _ = strings(bits_B, torch.Generator().manual_seed(0))
    together = parity.answers(model, ids_BT, bits_B)[0]
    alone = model(ids_BT[:1, :3])[0, -1]
    assert together.tolist() == pytest.approx(alone.tolist(), abs=1e-5)


def test_a_small_model_learns_short_strings(tmp_path: Path) -> None:
    perform(Trial("alibi", 1, QUICK), tmp_path)
    accuracy = Trial("alibi", 1, QUICK).accuracy(tmp_path)
    assert accuracy is not None
    assert min(accuracy[1], accuracy[2]) > 0.95


def test_a_trial_is_done_once_and_gives_the_same_again(tmp_path: Path) -> None:
    trial = Trial("kerple", 1, dataclasses.replace(QUICK, steps=3))
    assert trial.state(tmp_path) == "missing"
    perform(trial, tmp_path)
    text = trial.file(tmp_path).read_bytes()
    stamp = trial.file(tmp_path).stat().st_mtime_ns
    perform(trial, tmp_path)
    assert trial.file(tmp_path).stat().st_mtime_ns == stamp
    trial.file(tmp_path).unlink()
    perform(trial, tmp_path)
    assert trial.file(tmp_path).read_bytes() == text


def test_another_task_makes_a_trial_stale(tmp_path: Path) -> None:
    write_results(tmp_path, 1.0, 0.5)
    assert Trial("none", 1235).state(tmp_path / "parity") == "done"
    assert Trial("none", 1235, QUICK).state(tmp_path / "parity") == "stale"


@pytest.mark.parametrize("content", ["", "[]", '{"kind": "fieldlens parity", "accuracy": {"1": 7}}'])
def test_hostile_files_are_no_results(tmp_path: Path, content: str) -> None:
    trial = Trial("none", 1235)
    trial.file(tmp_path).write_text(content)
    assert trial.state(tmp_path) in ("stale", "missing")
    assert trial.accuracy(tmp_path) is None


def test_the_artifact_draws_and_reports_its_state(study: Study, tmp_path: Path) -> None:
    results = PaperResults(study, tmp_path)
    assert state(find("parity"), results, tmp_path / "out")["state"] == "missing"
    write_results(tmp_path, 0.95, 0.5, seeds=2)
    drawn, files = redraw(find("parity"), results, tmp_path / "out")
    assert {path.suffix for path in files} == {".png", ".svg", ".md", ".tex", ".csv"}
    assert drawn.sheets[0].rows[0][:2] == ["sandwich", "95.0% ± 0.0%"]
    summary = state(find("parity"), results, tmp_path / "out")
    assert (summary["state"], summary["why"]) == ("partial", "12 of 18 runs")


@pytest.mark.parametrize(
    ("near", "far", "verdict"), [(0.95, 0.5, "holds"), (0.95, 0.9, "does not hold"), (0.6, 0.5, "not testable")]
)
def test_the_claim_needs_something_learnt(study: Study, tmp_path: Path, near: float, far: float, verdict: str) -> None:
    write_results(tmp_path, near, far)
    claim = judge(PaperResults(study, tmp_path), "parity-fails")
    assert claim.verdict == verdict
    assert len(claim.outcomes[0].lines) == len(SCHEMES)


@pytest.mark.parametrize(
    ("models", "verdict"),
    [
        ([(1.0, 0.78), (1.0, 0.5), (0.75, 0.5)], "does not hold"),
        ([(1.0, 0.5), (1.0, 0.5), (0.6, 0.5)], "holds"),
        ([(0.8, 0.5), (0.6, 0.5), (0.6, 0.9)], "not testable"),
    ],
)
def test_each_model_that_learnt_counts(
    study: Study, tmp_path: Path, models: list[tuple[float, float]], verdict: str
) -> None:
    for seeds in (3, 2, 1):  # the last of them first, then the others over them
        write_results(tmp_path, *models[seeds - 1], seeds)
    assert judge(PaperResults(study, tmp_path), "parity-fails").verdict == verdict


def test_the_bias_is_not_blamed_for_what_all_fail_at(study: Study, tmp_path: Path) -> None:
    write_results(tmp_path, 1.0, 0.5, others=0.5)
    assert judge(PaperResults(study, tmp_path), "parity-fails").verdict == "not testable"


def test_one_model_of_all_does_not_decide(study: Study, tmp_path: Path) -> None:
    write_results(tmp_path, 1.0, 0.5, schemes=("alibi", "none"))
    claim = judge(PaperResults(study, tmp_path), "parity-fails")
    assert claim.verdict == "undecided"


def test_without_results_the_claim_is_undecided(study: Study) -> None:
    claim = judge(PaperResults(study, Path("nowhere")), "parity-fails")
    assert (claim.verdict, claim.reason) == ("undecided", "missing: parity: fieldlens paper parity --run")


def test_the_command_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[tuple[int, int, int | None]] = []

    def record(trials: Sequence[Trial], folder: Path, workers: int, machine: Machine) -> None:
        calls.append((len(trials), workers, machine.threads))

    monkeypatch.setattr("fieldlens.paper.artifacts.parity.perform_all", record)
    write_results(tmp_path, 1.0, 0.5)
    folders = ["--results", str(tmp_path), "--out", str(tmp_path / "out")]
    main(["paper", "parity", "--run", *folders, "--json", "--workers", "3", "--threads", "2"])
    assert calls == [(len(SCHEMES) * len(SEEDS), 3, 2)]
    assert json.loads(capsys.readouterr().out)["drawn"][0]["name"] == "parity"


def test_parallel_trials_give_the_same_results(tmp_path: Path) -> None:
    trials = [Trial(scheme, 1, dataclasses.replace(QUICK, steps=3)) for scheme in ("kerple", "none")]
    perform_all(trials, tmp_path / "two", 2, Machine())
    stamps = [trial.file(tmp_path / "two").stat().st_mtime_ns for trial in trials]
    perform_all(trials, tmp_path / "two", 2, Machine())
    assert [trial.file(tmp_path / "two").stat().st_mtime_ns for trial in trials] == stamps
    for trial in trials:
        perform(trial, tmp_path / "one")
        assert trial.accuracy(tmp_path / "two") == trial.accuracy(tmp_path / "one")


def test_a_killed_process_is_reported_in_one_line(tmp_path: Path) -> None:
    def kill() -> None:
        while not (children := multiprocessing.active_children()):
            time.sleep(0.01)
        children[0].kill()

    killer = threading.Thread(target=kill)
    killer.start()
    with pytest.raises(BadInput, match="was killed; run the same command again to continue"):
        perform_all([Trial("none", 1)], tmp_path, 1, Machine())
    killer.join()
    assert not multiprocessing.active_children()


BEGIN = """
import signal, sys
from pathlib import Path
from fieldlens.core.device import Machine
from fieldlens.paper.parity import Task, Trial, perform_all
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    task = Task(look_every=1, steps=1_000_000, layers=1, width=8, heads=1, batch=1)
    perform_all([Trial("none", 1, task)], Path(sys.argv[1]), 1, Machine())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="children are found in /proc")
@pytest.mark.parametrize("signal_number", [signal.SIGKILL, signal.SIGINT])
def test_worker_processes_end_with_their_parent(tmp_path: Path, signal_number: signal.Signals) -> None:
    (tmp_path / "begin.py").write_text(BEGIN)
    command = [sys.executable, str(tmp_path / "begin.py"), str(tmp_path)]
    parent = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)

    def children() -> list[int]:
        pids = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        return [pid for pid in map(int, pids) if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]

    def until(condition: Callable[[], object]) -> None:
        for _ in range(600):
            if condition():
                return
            time.sleep(0.05)
        pytest.fail("it takes more than half a minute")

    def state_of(pid: int) -> list[str]:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()

    def gone(pid: int) -> bool:
        try:
            return state_of(pid)[0] == "Z"
        except OSError:
            return True

    try:
        until(children)
        (child,) = children()
        until(
            lambda: int(state_of(child)[11]) > 4 * os.sysconf("SC_CLK_TCK")
        )  # after seconds of CPU time it is running a trial
        os.killpg(parent.pid, signal_number) if signal_number == signal.SIGINT else parent.kill()
        assert parent.wait(60) != 0
        until(lambda: gone(child))
    finally:
        with suppress(ProcessLookupError):
            os.killpg(parent.pid, signal.SIGKILL)
        parent.wait()
