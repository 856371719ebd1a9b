"""A time budget: how many segments, targets and windows fit into it, and the command that repeats a measurement."""

import dataclasses
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.receptive.request import MeasureRequest
from fieldlens.receptive.rounds import MIN_ROUNDS, PER_SEGMENT, ROUND, check_segments, context_lengths, context_passes

MIN_SEGMENTS, MIN_TARGETS, MIN_WINDOWS = 4, MIN_ROUNDS * ROUND * PER_SEGMENT, 3
SHARES = (1.0, 0.75, 0.5, 0.35, 0.25, 0.15, 0.0)
"""Shares of the requested segments and targets that are tried, down to the minimum."""
RESERVE = 0.85
"""Share of the remaining time that is planned; the rest is for reports and for estimates that are too low."""
REPORT = 0.05
"""Share of the budget that the check leaves for the statistics and the report."""


@dataclass(frozen=True)
class Costs:
    """Seconds of one gradient and of one forward pass at the full length; layers and a passage in gradients."""

    gradient: float
    forward: float
    details: float
    length: int
    windowed: float = 0.0
    """Seconds of a forward pass with a window."""

    def seconds(self, request: MeasureRequest, windows: int) -> float:
        """Expected duration of a measurement with this many windows.

        A probe cuts the context of each segment to L, L/2, L/4 …, about 2 forward passes.
        """
        gradients = request.segments + (0 if request.plain else self.details)
        contexts = context_passes(context_lengths(self.length), request.targets) * self.forward
        segment = contexts + windows * (self.windowed or self.forward)
        probes = 2 * request.segments * request.probe * self.forward
        return (
            gradients * self.gradient + probes + check_segments(request.targets, self.length) * request.check * segment
        )


@dataclass(frozen=True)
class Budget:
    """The time for a measurement, and the options that the user gave, which stay as they are."""

    minutes: float
    fixed: frozenset[str] = frozenset()
    start: float = dataclasses.field(default_factory=time.monotonic)
    """When the time began: before libraries are imported, models loaded and texts tokenized."""

    def __post_init__(self) -> None:
        if not self.minutes > 0:
            raise BadInput(f"minutes must be more than 0, got {self.minutes}")

    @property
    def end(self) -> float:
        """When the report must be written."""
        return self.start + 60 * self.minutes

    def check_deadline(self, end: float) -> float | None:
        """When the check of a model must be done that ends at this time; None if the number of targets was given."""
        return None if "targets" in self.fixed else end - REPORT * 60 * self.minutes

    def fit(
        self, request: MeasureRequest, costs: Costs, windows: Sequence[int], seconds: float
    ) -> tuple[MeasureRequest, bool]:
        """The request that costs at most this many seconds, and whether there is one.

        Windows are dropped first, the smallest ones, down to MIN_WINDOWS; then there are fewer segments and targets; at
        last, layers and the passage are skipped.
        """
        smallest = request
        for plain in (False, True):
            for share in SHARES:
                for count in dict.fromkeys((len(windows), 6, 4, MIN_WINDOWS) if share == 1 else (MIN_WINDOWS,)):
                    smallest = self._smaller(request, windows, min(count, len(windows)), share, plain)
                    used = len(windows if smallest.windows is None else smallest.windows)
                    if costs.seconds(smallest, used) <= RESERVE * seconds:
                        return smallest, True
        return smallest, False

    def _smaller(
        self, request: MeasureRequest, windows: Sequence[int], count: int, share: float, plain: bool
    ) -> MeasureRequest:
        """The request with the largest `count` windows and a share of its segments and targets."""
        changes: dict[str, Any] = {
            "segments": min(request.segments, max(MIN_SEGMENTS, round(share * request.segments))),
            "targets": min(request.targets, MIN_TARGETS * max(1, round(share * request.targets / MIN_TARGETS))),
            "plain": request.plain or plain,
            **({"windows": tuple(sorted(windows)[-count:])} if count < len(windows) else {}),
        }
        free = {key: value for key, value in changes.items() if key not in self.fixed}
        return dataclasses.replace(request, **free)


KEPT = (
    "text", "corpus", "target", "average", "window", "method", "target_seed", "train_length", "split", "cache_dtype",
)  # fmt: skip
"""Options that an explicit command repeats if they differ from their defaults."""


def explicit_command(model: str, request: MeasureRequest, length: int, options: Sequence[str] = ()) -> str:
    """The command that gives the same numbers on any machine: every count is written out.

    `options` are those of the command line that are not part of the request, such as --out.
    """
    words = ["fieldlens", "measure", model, "--length", str(length), "--segments", str(request.segments)]
    if request.check:
        words += ["--check", "--targets", str(request.targets), "--margin", f"{request.margin:g}"]
        words += ["--windows", ",".join(map(str, request.windows))] if request.windows is not None else []
    words += [f"--{flag}" for flag in ("plain", "probe") if getattr(request, flag)]
    defaults = {field.name: field.default for field in dataclasses.fields(MeasureRequest)}
    for name in KEPT:
        value = getattr(request, name)
        if value != defaults[name]:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join([*words, *options, "--minutes", "0"])
