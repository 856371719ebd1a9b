"""Is attention on a GPU exact, and how fast are attention, training, measuring and evaluating?

Example: python benchmarks/gpu.py            (on a machine with a GPU; then commit benchmarks/gpu.json)
"""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args

import cyclopts
import torch
import torch.nn.functional as F
from rounds import race, show, write
from torch import Tensor
from torch.nn.attention.flex_attention import flex_attention

import fieldlens
from fieldlens.core.memory import peak_memory
from fieldlens.kernels.flex import block_mask
from fieldlens.kernels.selection import VARIABLE, usual_kernel
from fieldlens.models.adapters.decoder import DecoderAdapter
from fieldlens.schemes.discovery import registry
from fieldlens.training.recipe import PRESETS
from fieldlens.training.trainer import Objective

Section = Literal["exactness", "attention", "training", "long"]
FREE = "SDPA, no bias"
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
MORE_SPECS = (
    "sandwich:ratios=learned",
    "kerple:kind=power",
    "t5:sink=learned",
    "fox:sink=learned",
    "rotary:logits=ssmax",
)


@dataclass(frozen=True)
class Size:
    """Sizes of one run of the benchmark."""

    heads: int
    head_width: int
    layers: int
    vocab_size: int
    exact_tokens: int
    windows: tuple[int | None, ...]
    tokens: tuple[int, ...]
    batch: int
    length: int
    long: tuple[int, ...]

    def decoder(self, spec: str, device: torch.device) -> fieldlens.Decoder:
        width = self.heads * self.head_width
        config = fieldlens.Config(spec, layers=self.layers, width=width, heads=self.heads, vocab_size=self.vocab_size)
        return fieldlens.Decoder(config).to(device)


PAPER = Size(12, 64, 12, 50304, 1000, (None, 300), (2048, 8192), 32, 512, (16384, 65536))
TINY = Size(2, 16, 2, 64, 160, (None, 70), (160,), 2, 96, (256,))
"""To check that the benchmark itself runs, also without a GPU."""


LIMITS = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
"""Largest error of an output or a gradient, relative to the largest element if that exceeds 1."""


@contextmanager
def kernel(name: str) -> Any:
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = name
    try:
        yield
    finally:
        os.environ.pop(VARIABLE) if before is None else os.environ.update({VARIABLE: before})


