"""What a receptive field costs: ours against plain autograd and captum, the same quantity of the same model.

Plain autograd: every parameter asks for its gradient, all logits are computed. Run: python benchmarks/measuring.py
"""

import itertools
import math
import sys
from collections.abc import Callable
from typing import Any

import torch
from rounds import A_A, once, race, show, write
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils import logging

from fieldlens import Config, Decoder
from fieldlens.models.adapters.adapt import adapt
from fieldlens.receptive.input_gradients import embedding_hook

LAYERS, WIDTH, HEADS, VOCABULARY = 12, 768, 12, 50304
LENGTH, LONG, LONGEST = 2048, 8192, 16384
ROUNDS = 2


def neox(length: int) -> tuple[Any, torch.Tensor]:
    logging.set_verbosity_error()
    torch.manual_seed(0)
    config = AutoConfig.for_model(
        "gpt_neox", vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH, max_position_embeddings=LONGEST,
    )  # fmt: skip
    return AutoModelForCausalLM.from_config(config).eval(), torch.randint(VOCABULARY, (1, length + 1))


def plain(length: int) -> Callable[[], Any]:
    """What one writes first."""
    model, ids_BT = neox(length)

    def run() -> torch.Tensor:
        embeddings_BTD = model.get_input_embeddings()(ids_BT[:, :-1]).detach().requires_grad_()
        logits_BTV = model(inputs_embeds=embeddings_BTD, use_cache=False).logits
        model.zero_grad(set_to_none=True)
        logits_BTV[0, -1].log_softmax(0)[ids_BT[0, -1]].backward()
        assert embeddings_BTD.grad is not None
        return embeddings_BTD.grad.norm(dim=-1)

    return run


def captum(length: int) -> Callable[[], Any]:
    from captum.attr import Saliency

    model, ids_BT = neox(length)

    def target(embeddings_BTD: torch.Tensor) -> torch.Tensor:
        return model(inputs_embeds=embeddings_BTD, use_cache=False).logits[:, -1].log_softmax(-1)

    saliency = Saliency(target)

    def run() -> torch.Tensor:
        embeddings_BTD = model.get_input_embeddings()(ids_BT[:, :-1]).detach().requires_grad_()
        return saliency.attribute(embeddings_BTD, target=int(ids_BT[0, -1]), abs=False).norm(dim=-1)

    return run


def lens(length: int, checkpointing: bool) -> Callable[[], Any]:
    model, ids_BT = neox(length)
    opened = embedding_hook(adapt(model), checkpointing)
    return lambda: opened.norms(ids_BT)


def decoder(length: int, checkpointing: bool) -> Callable[[], Any]:
    torch.manual_seed(0)
    one = embedding_hook(adapt(Decoder(Config())), checkpointing)
    ids_BT = torch.randint(VOCABULARY, (1, length + 1))
    return lambda: one.norms(ids_BT)


WAYS: dict[str, Callable[[int], Callable[[], Any]]] = {
    "ours": lambda length: lens(length, False),
    "ours, recomputing": lambda length: lens(length, True),
    "plain autograd": plain,
    "captum": captum,
}


def prepare(way: str, length: int) -> Callable[[], Any]:
    return WAYS[way](length)


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    seconds = race({way: prepare(way, LENGTH) for way in WAYS}, rounds, f"length {LENGTH}")
    shares = {way: prepare(way, 256)().flatten().double() for way in WAYS}
    apart = max(float((one / one.sum() - shares["ours"] / shares["ours"].sum()).abs().max()) for one in shares.values())
    alone = {(way, n): once(prepare, way, n) for n in (LENGTH, LONG) for way in WAYS if way != "captum" or n < LONG}
    memory = {key: peak for key, (peak, _) in alone.items()}
    rows = [
        {
            "way": way,
            f"seconds at {LENGTH}": taken,
            "ratio": taken / seconds["ours"],
            f"peak MB at {LENGTH}": memory.get((way, LENGTH), math.nan),
            f"peak MB at {LONG}": memory.get((way, LONG), math.nan),
        }
        for way, taken in seconds.items()
    ]
    show(f"gradient at the embeddings, GPT-NeoX shape {LAYERS} × {WIDTH}, vocabulary {VOCABULARY}", rows)
    decoders = {n: once(decoder, n, True) for n in (2048, 4096, LONG, LONGEST)}
    growth = {n: peak for n, (peak, _) in decoders.items()}
    table = [{"length": str(n), "peak MB": peak, "seconds": taken} for n, (peak, taken) in decoders.items()]
    show("our 162 M decoder, recomputing", table)
    lengths = sorted(growth)
    checks = {
        "largest difference of shares between the ways": apart,
        f"plain autograd / ours at {LENGTH} (aim ≥ 1.7)": seconds["plain autograd"] / seconds["ours"],
        f"captum / ours at {LENGTH}": seconds["captum"] / seconds["ours"],
        f"plain autograd / ours at {LONG}, each once (aim ≥ 1.7)": alone["plain autograd", LONG][1]
        / alone["ours", LONG][1],
        f"peak beyond the weights at {LONG}, recomputing / plain (aim ≤ 0.33)": memory["ours, recomputing", LONG]
        / memory["plain autograd", LONG],
        f"peak MB of our decoder at {LONGEST} (aim ≤ 6144)": growth[LONGEST],
        "largest growth of the peak per doubling (aim ≤ 2.2)": max(
            growth[b] / growth[a] for a, b in itertools.pairwise(lengths)
        ),
        "A/A": seconds[A_A] / seconds["ours"],
    }
    show("aims", [{"what": what, "figure": figure} for what, figure in checks.items()])
    write("measuring", {"rows": rows, "growth": table, "aims": checks, "rounds": rounds})


if __name__ == "__main__":
    main()
