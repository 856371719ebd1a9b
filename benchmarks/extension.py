"""What an extension method costs per forward pass: a transformers model with it against the same model without.

A Llama of random weights reads one text of 2048 tokens with its own attention (SDPA) and with every method attached.
The CPU time of the pass counts, the least over interleaved rounds. Then the peak memory of a pass by length, in a
fresh process each, beyond the weights.
Run: python benchmarks/extension.py [rounds]
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from rounds import A_A, peak_memory, race, show, write
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.utils import logging

from fieldlens.extension.attach import attached
from fieldlens.extension.discovery import build
from fieldlens.models.adapters.adapt import adapt

TOKENS, TRAINED = 2048, 512
LENGTHS = (1024, 2048, 4096)
METHODS = (
    "yarn", "dynamic-ntk", "self-extend", "rerope", "rerope:leak=4", "streaming", "window",
)  # fmt: skip
WEIGHED = ("stock", "self-extend", "rerope", "streaming", "window")
STOCK = "stock"


def model() -> Any:
    """A Llama of the width and heads of SmolLM2-135M, with 6 layers."""
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=576, intermediate_size=1536, num_hidden_layers=6, num_attention_heads=9, num_key_value_heads=3,
        vocab_size=8192, max_position_embeddings=TRAINED, attn_implementation="sdpa",
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def forward(adapter: Any, ids_BT: torch.Tensor, spec: str) -> Callable[[], float]:
    """CPU seconds of a pass with a method; attaching it does not count."""

    def losses(extended: Any) -> float:
        start = time.process_time()
        extended.losses(ids_BT)
        return time.process_time() - start

    def run() -> float:
        if spec == STOCK:
            return losses(adapter)
        with attached(adapter, build(spec, TRAINED)) as extended:
            return losses(extended)

    return run


def prepare(spec: str, tokens: int) -> Callable[[], Any]:
    """The same in a fresh process, which has run a short text before."""
    adapter = adapt(model())
    run = forward(adapter, adapter.noise(tokens + 1)[:1], spec)
    forward(adapter, adapter.noise(TRAINED + 64)[:1], spec)()
    return run


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    logging.set_verbosity_error()
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    adapter = adapt(model())
    ids_BT = adapter.noise(TOKENS + 1)[:1]
    candidates = {spec: forward(adapter, ids_BT, spec) for spec in (STOCK, *METHODS)}
    seconds = race(candidates, rounds, f"{TOKENS} tokens", own_clock=True)
    rows = [
        {"method": name, "CPU seconds": taken, "/ stock": taken / seconds[STOCK]} for name, taken in seconds.items()
    ]
    show(f"a forward pass of {TOKENS} tokens, trained on {TRAINED}", rows)
    memory = []
    for spec in WEIGHED:
        sizes = {f"{length} tokens MB": peak_memory(prepare, spec, length) for length in LENGTHS}
        memory.append({"method": spec, **sizes})
    show("peak memory of a forward pass beyond the weights", memory)
    largest = max(seconds[spec] for spec in METHODS) / seconds[STOCK]
    aims = {"method / stock, largest (aim ≤ 1.3)": largest, "A/A": seconds[A_A] / seconds[STOCK]}
    show("aims", [{"what": what, "figure": figure} for what, figure in aims.items()])
    write("extension", {"rows": rows, "memory": memory, "aims": aims, "rounds": rounds})


if __name__ == "__main__":
    main()