def exactness(size: Size, device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Largest errors of outputs and gradients of every scheme against blocks in float64, of the same rounded inputs."""
    rows = []
    for spec in (*registry(), *MORE_SPECS):
        for window in size.windows:
            built = fieldlens.scheme(spec, size.heads, size.head_width, train_length=size.length)
            training = device.type != "cpu"  # compiled flex has no backward pass on a CPU
            chosen = usual_kernel(_windowed(built, window), device, dtype, training)
            torch.manual_seed(0)
            shape = (2, size.heads, size.exact_tokens, size.head_width)
            x_BSD = torch.randn(2, size.exact_tokens, size.heads * size.head_width)
            inputs = [x.to(device, dtype) for x in (*(torch.randn(shape) for _ in range(3)), x_BSD)]
            computed = _results(built.to(device, torch.float32), inputs, window, training)
            with kernel("blocks"):
                expected = _results(built.double(), [x.double() for x in inputs], window, training)
            errors = [
                float((a.double() - b).abs().max() / b.abs().max().clamp(min=1))
                for a, b in zip(computed, expected, strict=True)
            ]
            rows.append({
                "scheme": spec, "window": str(window or "–"), "kernel": str(chosen), "output": errors[0],
                "gradients": max(errors[1:], default=float("nan")), "limit": LIMITS[dtype],
            })  # fmt: skip
    return rows


def _windowed(built: fieldlens.Scheme, window: int | None) -> fieldlens.Scheme:
    built.window = window
    return built


def _results(built: fieldlens.Scheme, inputs: list[Tensor], window: int | None, training: bool) -> list[Tensor]:
    with torch.set_grad_enabled(training):
        q, k, v, x_BSD = (x.clone().requires_grad_(training) for x in inputs)
        out = fieldlens.attention(q, k, v, built, window, x_BSD=x_BSD)
        if not training:
            return [out]
        sought = [q, k, v, x_BSD, *built.parameters()]
        wide = out.to(torch.promote_types(out.dtype, torch.float32))
        return [out, *torch.autograd.grad(wide.cos().sum(), sought, allow_unused=True, materialize_grads=True)]


def attention(size: Size, device: torch.device, dtype: torch.dtype, rounds: int) -> dict[str, list[dict[str, Any]]]:
    """Forward and backward of every scheme with and without a window, as ratios to attention without a bias."""
    tables = {}
    for tokens in size.tokens:
        candidates = {FREE: _step(size, tokens, device, dtype, None, None)}
        for window in size.windows:
            more = "" if window is None else f", window {window}"
            candidates |= {f"{name}{more}": _step(size, tokens, device, dtype, name, window) for name in registry()}
            if device.type == "cuda":
                candidates |= {
                    f"{name}{more}": step for name, step in _peers(size, tokens, device, dtype, window).items()
                }
        seconds = race(candidates, rounds, f"{tokens} tokens")
        tables[f"attention, {tokens} tokens"] = [
            {"case": name, "ms": 1e3 * value, "ratio": value / seconds[FREE]} for name, value in seconds.items()
        ]
    return tables


def _qkv(size: Size, tokens: int, device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    shape = (1, size.heads, tokens, size.head_width)
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)]


def _step(
    size: Size, tokens: int, device: torch.device, dtype: torch.dtype, spec: str | None, window: int | None
) -> Callable[[], None]:
    q, k, v = _qkv(size, tokens, device, dtype)
    x_BSD = torch.randn(1, tokens, size.heads * size.head_width, device=device, dtype=dtype)
    built = None
    if spec is not None:
        built = fieldlens.scheme(spec, size.heads, size.head_width, train_length=size.length).to(device)

    def run() -> None:
        if built is None:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            out = fieldlens.attention(q, k, v, built, window, x_BSD=x_BSD)
        sought = [q, k, v, *([] if built is None else built.parameters())]
        torch.autograd.grad(out.sum(), sought, allow_unused=True)
        synchronise(device)

    return run


def _peers(
    size: Size, tokens: int, device: torch.device, dtype: torch.dtype, window: int | None
) -> dict[str, Callable[[], None]]:
    """What a user of flex_attention would write, in score_mod: nothing, ALiBi's formula, fixed and learned tables."""
    q, k, v = _qkv(size, tokens, device, dtype)
    slopes_H = torch.exp2(-8 * torch.arange(1, size.heads + 1, device=device) / size.heads)
    fixed_HN = torch.zeros(size.heads, tokens, device=device)
    learned_HN = torch.zeros(size.heads, tokens, device=device, requires_grad=True)
    mods: dict[str, tuple[ScoreMod | None, list[Tensor]]] = {
        "flex_attention without score_mod": (None, []),
        "ALiBi in score_mod": (lambda score, b, h, i, j: score - slopes_H[h] * (i - j), []),
        "a fixed table in score_mod": (lambda score, b, h, i, j: score + fixed_HN[h, (i - j).clamp(min=0)], []),
        "a learned table in score_mod, gradient by flex": (
            lambda score, b, h, i, j: score + learned_HN[h, (i - j).clamp(min=0)],
            [learned_HN],
        ),
    }
    mask = block_mask(tokens // 128, tokens // 128, window, device)

    def step(score_mod: ScoreMod | None, learned: list[Tensor]) -> Callable[[], None]:
        compiled = torch.compile(flex_attention, dynamic=False)

        def run() -> None:
            out = compiled(q, k, v, score_mod=score_mod, block_mask=mask)
            assert isinstance(out, Tensor)
            torch.autograd.grad(out.sum(), [q, k, v, *learned])
            synchronise(device)

        return run

    return {name: step(*mod) for name, mod in mods.items()}


def training(size: Size, device: torch.device, dtype: torch.dtype, rounds: int) -> list[dict[str, Any]]:
    """Training steps of the paper's model: tokens per second, the hours that its 50,000 steps imply, memory."""
    rows = []
    for spec in ("none", "rotary", "alibi", "sandwich", "kerple", "t5", "fox"):
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        model = size.decoder(spec, device)
        objective, ids_BT = (
            Objective(model),
            torch.randint(size.vocab_size, (size.batch, size.length + 1), device=device),
        )
        optimiser = torch.optim.AdamW(model.parameters(), fused=device.type == "cuda")

        def step(objective: Objective = objective, ids_BT: Tensor = ids_BT, optimiser: Any = optimiser) -> None:
            with torch.autocast(device.type, dtype, enabled=dtype == torch.bfloat16):
                loss = objective(ids_BT)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
            synchronise(device)

        seconds = race({spec: step}, rounds, f"training, {spec}")[spec]
        tokens = size.batch * size.length
        hours = PRESETS["paper"].steps * seconds / 3600
        rows.append({
            "scheme": spec, "ms per step": 1e3 * seconds, "tokens/s": tokens / seconds, "hours of 50,000 steps": hours,
            "peak MB": peak_memory() / 2**20,
        })  # fmt: skip
    return rows


def long(size: Size, device: torch.device, dtype: torch.dtype) -> list[dict[str, Any]]:
    """One text: the loss of its last token, and the gradient of its last logits with respect to the embeddings."""
    rows = []
    for spec in ("rotary", "alibi", "alibi:window=1024", "t5"):
        model = size.decoder(spec, device).to(dtype).requires_grad_(False)
        adapter = DecoderAdapter(model)
        for tokens in size.long:
            ids_BT = torch.randint(size.vocab_size, (1, tokens + 1), device=device)

            def evaluate(adapter: DecoderAdapter = adapter, ids_BT: Tensor = ids_BT) -> None:
                adapter.losses(ids_BT)
                synchronise(device)

            def measure(model: fieldlens.Decoder = model, ids_BT: Tensor = ids_BT) -> None:
                embeddings_BTD = model.embed(ids_BT).detach().requires_grad_()
                logits = model(embeddings_BTD=embeddings_BTD, last=True)
                torch.autograd.grad(logits.float().logsumexp(-1).sum(), embeddings_BTD)
                synchronise(device)

            if device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            seconds = race({"evaluate": evaluate, "measure": measure}, 1, f"{spec}, {tokens} tokens")
            rows.append({
                "scheme": spec, "tokens": tokens, "evaluate, s": seconds["evaluate"], "measure, s": seconds["measure"],
                "peak MB": peak_memory() / 2**20,
            })  # fmt: skip
    return rows


def synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main(device: str = "cuda", only: Sequence[Section] = (), tiny: bool = False, rounds: int = 10) -> None:
    """Run everything; the figures of a GPU are written to gpu.json, those of a CPU are only printed.

    Exit code 1 if an output or a gradient is not exact.

    Parameters
    ----------
    device
        cuda, or cpu to check the benchmark itself.
    only
        Sections to run: exactness, attention, training, long.
    tiny
        Small sizes: checks in a minute that everything runs.
    rounds
        Interleaved rounds; the least time of each candidate counts.
    """
    place, size = torch.device(device), TINY if tiny else PAPER
    torch.set_flush_denormal(True)
    dtype = torch.bfloat16 if place.type == "cuda" else torch.float32
    sections: Sequence[Any] = only or get_args(Section)
    results: dict[str, Any] = {}
    if "exactness" in sections:
        dtypes = {torch.float32, dtype}
        results |= {f"exactness, {str(each)[6:]}": exactness(size, place, each) for each in sorted(dtypes, key=str)}
    if "attention" in sections:
        results |= attention(size, place, dtype, rounds)
    if "training" in sections:
        results["training"] = training(size, place, dtype, rounds)
    if "long" in sections:
        results["long texts"] = long(size, place, dtype)
    for title, rows in results.items():
        show(f"\n{title}", rows)
    if place.type == "cuda" and not tiny and not only:
        about = torch.cuda.get_device_properties(place)
        gpu = {"gpu": about.name, "gpu_memory_gb": round(about.total_memory / 2**30), "cuda": str(torch.version.cuda)}
        write("gpu", {**gpu, "dtype": str(dtype)[6:], "rounds": rounds, **results})
    if inexact := inexact_cases(results):
        sys.exit(f"not exact: {', '.join(inexact)}")


def inexact_cases(results: dict[str, list[dict[str, Any]]]) -> list[str]:
    """The cases whose output or gradient is not within its limit."""
    rows = [row for title, rows in results.items() if title.startswith("exactness") for row in rows]
    return [
        f"{row['scheme']} (window {row['window']}, {row['kernel']})"
        for row in rows
        if not row["output"] <= row["limit"] or row["gradients"] > row["limit"]
    ]


if __name__ == "__main__":
    cyclopts.run(main)
