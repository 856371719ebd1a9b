"""What a long context costs: ours in last-position mode against the usual script around transformers' models.

The usual script asks for all logits and takes the loss of the last one. Run: python benchmarks/evaluation.py
"""

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rounds import A_A, peak_memory, race, show, write
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from fieldlens import Config, Decoder
from fieldlens.models.adapters.adapt import adapt

LENGTH, LAYERS, WIDTH, HEADS, VOCABULARY = 8192, 6, 256, 8, 32_000
ROUNDS = 3
GROWTH = (512, 1024, 2048, 4096, 8192)

THEIRS: dict[str, dict[str, Any]] = {
    "bloom": {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS},
    "mpt": {"d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": LENGTH},
    "gpt_neox": {
        "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "intermediate_size": 4 * WIDTH,
        "max_position_embeddings": LENGTH, "rotary_pct": 1.0,
    },
}  # fmt: skip
OURS = ("alibi", "rotary", "sandwich", "alibi:window=100")


def ours(spec: str, length: int = LENGTH) -> Callable[[], Any]:
    torch.manual_seed(0)
    decoder = Decoder(Config(scheme=spec, layers=LAYERS, width=WIDTH, heads=HEADS, vocab_size=VOCABULARY))
    one, ids_BT = adapt(decoder), torch.randint(VOCABULARY, (1, length + 1))
    return lambda: one.losses(ids_BT)


def usual(family: str) -> Callable[[], Any]:
    """All logits, then the loss of the last: what a script copied from a tutorial does."""
    logging.set_verbosity_error()
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=VOCABULARY, **THEIRS[family])
    model, ids_BT = AutoModelForCausalLM.from_config(config).eval(), torch.randint(VOCABULARY, (1, LENGTH + 1))

    def run() -> torch.Tensor:
        with torch.no_grad():
            logits_BTV = model(ids_BT[:, :-1], use_cache=False).logits
            return torch.nn.functional.cross_entropy(logits_BTV[:, -1].float(), ids_BT[:, -1])

    return run


def prepare(name: str) -> Callable[[], Any]:
    return usual(name) if name in THEIRS else ours(name)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    names = [*OURS, *THEIRS]
    seconds = race({name: prepare(name) for name in names}, rounds, f"length {LENGTH}")
    memory = {name: peak_memory(prepare, name) for name in names}
    base = seconds[OURS[0]]
    rows = [
        {"model": name, "seconds": taken, "ratio to alibi": taken / base, "peak MB": memory.get(name, math.nan)}
        for name, taken in seconds.items()
    ]
    show(f"one text of {LENGTH} tokens, loss of the last, {LAYERS} layers × {WIDTH}, vocabulary {VOCABULARY}", rows)
    growth = []
    for spec in ("alibi", "alibi:window=100"):
        taken = race({str(n): ours(spec, n) for n in GROWTH}, rounds, f"growth of {spec}")
        times = [taken[str(n)] for n in GROWTH]
        exponent = float(np.polyfit(np.log(GROWTH), np.log(times), 1)[0])
        growth.append({"scheme": spec, **{str(n): t for n, t in zip(GROWTH, times, strict=True)}, "exponent": exponent})
    show("seconds against length", growth)
    checks = {
        "Bloom / ours alibi (aim ≥ 2)": seconds["bloom"] / base,
        "MPT / ours alibi (aim ≥ 2)": seconds["mpt"] / base,
        "GPT-NeoX / ours rotary (aim ≥ 1.3)": seconds["gpt_neox"] / seconds["rotary"],
        "peak, ours alibi / Bloom (aim ≤ 0.25)": memory["alibi"] / memory["bloom"],
        "peak, ours alibi / MPT (aim ≤ 0.25)": memory["alibi"] / memory["mpt"],
        "peak, ours rotary / GPT-NeoX (aim ≤ 0.25)": memory["rotary"] / memory["gpt_neox"],
        "ours alibi / window of 100 (aim ≥ 20)": base / seconds["alibi:window=100"],
        "A/A": seconds[A_A] / base,
    }
    show("aims", [{"what": what, "figure": figure} for what, figure in checks.items()])
    write("evaluation", {"rows": rows, "growth": growth, "aims": checks, "rounds": rounds})


if __name__ == "__main__":
    main()
