"""Which attention kernel runs, and why: by device, dtype, shape and scheme. FIELDLENS_KERNEL overrides the choice."""

import os
from collections.abc import Iterable
from typing import NamedTuple

import torch

from fieldlens.core.errors import unknown
from fieldlens.kernels import cpu_flash, flex
from fieldlens.kernels.layout import FEW
from fieldlens.schemes.base import Scheme

VARIABLE = "FIELDLENS_KERNEL"

WIDE = (torch.float32, torch.float64)
"""Dtypes of queries that are also those of biases; in narrower ones, a bias would be rounded."""

KERNELS = {
    "flex": "compiled FlexAttention",
    "blocks": "blocks of queries with public operators",
    "sdpa": "scaled_dot_product_attention with the whole mask",
}
"""Kernels that FIELDLENS_KERNEL can ask for."""


class Case(NamedTuple):
    """What the choice of a kernel depends on."""

    device: torch.device
    dtype: torch.dtype
    head_width: int
    consecutive: bool = True
    """Whether queries and keys are at consecutive positions and the queries are the last keys."""
    few: bool = False
    """Whether there are so few queries that a padded block of them would be wasteful."""
    fixed: bool = True
    """Whether the bias is not learned and has the dtype of the queries."""
    gradient: bool = False
    sink: bool = False


class Choice(NamedTuple):
    """A kernel and the reason for it."""

    kernel: str
    reason: str

    def __str__(self) -> str:
        return f"{self.kernel} ({self.reason})"


PLAIN = Choice("sdpa", "plain causal attention")
GENERAL = Choice("general", "the scheme computes with scores")
SHORT = Choice("one mask", f"texts of at most {FEW} tokens")


def requested_kernel() -> str | None:
    """The value of FIELDLENS_KERNEL; raises `BadInput` for an unknown one."""
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    if name not in KERNELS:
        raise unknown(f"value of {VARIABLE}", name, KERNELS)
    return name


def wants_flex(device: torch.device) -> bool:
    """Whether flex is the kernel of this device, for the inputs that it supports."""
    requested = requested_kernel()
    return requested == "flex" or (requested is None and device.type == "cuda")


def choose_kernel(case: Case) -> Choice:
    """The kernel for attention with a bias, a window or a sink. Plain causal attention and tiny masks do not ask."""
    requested = requested_kernel()
    if requested in ("blocks", "sdpa"):
        return Choice(requested, f"{VARIABLE}={requested}")
    reason = ""
    if wants_flex(case.device):
        obstacle = flex_obstacle(case)
        if obstacle is None:
            return Choice("flex", f"{VARIABLE}=flex" if requested else "CUDA")
        reason = f"not flex: {obstacle}"
    if case.fixed and case.device.type == "cpu" and cpu_flash.available():
        return Choice("cpu_flash", reason or "fixed bias on a CPU")
    kind = "learned bias" if case.dtype in WIDE else str(case.dtype).removeprefix("torch.")
    return Choice("blocks", reason or (f"{kind} on a CPU" if case.device.type == "cpu" else case.device.type))


def flex_obstacle(case: Case) -> str | None:
    """Why flex cannot compute this case; None if it can."""
    width, on_cpu = case.head_width, case.device.type == "cpu"
    obstacles = {
        f"it has no backward pass on {case.device.type}": case.device.type not in ("cuda", "cpu"),
        f"head width {width} is less than {flex.MIN_HEAD_WIDTH}": width < flex.MIN_HEAD_WIDTH,
        "positions are not consecutive": not case.consecutive,
        "few queries": case.few,
        "float64": flex.COMPILED and case.dtype == torch.float64,
        "compiled on a CPU it has no backward pass": flex.COMPILED and on_cpu and case.gradient,
        "compiled on a CPU it has no normaliser for sinks": flex.COMPILED and on_cpu and case.sink,
    }
    for obstacle, present in obstacles.items():
        if present:
            return obstacle
    return flex.failure(case.device, case.dtype, case.head_width) if flex.COMPILED else None


def usual_kernel(scheme: Scheme, device: torch.device, dtype: torch.dtype, training: bool, few: bool = False) -> Choice:
    """The kernel of a scheme for texts of more than 64 tokens; `SHORT` serves shorter ones, unless it is plain.

    `few` asks for the kernel of at most 64 queries of such a text.
    """
    if scheme.takes_scores:
        return GENERAL
    options = scheme.softmax_options
    sink = scheme.has_sink or (options is not None and options.sink_H is not None)
    if not (scheme.overrides("bias") or scheme.takes_input or sink or scheme.window):
        return PLAIN
    learned = training and scheme.overrides("bias") and any(True for _ in scheme.parameters())
    fixed = not learned and dtype in WIDE
    return choose_kernel(Case(device, dtype, scheme.head_width, few=few, fixed=fixed, gradient=training, sink=sink))


def describe_kernels(
    schemes: Iterable[Scheme], device: torch.device, dtype: torch.dtype, training: bool, last_queries: bool = False
) -> str:
    """The kernels of the schemes of a decoder with their reasons, as results record them.

    With `last_queries` also those of a layer that computes only the last queries of a text.
    """
    counts = (False, True) if last_queries else (False,)
    choices = {usual_kernel(scheme, device, dtype, training, few) for scheme in schemes for few in counts}
    if not choices <= {PLAIN, GENERAL}:
        choices.add(SHORT)
    return "; ".join(sorted(map(str, choices)))
