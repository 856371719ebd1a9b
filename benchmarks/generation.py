"""What a new token costs: ours against other libraries' models of the same shape, and the three modes against length.

All continue from a cache that holds the prompt; 64 tokens are timed, one by one, and the median counts, the least over
rounds. Ours run by our loop with a sliding cache, transformers' models by their `generate`, of which only the time
between tokens counts, x-transformers and LitGPT by a loop like that of their own `generate`. Of the others only Mistral
has a window: for the rest, only the shorter prompt is the same work. Rows of a batch are copies of one prompt.
Run: python benchmarks/generation.py [rounds]                         (extra: bench; LitGPT joins where it is installed)
"""

import copy
import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from peers import LITGPT, Shape, litgpt_model, x_transformers_model
from rounds import A_A, race, show, write
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from fieldlens import Config, Decoder
from fieldlens.generation.engine import CachedEngine, ReencodeEngine
from fieldlens.generation.sampling import Sampler, Sampling
from fieldlens.models.hf_export import FieldlensForCausalLM

WINDOW, TOKENS, CHUNK = 2048, 64, 512
PROMPTS, BATCHES = (2048, 4096), (1, 8)
SHAPES = {
    "6 × 256": {"layers": 6, "width": 256, "heads": 8, "vocab_size": 32_000},
    "paper": {"layers": 12, "width": 768, "heads": 12, "vocab_size": 50_304},
}
ROUNDS = {"6 × 256": 3, "paper": 1}
"""One more is run than counted here, to warm up; none but that one for the paper's model and more than one row."""
OURS = ("rotary", "alibi", "sandwich")
INSIDE = "rotary in transformers"
RIVALS = {"mistral": "rotary", "llama": "rotary", "gpt_neox": "rotary", "mpt": "alibi", "bloom": "alibi"}
"""Models of transformers, and our scheme that does the same."""
LOOPS = {"x-transformers, rotary": "rotary", LITGPT: "rotary"}
"""Models of other libraries, likewise; not at the paper's size."""

LENGTHS, SMALL, CONTEXT = 8, {"layers": 6, "width": 256, "heads": 8, "vocab_size": 512}, 256
WIDTHS, NARROW = (512, 1024, 2048, 4096), {"layers": 2, "width": 64, "heads": 2, "vocab_size": 512}


