"""What a long context costs: ours in last-position mode against models of other libraries.

The usual script around such a model computes all logits and takes the loss of the last one; transformers can also be
asked for the last logits only. Run: python benchmarks/evaluation.py [rounds]   (extra: bench; LitGPT joins where it is
installed)
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peers import other_models, same_scheme, transformers_configs, transformers_model
from rounds import A_A, peak_memory, race, show, write
from transformers.utils import logging

from fieldlens import Config, Decoder
from fieldlens.models.adapters.adapt import adapt

SHAPE = {"layers": 6, "width": 256, "heads": 8, "vocab_size": 32_000}
LENGTH, ROUNDS = 4096, 3
GROWTH = (512, 1024, 2048, 4096, 8192)

OURS = ("alibi", "none", "rotary", "sandwich", "t5", "alibi:window=100")
LAST_ONLY = ", last logits only"
MEMORY = (
    "alibi", "rotary", "transformers Bloom (alibi)", "transformers MPT (alibi)", "transformers GPT-NeoX (rotary)"
)  # fmt: skip
"""Models whose memory is measured, each in a fresh process."""


def ours(spec: str, length: int = LENGTH) -> Callable[[], Any]:
    decoder = Decoder(Config(scheme=spec, **SHAPE))  # type: ignore[arg-type]
    adapter, ids_BT = adapt(decoder), torch.randint(SHAPE["vocab_size"], (1, length + 1))
    return lambda: adapter.losses(ids_BT)


def theirs(name: str) -> Callable[[], Any]:
    """The loss of the last token from all logits, or from the last logits only."""
    logging.set_verbosity_error()
    family = name.removesuffix(LAST_ONLY)
    configs, others = transformers_configs(SHAPE, LENGTH), other_models(SHAPE, LENGTH)
    model = (transformers_model(configs[family]) if family in configs else others[family]()).eval()
    settings: dict[str, Any] = {"use_cache": False} if family in configs else {}
    if name != family:
        settings["logits_to_keep"] = 1
    ids_BT = torch.randint(SHAPE["vocab_size"], (1, LENGTH + 1))

    def run() -> torch.Tensor:
        with torch.no_grad():
            output = model(ids_BT[:, :-1], **settings)
            logits_BTV = output.logits if family in configs else output
            return torch.nn.functional.cross_entropy(logits_BTV[:, -1].float(), ids_BT[:, -1])

    return run


def prepare(name: str) -> Callable[[], Any]:
    torch.manual_seed(0)
    return ours(name) if name in OURS else theirs(name)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    families = [name for name in transformers_configs(SHAPE, LENGTH) if "tanh" not in name]
    rivals = [*families, *(name + LAST_ONLY for name in families), *other_models(SHAPE, LENGTH)]
    names = [*OURS, *rivals]
    seconds = race({name: prepare(name) for name in names}, rounds, f"length {LENGTH}")
    memory = {name: peak_memory(prepare, name) for name in MEMORY}
    same = {A_A: OURS[0], **{name: same_scheme(name) for name in rivals}}
    rows = [
        {
            "model": name,
            "seconds": taken,
            "ratio to ours of the same scheme": taken / seconds[same.get(name, name)],
            "peak MB": memory.get(name, float("nan")),
        }
        for name, taken in seconds.items()
    ]
    title = f"one text of {LENGTH} tokens, loss of the last"
    show(f"{title}, {SHAPE['layers']} layers × {SHAPE['width']}, vocabulary {SHAPE['vocab_size']}", rows)
    growth: list[dict[str, Any]] = []
    for spec in ("alibi", "alibi:window=100"):
        taken = race({str(n): ours(spec, n) for n in GROWTH}, rounds, f"growth of {spec}")
        times = [taken[str(n)] for n in GROWTH]
        exponent = float(np.polyfit(np.log(GROWTH), np.log(times), 1)[0])
        growth.append({"scheme": spec, **{str(n): t for n, t in zip(GROWTH, times, strict=True)}, "exponent": exponent})
    show("seconds by length", growth)
    fastest = min(rivals, key=lambda name: seconds[name] / seconds[same[name]])
    checks = {
        f"the fastest peer, {fastest} / ours of the same scheme": seconds[fastest] / seconds[same[fastest]],
        "peak, ours alibi / Bloom (aim ≤ 0.25)": memory["alibi"] / memory["transformers Bloom (alibi)"],
        "peak, ours alibi / MPT (aim ≤ 0.25)": memory["alibi"] / memory["transformers MPT (alibi)"],
        "peak, ours rotary / GPT-NeoX (aim ≤ 0.25)": memory["rotary"] / memory["transformers GPT-NeoX (rotary)"],
        "ours alibi / window of 100 at the longest length (aim ≥ 20)": growth[0][str(GROWTH[-1])]
        / growth[1][str(GROWTH[-1])],
        "A/A": seconds[A_A] / seconds[OURS[0]],
    }
    show("aims", [{"what": what, "figure": figure} for what, figure in checks.items()])
    write("evaluation", {"rows": rows, "growth": growth, "aims": checks, "rounds": rounds})


if __name__ == "__main__":
    main()
