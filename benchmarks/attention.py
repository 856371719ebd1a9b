"""What does a bias cost? Attention under each scheme against bias-free attention; windows; memory.

Example: python benchmarks/attention.py --rounds 10
"""

from collections.abc import Callable
from typing import Any

import cyclopts
import torch
import torch.nn.functional as F
from rounds import A_A, peak_memory, race, show, write
from torch import Tensor

import fieldlens
from fieldlens.schemes.discovery import registry

HEADS, WIDTH = 12, 64
FREE = "SDPA, no bias"
LIMITS = {"alibi": 1.25, "sandwich": 1.25, "kerple": 2.0, "t5": 2.0}


def inputs(length: int) -> list[Tensor]:
    return [torch.randn(1, HEADS, length, WIDTH, requires_grad=True) for _ in range(3)]


def bias_free(length: int, backward: bool = True) -> Callable[[], None]:
    q, k, v = inputs(length)
    return lambda: differentiate(F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v], backward)


def ours(length: int, spec: str, backward: bool = True, window: int | None = None) -> Callable[[], None]:
    q, k, v = inputs(length)
    x_BSD = torch.randn(1, length, HEADS * WIDTH)  # the layer's input, for schemes that depend on content
    built = fieldlens.scheme(spec, HEADS, WIDTH)
    sought = [q, k, v, *built.parameters()]
    return lambda: differentiate(fieldlens.attention(q, k, v, built, window, x_BSD=x_BSD), sought, backward)


def differentiate(out: Tensor, sought: list[Tensor], backward: bool) -> None:
    if backward:
        torch.autograd.grad(out.sum(), sought)


def schemes(length: int, rounds: int) -> list[dict[str, Any]]:
    """Forward, and forward with backward, of every scheme."""
    rows = []
    seconds = []
    for backward in (False, True):
        candidates = {FREE: bias_free(length, backward)}
        candidates |= {name: ours(length, name, backward) for name in registry()}
        seconds.append(race(candidates, rounds, f"{length} tokens"))
    for name in seconds[0]:
        ratios = [each[name] / each[FREE] for each in seconds]
        limit = LIMITS.get(name, "") if length == 2048 else ""
        rows.append({"scheme": name, "forward": ratios[0], "forward + backward": ratios[1], "limit": limit})
    return rows


def windows(rounds: int) -> list[dict[str, Any]]:
    """A window of 256 against full attention at 8192 tokens, and twice the length at the same window."""
    candidates = {
        FREE: bias_free(8192),
        "alibi, window 256, 8192 tokens": ours(8192, "alibi", window=256),
        "alibi, window 256, 16384 tokens": ours(16384, "alibi", window=256),
        "kerple, window 256, 8192 tokens": ours(8192, "kerple", window=256),
        "kerple, window 256, 16384 tokens": ours(16384, "kerple", window=256),
    }
    seconds = race(candidates, rounds, "windows")
    rows: list[dict[str, Any]] = [{"case": f"{A_A} / {FREE}", "ratio": seconds[A_A] / seconds[FREE], "limit": ""}]
    for name in ("alibi", "kerple"):
        short, long = (seconds[f"{name}, window 256, {length} tokens"] for length in (8192, 16384))
        rows.append({"case": f"{name}, window 256 / full, 8192 tokens", "ratio": short / seconds[FREE], "limit": 0.2})
        rows.append({"case": f"{name}, window 256, 16384 / 8192 tokens", "ratio": long / short, "limit": 2.2})
    return rows


def memory() -> list[dict[str, Any]]:
    """Peak beyond the inputs, in megabytes, at 8192 and 16384 tokens."""
    rows = []
    for name in ("alibi", "sandwich", "kerple", "t5", "rotary"):
        for backward in (False, True):
            short, long = (peak_memory(ours, length, name, backward) for length in (8192, 16384))
            what = "forward + backward" if backward else "forward"
            figures = {"MB at 8192": short, "MB at 16384": long, "limit, MB": 1024, "ratio": long / short, "limit": 2.2}
            rows.append({"scheme": name, "pass": what, **figures})
    return rows


def main(rounds: int = 10, threads: int = 1) -> None:
    """Run everything; about four minutes on one core.

    Parameters
    ----------
    rounds
        Interleaved rounds; the least time of each candidate counts.
    threads
        CPU threads.
    """
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    results = {
        "512 tokens": schemes(512, rounds),
        "2048 tokens": schemes(2048, rounds),
        "windows": windows(rounds),
        "memory": memory(),
    }
    for title, rows in results.items():
        show(f"\n{title}; times as ratios to {FREE}" if "tokens" in title else f"\n{title}", rows)
    write("attention", {"rounds": rounds, "heads": HEADS, "head_width": WIDTH, **results})


if __name__ == "__main__":
    cyclopts.run(main)
