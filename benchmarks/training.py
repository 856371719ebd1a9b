"""What does a training step cost? Ours under each scheme against other libraries' models of the same shape.

Example: python benchmarks/training.py --rounds 10            (extra: bench; LitGPT joins where it is installed)
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import cyclopts
import torch
from peers import Shape, TransformersLoss, WithLoss, other_models, transformers_configs
from rounds import A_A, race, show, write
from torch import Tensor, nn

import fieldlens
from fieldlens.schemes.discovery import registry
from fieldlens.training.trainer import Objective

SMALL: Shape = {"layers": 6, "width": 256, "heads": 8, "vocab_size": 4096}
PAPER: Shape = {"layers": 12, "width": 768, "heads": 12, "vocab_size": 50304}
PEAK, PEAK_SIZE = "a square matrix product", 1024
OURS, LIMITS = "none", {"alibi": 1.05, "sandwich": 1.05, "kerple": 1.2, "t5": 1.2}


ADDITIONS = {
    "rotary:logits=ssmax": "rotary",
    "rotary:sink=learned": "rotary",
    "t5:sink=learned": "t5",
    "fox": "none",
    "rotary/none": "rotary",
    "2*rotary:window=64/rotary": "rotary",
    "cope": "none",
    "fire": "none",
    "inkling": "none",
}
"""Models with an addition, and the same model without it. The last three materialise scores, which costs more."""
ADDITION_LIMIT, MATERIALISED = 1.1, ("cope", "fire", "inkling")


def step(model: nn.Module, ids_BT: Tensor) -> Callable[[], None]:
    """Forward and backward of one batch; the model is ours, theirs, or x-transformers'."""

    def run() -> None:
        model.zero_grad(set_to_none=True)
        model(ids_BT).backward()

    return run


def ours(scheme: str, shape: Shape) -> Objective:
    return Objective(fieldlens.Decoder(fieldlens.Config(scheme=scheme, **shape)))


def product(size: int = PEAK_SIZE) -> Callable[[], None]:
    """A square matrix product: the rate that a step is compared with."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    out = torch.empty(size, size)

    def run() -> None:
        torch.mm(a, b, out=out)

    return run


def work(shape: Shape, batch: int, length: int) -> float:
    """Operations of the matrix products in one step: six per weight and token, and attention's lower triangle."""
    layers, width, _, vocab_size = shape.values()
    weights = layers * 12 * width**2 + width * vocab_size
    return batch * length * (6 * weights + 6 * layers * length * width)


def small(rounds: int, batch: int = 8, length: int = 256) -> dict[str, Any]:
    """Every scheme and every peer, interleaved."""
    ids_BT = torch.randint(SMALL["vocab_size"], (batch, length + 1))
    models: dict[str, nn.Module] = {OURS: ours(OURS, SMALL)}
    models |= {name: ours(name, SMALL) for name in registry() if name != OURS}
    models |= {name: TransformersLoss(config) for name, config in transformers_configs(SMALL, length).items()}
    models |= {name: WithLoss(make()) for name, make in other_models(SMALL, length).items()}
    candidates = {name: step(model.train(), ids_BT) for name, model in models.items()}
    seconds = race(candidates | {PEAK: product()}, rounds, "6 × 256")
    share = work(SMALL, batch, length) / seconds[OURS] / (2 * PEAK_SIZE**3 / seconds.pop(PEAK))
    return {"rows": compare(seconds), "share of the matmul peak": share}


def additions(rounds: int, batch: int = 8, length: int = 256) -> list[dict[str, Any]]:
    """Additions to a scheme against the same model without them, interleaved."""
    ids_BT = torch.randint(SMALL["vocab_size"], (batch, length + 1))
    specs = dict.fromkeys([*ADDITIONS.values(), *ADDITIONS])
    seconds = race({spec: step(ours(spec, SMALL).train(), ids_BT) for spec in specs}, rounds, "additions")
    return [
        {
            "model": spec,
            "ratio to": plain,
            "ratio": seconds[spec] / seconds[plain],
            "limit": "" if spec in MATERIALISED else ADDITION_LIMIT,
            "s": seconds[spec],
        }
        for spec, plain in [*ADDITIONS.items(), (A_A, next(iter(specs)))]
    ]


def compare(seconds: Mapping[str, float]) -> list[dict[str, Any]]:
    return [
        {
            "model": name,
            "ratio to ours without a scheme": value / seconds[OURS],
            "limit": LIMITS.get(name, ""),
            "s": value,
        }
        for name, value in seconds.items()
    ]


def paper(rounds: int, batch: int = 1, length: int = 512) -> list[dict[str, Any]]:
    """At the paper's size one model is in memory at a time: rounds of whole builds, the least of each."""
    ids_BT = torch.randint(PAPER["vocab_size"], (batch, length + 1))
    configs = transformers_configs(PAPER, length)
    makers: dict[str, Callable[[], nn.Module]] = {name: partial(ours, name, PAPER) for name in (OURS, "sandwich", "t5")}
    for name in ("transformers GPT-2, exact GELU", "transformers GPT-NeoX (rotary)"):
        makers[name] = partial(TransformersLoss, configs[name])
    makers[A_A] = makers[OURS]
    seconds = dict.fromkeys(makers, float("inf"))
    for _ in range(rounds):
        for name, make in makers.items():
            run = step(make().train(), ids_BT)
            run()
            start = time.perf_counter()
            run()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
            del run
    return compare(seconds)


def main(rounds: int = 10, paper_rounds: int = 3, threads: int = 1) -> None:
    """Run everything; about ten minutes on one core.

    Parameters
    ----------
    rounds
        Interleaved rounds at 6 layers × 256.
    paper_rounds
        Rounds at the paper's size.
    threads
        CPU threads.
    """
    torch.manual_seed(0)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    first = small(rounds)
    show("\n6 layers × width 256, 8 × 256 tokens, forward + backward", first["rows"])
    print(f"share of the matmul peak, without a scheme: {first['share of the matmul peak']:.2f}")
    results: dict[str, Any] = {"rounds": rounds, "small": first, "additions": additions(rounds)}
    show("\nadditions to a scheme, 6 layers × width 256, 8 × 256 tokens, forward + backward", results["additions"])
    if paper_rounds:
        results |= {"paper_rounds": paper_rounds, "paper": paper(paper_rounds)}
        show("\nthe paper's size, 1 × 512 tokens, forward + backward", results["paper"])
    write("training", results)


if __name__ == "__main__":
    cyclopts.run(main)
