"""Is the explorer fast? Frames while 16,384 tokens scroll; time until the page and the first target are there.

Frames come from the browser's own trace; on a busy machine the CPU time of the page's tasks says more than the clock.
The model is given, or has the shape of SmolLM2-135M and random weights. Run: python benchmarks/explore.py [MODEL]
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
from rounds import show, write

from fieldlens.receptive.explorer.block import Explorer
from fieldlens.receptive.explorer.data import Target, embed
from fieldlens.reporting import blocks as report

TOKENS, CONTEXT, STEPS = 16_384, 512, 240
TEXT = (Path(__file__).parent.parent / "docs" / "own-scheme.md").read_text()
CATEGORIES = ["toplevel", "devtools.timeline", "disabled-by-default-devtools.timeline"]


def page() -> str:
    """A report with one target of 16,384 tokens."""
    words = TEXT.replace("\n", " \n").split(" ")
    tokens = [f" {word}" for word in itertools.islice(itertools.cycle(words), TOKENS + 1)]
    shares_T = np.random.default_rng(0).random(TOKENS) ** 4 / np.arange(TOKENS, 0, -1)
    curve = {"tokens": [1, TOKENS], "share": [0.1, 1.0]}
    about = {"name": "m", "colour": "#0072B2", "train_length": None, "curve": curve, "losses": None}
    data = embed([(about, [Target(0, TOKENS, tokens, shares_T / shares_T.sum())])], "log-likelihood")
    return report.page("Scrolling", "", [Explorer(data or {})], {})


def scrolling() -> dict[str, float]:
    """Scroll through the text by the wheel and back by the strip; what the trace says of it."""
    from playwright.sync_api import sync_playwright

    browser_path = shutil.which("chromium") or shutil.which("google-chrome")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as player:
        path, trace = Path(folder) / "page.html", Path(folder) / "trace.json"
        path.write_text(page(), encoding="utf-8")
        browser = player.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1200, "height": 900})
        tab.goto(path.as_uri())
        tab.locator(".explorer-text").hover()
        tab.wait_for_timeout(500)
        tab.evaluate("""() => {
          window.frames_ = [];
          const note = (now) => { frames_.push(now); requestAnimationFrame(note); };
          requestAnimationFrame(note);
        }""")
        browser.start_tracing(page=tab, path=str(trace), categories=CATEGORIES)
        for step in range(STEPS):
            tab.mouse.wheel(0, -700 if step < STEPS // 2 else 700)
        tab.wait_for_timeout(300)
        browser.stop_tracing()
        frames = np.diff(tab.evaluate("frames_"))
        rows = tab.locator(".explorer-text .t").count()
        browser.close()
        tasks = main_thread_tasks(json.loads(trace.read_text())["traceEvents"])
    return {
        "frames": float(len(frames)),
        "median frame, ms": float(np.median(frames)),
        "longest frame, ms of wall clock": float(frames.max()),
        "frames above 50 ms": float((frames > 50).sum()),
        "longest task of the page, ms of CPU (aim ≤ 50)": max(tasks),
        "99th percentile of its tasks, ms of CPU": float(np.percentile(tasks, 99)),
        "elements of tokens": float(rows),
    }


def main_thread_tasks(events: list[dict[str, Any]]) -> list[float]:
    """CPU milliseconds of each task of the page's main thread."""
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    return [
        event["tdur"] / 1000
        for event in events
        if "tdur" in event
        and event["ph"] == "X"
        and "RunTask" in event["name"]
        and (event["pid"], event["tid"]) in threads
    ]


def random_model(folder: Path) -> Path:
    """A model of the shape of SmolLM2-135M, with a small tokenizer."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator([TEXT], trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = LlamaConfig(
        vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, tie_word_embeddings=True, max_position_embeddings=8192,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def cpu_seconds(process: int) -> float:
    """CPU seconds that a process has used so far, on Linux."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serving(model: str) -> list[dict[str, Any]]:
    """Seconds from the start of the command until the page, the model and the first target are there, on one thread."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "fieldlens", "explore", model, "--json", "--no-browser", "--threads", "1"]
    rows: list[dict[str, Any]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        about = json.loads(process.stdout.readline())

        def passed(stage: str) -> None:
            rows.append(
                {"until": stage, "seconds": time.perf_counter() - start, "CPU seconds": cpu_seconds(process.pid)}
            )

        def ask(path: str, body: dict[str, Any]) -> dict[str, Any]:
            address = f"http://127.0.0.1:{about['port']}/api/{path}"
            request = urllib.request.Request(address, json.dumps(body).encode(), {"X-Fieldlens-Token": about["token"]})
            with urllib.request.urlopen(request) as answer:
                return json.loads(answer.read().splitlines()[-1])["result"]

        try:
            urllib.request.urlopen(about["url"]).read()
            passed("the page (aim ≤ 2 s)")
            ask("model", {})
            passed("the model is loaded")
            text = ask("text", {"text": TEXT[:4000]})["id"]
            ask("target", {"text": text, "at": CONTEXT})
            passed(f"the first target, {CONTEXT} tokens (aim ≤ 10 s)")
            ask("target", {"text": text, "at": CONTEXT - 1})
            passed("the second target")
        finally:
            process.terminate()
    return rows


def main() -> None:
    frames = scrolling()
    show(f"scrolling {TOKENS:,} tokens", [{"what": what, "figure": figure} for what, figure in frames.items()])
    with tempfile.TemporaryDirectory() as folder:
        model = sys.argv[1] if len(sys.argv) > 1 else str(random_model(Path(folder) / "smollm2-shape"))
        rows = serving(model)
    show("fieldlens explore, one thread", rows)
    load = f"{os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    write("explore", {"model": Path(model).name, "load average": load, "scrolling": frames, "serving": rows})


if __name__ == "__main__":
    main()
