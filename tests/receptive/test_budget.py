"""The time budget: what is chosen fits, is as large as possible, and can be repeated by an explicit command."""

import json
import shlex
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from short_training import short_runs

from fieldlens.cli import main
from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols import Anchor
from fieldlens.receptive import measure_models, rounds
from fieldlens.receptive.budget import MIN_SEGMENTS, MIN_TARGETS, MIN_WINDOWS, RESERVE, Budget, Costs, explicit_command
from fieldlens.receptive.request import MeasureRequest
from fieldlens.receptive.runner import GradientRunner

WINDOWS = (2, 4, 8, 16, 32, 64, 128, 256)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return short_runs(tmp_path_factory.mktemp("budget"), ("alibi",))


@pytest.fixture(autouse=True)
def _here(home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FIELDLENS_CACHE", str(home / "cache"))
    monkeypatch.chdir(tmp_path)


def test_the_cost_by_hand() -> None:
    costs = Costs(gradient=3.0, forward=1.0, details=10, length=64, windowed=2.0)
    assert costs.seconds(MeasureRequest(segments=20), 0) == 3 * 30
    request = MeasureRequest(segments=20, plain=True, check=True, targets=50)  # 13 segments of 4 targets
    # at lengths 16, 32 and 64, the last 1, 2 and 4 tokens of an excerpt count: 4, 2 and 1 excerpts
    contexts = (4 * 16 + 2 * 32 + 1 * 64) / 64
    assert costs.seconds(request, 4) == pytest.approx(3 * 20 + 13 * (contexts + 4 * 2.0))
    assert costs.seconds(MeasureRequest(segments=20, plain=True, probe=True), 0) == 3 * 20 + 2 * 20


@given(st.floats(0.001, 30), st.floats(0.001, 10), st.floats(1, 3600), st.booleans())
def test_what_is_chosen_fits_or_is_the_smallest(gradient: float, forward: float, seconds: float, check: bool) -> None:
    request, costs = MeasureRequest(check=check), Costs(gradient, forward, 20, 512)
    chosen, fits = Budget(10).fit(request, costs, WINDOWS if check else (), seconds)
    used = len(WINDOWS if chosen.windows is None else chosen.windows) if check else 0
    assert fits == (costs.seconds(chosen, used) <= RESERVE * seconds)
    if not fits:
        assert (chosen.segments, chosen.targets, chosen.plain) == (MIN_SEGMENTS, MIN_TARGETS, True)
        assert chosen.windows == (WINDOWS[-MIN_WINDOWS:] if check else None)


def test_windows_go_first_then_counts_then_details() -> None:
    request, costs = MeasureRequest(check=True), Costs(0.1, 0.1, 20, 512)
    full = costs.seconds(request, len(WINDOWS)) / RESERVE
    assert Budget(10).fit(request, costs, WINDOWS, full + 1) == (request, True)
    chosen, _ = Budget(10).fit(request, costs, WINDOWS, 0.7 * full)
    assert (chosen.segments, chosen.targets, chosen.plain) == (20, 1600, False)
    assert chosen.windows == WINDOWS[-3:]  # the largest ones
    chosen, _ = Budget(10).fit(request, costs, WINDOWS, 0.3 * full)
    assert chosen.targets < 1600
    assert chosen.targets % MIN_TARGETS == 0
    assert len(chosen.windows or ()) == MIN_WINDOWS  # before there are fewer targets
    assert not chosen.plain


@pytest.mark.parametrize(("length", "targets", "k"), [(2048, 1600, 32), (256, 1600, 16), (64, 1600, 4), (8, 90, 1)])
def test_one_pass_evaluates_all_targets_of_a_segment(length: int, targets: int, k: int) -> None:
    chosen = rounds.check_protocol(targets, length)
    assert chosen.k == k
    assert len(chosen.excerpts(Anchor(0, length), length, length)) == 1
    assert rounds.check_segments(targets, length) * k >= targets


def test_what_the_user_gave_stays() -> None:
    request = MeasureRequest(check=True, targets=500, segments=30, windows=(8,))
    chosen, fits = Budget(1, frozenset({"targets", "segments", "windows"})).fit(request, Costs(9, 9, 20, 512), (8,), 60)
    assert (chosen.targets, chosen.segments, chosen.windows, fits) == (500, 30, (8,), False)


@pytest.mark.parametrize("minutes", [-1, 0, float("nan")])
def test_a_budget_is_positive(minutes: float) -> None:
    with pytest.raises(BadInput, match="minutes must be more than 0"):
        Budget(minutes)


def test_the_command_writes_out_every_count() -> None:
    request = MeasureRequest(check=True, targets=40, segments=5, windows=(8, 16), plain=True, text=Path("a b.txt"))
    assert explicit_command("m", request, 512) == (
        "fieldlens measure m --length 512 --segments 5 --check --targets 40 --margin 0.02 --windows 8,16 --plain "
        "--text 'a b.txt' --minutes 0"
    )


def test_the_printed_command_gives_the_same_numbers(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Costs(gradient=1.0, forward=0.2, details=20, length=64)
    seconds = iter(range(0, 10**6, 7))  # every look at the clock takes 7 seconds
    with monkeypatch.context() as patch:
        patch.setattr(GradientRunner, "costs", slow)
        patch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: start + next(seconds)))
        patch.setattr(rounds, "ROUND", 2)
        start = time.monotonic()
        main(["measure", str(home / "alibi"), "--length", "64", "--check", "--minutes", "1", "--threads", "1"])
    captured = capsys.readouterr()
    (line,) = [line for line in captured.err.splitlines() if "fieldlens measure" in line]
    first = json.loads(Path("lens/receptive-field.json").read_text())["models"][0]
    assert line == f"alibi: {first['command']}"
    assert first["asked"]["segments"] < 20
    assert 0 < len(first["targets"]["check"]) < 900
    monkeypatch.setattr(rounds, "ROUND", 2)
    main([*shlex.split(first["command"])[1:], "--out", "again"])
    again = json.loads(Path("again/receptive-field.json").read_text())["models"][0]
    for key in ("receptive_field", "check", "targets"):
        assert again[key] == first[key]
    assert again["command"] == first["command"].replace("--threads", "--out again --threads")
    assert f"--targets {len(first['targets']['check'])}" in first["command"]
    assert np.array_equal(*(np.load(f"{out}/receptive-field.npz")["norms_0"] for out in ("lens", "again")))


