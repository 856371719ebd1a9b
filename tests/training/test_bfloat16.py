"""Training in bfloat16 as in the paper: autocast, float32 master weights, biases in float32, resumable to the bit.

Runs in a child process with ONEDNN_MAX_CPU_ISA: some CPUs report AMX and fail with an illegal instruction, and CPUs
without bfloat16 instructions emulate them.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import short_training as training
from conftest import DEVICES

PROGRAM = """
import json, signal, sys
from dataclasses import replace
from pathlib import Path
import torch
import short_training as training
from fieldlens.core.device import Machine
from fieldlens.core.events import TrainingStep
from fieldlens.training.loop import Stopped, train
from fieldlens.training.recipe import recipe
from fieldlens.training.trainer import Trainer

torch.set_num_threads(1)
folder, corpus = Path(sys.argv[1]), sys.argv[2]
chosen = recipe("smoke", corpus=corpus, steps=12, scheme="t5:sink=learned", length=96, batch=4, width=64)

def interrupt(event):
    if isinstance(event, TrainingStep) and event.step == 5:
        signal.raise_signal(signal.SIGTERM)

seen = {}
advance = Trainer.advance
def observe(trainer):
    row = advance(trainer)
    seen[str(trainer.dtype)] = sorted({str(p.dtype) for p in trainer.decoder.parameters()} |
                                      {str(p.grad.dtype) for p in trainer.decoder.parameters() if p.grad is not None})
    return row
Trainer.advance = observe

half, full = Machine(sys.argv[3], "bfloat16", 1), Machine(sys.argv[3], "float32", 1)
train(chosen, folder / "half", machine=half)
train(chosen, folder / "full", machine=full)
train(replace(chosen, seed=7), folder / "seed", machine=full)
try:
    train(chosen, folder / "resumed", machine=half, watch=interrupt)
except Stopped:
    train(chosen, folder / "resumed", machine=half, resume=True)
print(json.dumps(seen))
"""


@pytest.fixture(scope="module", params=DEVICES)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("half")
    corpus = training.write_corpus(folder / "corpus")
    settings = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", "PYTHONPATH": ":".join(sys.path)}
    child = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder), str(corpus), request.param],
        env=training.environment(folder / "cache", **settings), capture_output=True, text=True, check=False,
    )  # fmt: skip
    if "bfloat16 does not run on this CPU" in child.stderr:
        pytest.skip("bfloat16 does not run on this CPU")
    assert child.returncode == 0, child.stderr
    return folder, json.loads(child.stdout.splitlines()[-1])


def test_master_weights_stay_in_float32(runs: tuple[Path, dict[str, Any]]) -> None:
    folder, dtypes = runs
    assert dtypes["torch.bfloat16"] == ["torch.float32"]
    machine = json.loads((folder / "half" / "config.json").read_text())["machine"]
    assert machine["dtype"] == "bfloat16"
    kernel = "blocks (bfloat16 on a CPU)" if machine["device"] == "cpu" else "flex (CUDA)"
    assert machine["kernel"] == f"{kernel}; one mask (texts of at most 64 tokens)"


def test_the_loss_curve_is_that_of_float32_within_noise(runs: tuple[Path, dict[str, Any]]) -> None:
    """Not equal, but nearer to float32 than another seed is."""
    losses = {
        name: np.array([row["loss"] for row in training.logged(runs[0] / name)]) for name in ("half", "full", "seed")
    }
    error, noise = (np.abs(losses[name] - losses["full"]).mean() for name in ("half", "seed"))
    assert 0 < error < 0.2 * noise


def test_bfloat16_resumes_to_the_bit(runs: tuple[Path, dict[str, Any]]) -> None:
    assert training.ending(runs[0] / "resumed") == training.ending(runs[0] / "half")


SCORES = """
import torch
import fieldlens
torch.manual_seed(0)
q, k, v = (torch.randn(1, 2, 96, 16).bfloat16() for _ in range(3))
scheme = fieldlens.scheme("t5", 2, 16)
def run():
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    scheme.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        out = fieldlens.attention(*inputs, scheme)
    out.float().cos().sum().backward()
    return out.float(), *(x.grad.float() for x in inputs), scheme.table_NH.grad.clone()
def reference():
    inputs = [x.float().requires_grad_() for x in (q, k, v)]
    scheme.zero_grad()
    out = fieldlens.attention(*inputs, scheme)
    out.to(torch.bfloat16).float().cos().sum().backward()
    return out, *(x.grad for x in inputs), scheme.table_NH.grad.clone()
print([float((a - b).abs().max() / b.abs().max()) for a, b in zip(run(), reference())])
"""


def test_autocast_does_not_round_scores() -> None:
    """Under autocast, scores stay in float32: what is left is the rounding of outputs and of gradients."""
    settings = training.environment(
        Path("unused"), ONEDNN_MAX_CPU_ISA="AVX512_CORE_BF16", PYTHONPATH=":".join(sys.path)
    )
    child = subprocess.run([sys.executable, "-c", SCORES], env=settings, capture_output=True, text=True, check=False)
    if child.returncode < 0:
        pytest.skip("bfloat16 does not run on this CPU")
    assert child.returncode == 0, child.stderr
    errors = json.loads(child.stdout)
    assert max(errors[:4]) < 2**-8, errors
    assert errors[4] < 2**-9, errors
