"""What does a training step cost? Ours under each scheme against other libraries' models of the same shape.

Example: python benchmarks/training.py --rounds 10            (extra: bench; LitGPT joins where it is installed)
"""

import importlib.util
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import cyclopts
import torch
import torch.nn.functional as F
from rounds import A_A, race, show, write
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MptConfig,
    PreTrainedConfig,
)

import fieldlens
from fieldlens.schemes.discovery import registry
from fieldlens.training.trainer import Objective

Shape = dict[str, Any]
SMALL: Shape = {"layers": 6, "width": 256, "heads": 8, "vocab_size": 4096}
PAPER: Shape = {"layers": 12, "width": 768, "heads": 12, "vocab_size": 50304}
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


class HFAdapter(nn.Module):
    """A transformers model as its users train it: labels in, loss out."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        self.model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa" if sdpa(config) else "eager")

    def forward(self, ids_BT: Tensor) -> Tensor:
        targets_BT = ids_BT[:, 1:].contiguous()
        return self.model(input_ids=ids_BT[:, :-1], labels=targets_BT, shift_labels=targets_BT, use_cache=False).loss


def sdpa(config: PreTrainedConfig) -> bool:
    return config.model_type in ("gpt2", "gpt_neox", "llama")


def transformers_configs(shape: Shape, length: int) -> dict[str, PreTrainedConfig]:
    layers, width, heads, vocab_size = shape.values()
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0}
    return {
        "transformers GPT-2, exact GELU": GPT2Config(
            n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab_size, n_positions=length, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False, activation_function="gelu",
        ),
        "transformers GPT-2, its own tanh GELU": GPT2Config(
            n_layer=layers, n_embd=width, n_head=heads, vocab_size=vocab_size, n_positions=length, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, tie_word_embeddings=False,
        ),
        "transformers GPT-NeoX (rotary)": GPTNeoXConfig(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, vocab_size=vocab_size,
            intermediate_size=4 * width, max_position_embeddings=length, use_parallel_residual=False,
            rope_parameters=rope,
        ),
        "transformers Llama (rotary; SiLU, RMSNorm, as many weights)": LlamaConfig(
            num_hidden_layers=layers, hidden_size=width, num_attention_heads=heads, vocab_size=vocab_size,
            intermediate_size=8 * width // 3, max_position_embeddings=length,
        ),
        "transformers Bloom (alibi)": BloomConfig(
            n_layer=layers, hidden_size=width, n_head=heads, vocab_size=vocab_size, tie_word_embeddings=False,
        ),
        "transformers MPT (alibi)": MptConfig(
            n_layers=layers, d_model=width, n_heads=heads, vocab_size=vocab_size, max_seq_len=length,
            tie_word_embeddings=False,
        ),
    }  # fmt: skip


class XTransformer(nn.Module):
    """x-transformers of the same shape, flash attention where it has it."""

    def __init__(self, shape: Shape, length: int, **positions: Any) -> None:
        super().__init__()
        from x_transformers import Decoder, TransformerWrapper

        layers, width, heads, vocab_size = shape.values()
        body = Decoder(dim=width, depth=layers, heads=heads, attn_dim_head=width // heads, **positions)
        self.model = TransformerWrapper(
            num_tokens=vocab_size, max_seq_len=length, attn_layers=body, use_abs_pos_emb=False
        )

    def forward(self, ids_BT: Tensor) -> Tensor:
        return F.cross_entropy(self.model(ids_BT[:, :-1]).flatten(0, 1), ids_BT[:, 1:].flatten())


def x_transformers(shape: Shape, length: int) -> dict[str, nn.Module]:
    return {
        "x-transformers, none": XTransformer(shape, length, attn_flash=True),
        "x-transformers, rotary": XTransformer(shape, length, attn_flash=True, rotary_pos_emb=True),
        "x-transformers, alibi": XTransformer(shape, length, attn_flash=True, alibi_pos_bias=True),
        "x-transformers, t5": XTransformer(shape, length, rel_pos_bias=True),
    }


class LitGPT(nn.Module):
    """LitGPT's GPT-NeoX of the same shape, rotary over the whole head."""

    def __init__(self, shape: Shape, length: int) -> None:
        super().__init__()
        from litgpt.model import GPT, Config

        layers, width, heads, vocab_size = shape.values()
        self.model = GPT(
            Config(
                block_size=length, n_layer=layers, n_embd=width, n_head=heads, padded_vocab_size=vocab_size,
                rotary_percentage=1.0, parallel_residual=False, mlp_class_name="GptNeoxMLP", bias=True,
            )
        )  # fmt: skip

    def forward(self, ids_BT: Tensor) -> Tensor:
        return F.cross_entropy(self.model(ids_BT[:, :-1]).flatten(0, 1), ids_BT[:, 1:].flatten())


def litgpt(shape: Shape, length: int) -> dict[str, nn.Module]:
    return {"LitGPT (rotary)": LitGPT(shape, length)} if importlib.util.find_spec("litgpt") else {}


def ours(scheme: str, shape: Shape) -> Objective:
    return Objective(fieldlens.Decoder(fieldlens.Config(scheme=scheme, **shape)))


def matmul_peak(size: int = 1024) -> float:
    """The best rate of a square matrix product, in operations per second."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = float("inf")
    for _ in range(20):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * size**3 / best


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
    models |= {name: HFAdapter(config) for name, config in transformers_configs(SMALL, length).items()}
    models |= x_transformers(SMALL, length) | litgpt(SMALL, length)
    seconds = race({name: step(model.train(), ids_BT) for name, model in models.items()}, rounds, "6 × 256")
    share = work(SMALL, batch, length) / seconds[OURS] / matmul_peak()
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
        makers[name] = partial(HFAdapter, configs[name])
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
