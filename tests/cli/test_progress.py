"""Progress without a terminal: a line per change, never the same line again."""

import io
from itertools import count
from typing import Any

import pytest
from rich.console import Console

from fieldlens.cli import progress
from fieldlens.cli.progress import Watcher
from fieldlens.cli.study import StudyScreen
from fieldlens.core.events import Progress, Stage


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What is printed to a file, while every look at the clock takes 11 seconds."""
    clock = count(0, 11)
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(clock)))
    return io.StringIO()


def test_an_activity_is_printed_at_once_and_progress_once_per_step(log: io.StringIO) -> None:
    with Watcher(Console(file=log, width=120), quiet=False) as watcher:
        watcher.watch(Stage("", "reading the text"))
        watcher.watch(Stage("gpt2", "loading"))
        assert log.getvalue() == "reading the text …\ngpt2: loading …\n"
        watcher.watch(Stage("gpt2"))
        for done in range(101):
            watcher.watch(Progress(done, 100, "gradients" if done < 50 else "layers"))
    lines = log.getvalue().splitlines()[2:]
    assert lines[0].startswith("gpt2  gradients: 1% done")
    shares = [int(line.split(": ")[1].split("%")[0]) for line in lines]
    assert 50 in shares  # a change of the part
    assert len(shares) <= 12
    assert shares == sorted(set(shares))


def test_a_study_prints_its_summary_only_when_it_changes(log: io.StringIO) -> None:
    screen = StudyScreen.__new__(StudyScreen)
    screen.states, screen.summary, screen.summarised, screen.workers = {"a": "running"}, "", -99.0, 1
    screen.console, screen.study = Console(file=log, width=120), type("S", (), {"title": "Demo"})()  # type: ignore[assignment]
    row: dict[str, Any] = {"name": "a", "state": "running", "seconds_left": 600.0}
    for now, left in ((0.0, 600.0), (11.0, 599.0), (22.0, 598.0), (33.0, 420.0)):
        screen._print_changes([{**row, "seconds_left": left}], [], now)
    assert log.getvalue().splitlines() == [
        "Demo: 0 of 1 runs done, about 10 min left",
        "Demo: 0 of 1 runs done, about 7 min left",
    ]


def test_the_time_left_of_a_part_with_a_count_of_its_own(log: io.StringIO) -> None:
    with Watcher(Console(file=log, width=120), quiet=False) as watcher:
        for done in (1, 10, 20):
            watcher.watch(Progress(done, 20, "gradients"))
        for done in (0.1, 0.2, 1.2):
            watcher.watch(Progress(done, 2.2, "check"))
    start, later = (line for line in log.getvalue().splitlines() if "check" in line)
    assert start.endswith("9% done, 4 min left")  # 0.1 of 2.2 in the steps of the clock above
    assert "left" in later


def test_the_bar_of_a_second_part_is_not_finished() -> None:
    with Watcher(Console(file=io.StringIO(), width=120, force_terminal=True), quiet=False) as watcher:
        for done in range(5):
            watcher.watch(Progress(done, 4, "gradients"))
        watcher.watch(Progress(0.5, 4, "check"))
        (task,) = watcher.progress.tasks
        assert not task.finished
        assert task.time_remaining != 0
