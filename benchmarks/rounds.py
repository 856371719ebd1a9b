"""How benchmarks measure: interleaved rounds and the least of each, an A/A ratio beside; memory in a fresh process."""

import json
import math
import multiprocessing
import platform
import time
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

A_A = "the first again (A/A)"


def race(
    candidates: Mapping[str, Callable[[], Any]], rounds: int, what: str, own_clock: bool = False
) -> dict[str, float]:
    """Seconds of each candidate: the least over rounds that run them in turn. The first runs twice per round.

    A candidate with a clock of its own returns the seconds that count.
    """
    first = next(iter(candidates))
    runners = {**candidates, A_A: candidates[first]}
    seconds = dict.fromkeys(runners, float("inf"))
    for _ in track(range(rounds + 1), description=what, transient=True):  # one more, to warm up
        for name, run in runners.items():
            start = time.perf_counter()
            found = run()
            seconds[name] = min(seconds[name], found if own_clock else time.perf_counter() - start)
    return seconds


def peak_memory(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> float:
    """Megabytes that a call needs beyond its inputs, in a fresh process: prepare(*arguments) returns the call."""
    return once(prepare, *arguments)[0]


def once(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> tuple[float, float]:
    """The same, and the seconds of that one call."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_once, (prepare, *arguments))


def _once(prepare: Callable[..., Callable[[], Any]], *arguments: Any) -> tuple[float, float]:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    run = prepare(*arguments)
    before, start = _status("VmRSS"), time.perf_counter()
    run()
    return _status("VmHWM") - before, time.perf_counter() - start


def _status(key: str) -> float:
    """A line of this process's status on Linux, in megabytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[key].split()[0]) / 2**10


def versions() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    return {
        "fieldlens": version("fieldlens"),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }


def show(title: str, rows: list[dict[str, Any]]) -> None:
    """A table of rows that share their keys."""
    table = Table(title=title, title_justify="left", box=None)
    for key in rows[0]:
        table.add_column(key, justify="left" if isinstance(rows[0][key], str) else "right")
    for row in rows:
        table.add_row(*(f"{value:.3g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console().print(table)


def write(name: str, results: dict[str, Any]) -> None:
    """Keep the figures beside the benchmark."""
    path = Path(__file__).parent / f"{name}.json"
    text = json.dumps(_plain({"versions": versions(), **results}), indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n")
    Console().print(f"written: {path.name}")


def _plain(value: Any) -> Any:
    """As JSON can hold it: what is no number is null."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