def theirs(family: str, layers: int, width: int, heads: int, vocab_size: int) -> Any:
    """A model of transformers with the same layers, width, heads and parameters of each layer."""
    usual = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    room = 4 * max(PROMPTS)
    gated = {**usual, "intermediate_size": 8 * width // 3, "max_position_embeddings": room}  # three matrices for two
    settings: dict[str, dict[str, Any]] = {
        "mistral": {**gated, "num_key_value_heads": heads, "sliding_window": WINDOW},
        "llama": gated,
        "gpt_neox": {**usual, "intermediate_size": 4 * width, "max_position_embeddings": room, "rotary_pct": 1.0},
        "mpt": {"d_model": width, "n_layers": layers, "n_heads": heads, "max_seq_len": room},
        "bloom": {"hidden_size": width, "n_layer": layers, "n_head": heads},
    }  # fmt: skip
    torch.manual_seed(0)
    config = AutoConfig.for_model(family, vocab_size=vocab_size, **settings[family])
    config.eos_token_id = config.bos_token_id = config.pad_token_id = None
    return AutoModelForCausalLM.from_config(config).eval()


class Clock(BaseStreamer):
    """When each token came."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, value: Tensor) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None: ...


Runner = Callable[[], float]


def by_generate(model: Any, cache: Any, ids_BT: Tensor) -> Callable[[int], Runner]:
    """For some rows: goes on from the prompt's cache by `generate`; a cache that keeps everything is cut back."""
    with torch.no_grad():
        for ids_Bt in ids_BT[:, :-1].split(CHUNK, 1):
            model(input_ids=ids_Bt, past_key_values=cache, use_cache=True, logits_to_keep=1)

    def rows(batch: int) -> Runner:
        own, known = copy.deepcopy(cache), [ids_BT.expand(batch, -1).contiguous()]
        own.batch_repeat_interleave(batch)

        def run() -> float:
            clock = Clock()
            made = model.generate(
                known[0], attention_mask=torch.ones_like(known[0]), past_key_values=own, use_cache=True,
                max_new_tokens=TOKENS + 1, do_sample=False, pad_token_id=0, streamer=clock,
            )  # fmt: skip
            if any(own.is_sliding):
                known[0] = made
            else:
                own.crop(-TOKENS - 1)
            return float(np.median(np.diff(clock.times[-1 - TOKENS :])))

        return run

    return rows


def by_reader(decoder: Decoder, ids_BT: Tensor) -> Callable[[int], Runner]:
    """For some rows: goes on from a sliding cache of ours that holds the prompt."""
    filled, prompt = CachedEngine(decoder, WINDOW, chunk=CHUNK), ids_BT.shape[1]
    logits_BV = filled.read(ids_BT, torch.arange(prompt))

    def rows(batch: int) -> Runner:
        reader, sampler = CachedEngine(decoder, WINDOW), Sampler(Sampling(), torch.device("cpu"))
        reader.cache = copy.deepcopy(filled.cache)
        reader.cache.reorder(torch.zeros(batch, dtype=torch.long))
        state: dict[str, Any] = {"logits": logits_BV.expand(batch, -1), "position": prompt}

        def run() -> float:
            times = [time.perf_counter()]
            for _ in range(TOKENS):
                ids_B = sampler.choose(state["logits"])
                state["logits"] = reader.read(ids_B[:, None], torch.tensor([state["position"]]))
                state["position"] += 1
                times.append(time.perf_counter())
            return float(np.median(np.diff(times)))

        return run

    return rows


def by_x_transformers(sizes: Shape, ids_BT: Tensor) -> Callable[[int], Runner]:
    """For some rows: goes on from x-transformers' cache of the prompt, which keeps everything."""
    prompt = ids_BT.shape[1]
    model = x_transformers_model(sizes, prompt + TOKENS, attn_flash=True, rotary_pos_emb=True).eval()

    def rows(batch: int) -> Runner:
        prompt_BT = ids_BT.expand(batch, -1)
        with torch.no_grad():
            first_BTV, filled = model(prompt_BT, return_intermediates=True)
        first_BV = first_BTV[:, -1].clone()

        def run() -> float:
            text_BT, logits_BV, cache, times = prompt_BT, first_BV, filled, [time.perf_counter()]
            with torch.no_grad():
                for _ in range(TOKENS):
                    text_BT = torch.cat([text_BT, logits_BV.argmax(-1, keepdim=True)], 1)
                    logits_BTV, cache = model(text_BT, return_intermediates=True, cache=cache)
                    logits_BV = logits_BTV[:, -1]
                    times.append(time.perf_counter())
            return float(np.median(np.diff(times)))

        return run

    return rows


def by_litgpt(sizes: Shape, ids_BT: Tensor) -> Callable[[int], Runner]:
    """For some rows: goes on from LitGPT's cache of the prompt, which has room for the new tokens."""
    prompt = ids_BT.shape[1]
    model: Any = litgpt_model(sizes, prompt + TOKENS).eval()

    def rows(batch: int) -> Runner:
        model.set_kv_cache(batch_size=batch)
        with torch.no_grad():
            logits_BTV = model(ids_BT.expand(batch, -1), torch.arange(prompt), input_pos_maxp1=prompt)
        first_BV = logits_BTV[:, -1].clone()

        def run() -> float:
            logits_BV, times = first_BV, [time.perf_counter()]
            with torch.no_grad():
                for position in range(prompt, prompt + TOKENS):
                    ids_B1 = logits_BV.argmax(-1, keepdim=True)
                    logits_BV = model(ids_B1, torch.tensor([position]), input_pos_maxp1=position + 1)[:, -1]
                    times.append(time.perf_counter())
            return float(np.median(np.diff(times)))

        return run

    return rows


def against_others(shape: str, rounds: int) -> list[dict[str, Any]]:
    sizes = SHAPES[shape]
    table: list[dict[str, Any]] = []
    specs = OURS if shape != "paper" else OURS[:2]
    decoders = {spec: Decoder(Config(scheme=spec, **sizes)).eval() for spec in specs}  # type: ignore[arg-type]
    rivals = {family: theirs(family, **sizes) for family in RIVALS}
    for prompt in PROMPTS:
        ids_BT = torch.randint(sizes["vocab_size"], (1, prompt))
        filled = {spec: by_reader(decoder, ids_BT) for spec, decoder in decoders.items()}
        if shape != "paper":
            wrapped = FieldlensForCausalLM.of(decoders["rotary"])
            filled[INSIDE] = by_generate(wrapped, wrapped.sliding_cache(WINDOW), ids_BT)
        for family, model in rivals.items():
            filled[family] = by_generate(model, DynamicCache(config=model.config), ids_BT)
        same = {**RIVALS, INSIDE: "rotary", A_A: OURS[0]}
        if shape != "paper":
            filled["x-transformers, rotary"] = by_x_transformers(sizes, ids_BT)
            if importlib.util.find_spec("litgpt"):
                filled[LITGPT] = by_litgpt(sizes, ids_BT)
            same |= {name: scheme for name, scheme in LOOPS.items() if name in filled}
        for batch in BATCHES:
            runners = {name: rows(batch) for name, rows in filled.items()}
            passes = 0 if batch > 1 and shape == "paper" else rounds
            seconds = race(runners, passes, f"{shape}, prompt {prompt}, batch {batch}", own_clock=True)
            table += [
                {
                    "shape": shape,
                    "prompt": prompt,
                    "batch": batch,
                    "model": name,
                    "ms": 1000 * taken,
                    "ratio to ours of the same scheme": taken / seconds[same.get(name, name)],
                }
                for name, taken in seconds.items()
            ]
            show(f"ms per token of {batch} rows, window {WINDOW}", table[-len(seconds) :])
    return table


def against_length() -> list[dict[str, Any]]:
    """Milliseconds per token in each stretch of one window, from an empty cache on."""
    decoder = Decoder(Config(scheme="alibi", **SMALL)).eval()  # type: ignore[arg-type]
    rows = []
    for mode, reader in (
        ("sliding", CachedEngine(decoder, CONTEXT)), ("full", CachedEngine(decoder)),
        ("re-encode", ReencodeEngine(decoder, CONTEXT)),
    ):  # fmt: skip
        times = []
        for position in range(LENGTHS * CONTEXT + 1):
            start = time.perf_counter()
            reader.read(torch.randint(SMALL["vocab_size"], (1, 1)), torch.tensor([position]))
            times.append(time.perf_counter() - start)
        stretches = np.median(np.array(times[1:]).reshape(LENGTHS, CONTEXT), 1) * 1000
        shown = {f"{n + 1} w": float(ms) for n, ms in enumerate(stretches)}
        rows.append({"mode": mode, **shown, "8 w / 2 w": float(stretches[-1] / stretches[1]), "bytes": reader.bytes})
    return rows


def against_window() -> dict[str, float]:
    """Milliseconds per token of re-encoding by the window, and the exponent of its growth."""
    decoder = Decoder(Config(scheme="alibi", **NARROW)).eval()  # type: ignore[arg-type]
    seconds = {}
    for width in WIDTHS:
        reader = ReencodeEngine(decoder, width)
        reader.read(torch.randint(NARROW["vocab_size"], (1, width)), torch.arange(width))
        times = []
        for position in range(width, width + 10):
            start = time.perf_counter()
            reader.read(torch.randint(NARROW["vocab_size"], (1, 1)), torch.tensor([position]))
            times.append(time.perf_counter() - start)
        seconds[str(width)] = 1000 * min(times)
    return {**seconds, "exponent": float(np.polyfit(np.log(WIDTHS), np.log(list(seconds.values())), 1)[0])}


def main() -> None:
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    logging.set_verbosity_error()
    length, width = against_length(), against_window()
    show(f"ms per token in each stretch of w = {CONTEXT} tokens", length)
    show("ms per token of re-encoding, by window", [width])
    rows: list[dict[str, Any]] = []
    for shape in SHAPES:
        rows += against_others(shape, int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS[shape])
        aims = {
            f"{rival} / ours {ours}, least (aim ≥ 1.2)": min(
                row["ratio to ours of the same scheme"] for row in rows if row["model"] == rival
            )
            for rival, ours in (RIVALS | LOOPS).items()
            if any(row["model"] == rival for row in rows)
        }
        show("aims", [{"what": what, "figure": figure} for what, figure in aims.items()])
        write("generation", {"rows": rows, "length": length, "window": width, "aims": aims, "rounds": ROUNDS})


if __name__ == "__main__":
    main()