def test_a_length_that_was_not_given_is_halved_until_it_fits(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def costs(self: Any) -> Costs:
        lengths.append(self.length)
        return Costs(gradient=self.length / 64, forward=0.0, details=0, length=self.length)

    monkeypatch.setattr(GradientRunner, "costs", property(costs))
    monkeypatch.setattr(measure_models, "SHORTEST", 32)
    request, budget = MeasureRequest(corpus=str(home / "corpus"), plain=True), Budget(0.2)
    (measurement,) = measure_models.measure_all(
        [str(home / "alibi")], request, device=torch.device("cpu"), dtype=torch.float32, budget=budget
    )
    assert measurement.field.length == lengths[0] // 4
    assert measurement.about["asked"]["length"] == measurement.field.length


def test_rounds_are_expected_from_the_time_of_those_that_are_done(monkeypatch: pytest.MonkeyPatch) -> None:
    check = rounds.Rounds.__new__(rounds.Rounds)
    check.count, check.start, check.deadline = 20, 100.0, 190.0
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: 120.0))
    assert check._expected(0) == 20  # nothing is known yet
    assert check._expected(0.5) == 2  # 40 s per round
    assert check._expected(2) == 9
    monkeypatch.setattr(rounds, "time", SimpleNamespace(monotonic=lambda: 200.0))
    assert check._expected(0.5) == rounds.MIN_ROUNDS
    assert check._expected(3) == 3
    check.deadline = float("inf")
    assert check._expected(3) == 20


def test_the_command_repeats_the_output_folder_and_the_machine(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--length", "16", "--segments", "2", "--plain", "--json", "--threads", "1", "--dtype", "float64"]
    main(["measure", str(home / "alibi"), *words, "--out", "a b"])
    (record,) = json.loads(capsys.readouterr().out)
    assert record["command"].endswith(" --out 'a b' --dtype float64 --threads 1 --minutes 0")
    assert "--out 'a b'" in record["decision"]["next"]["command"]
    main(["measure", str(home / "alibi"), str(home / "alibi"), *words, "--out", "both"])
    for record in json.loads(capsys.readouterr().out):  # not over the report of both
        assert f"--out {shlex.quote('both/' + record['model']['name'])} --minutes 0" in record["command"]
    assert "gradients of 2 targets, 16 tokens each" in Path("both/report.html").read_text()
