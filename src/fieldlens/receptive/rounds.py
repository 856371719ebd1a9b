"""Rounds of a check: a few segments at a time, until all targets are evaluated or the time is over."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fieldlens.core.events import Event, Progress, Watch
from fieldlens.data.text import Text
from fieldlens.evaluation.evaluate import evaluate
from fieldlens.evaluation.protocols import Anchor, draw, eligible, protocol
from fieldlens.evaluation.protocols.consecutive import SHORTFALL, Consecutive
from fieldlens.evaluation.result import Evaluation, Plan, merged
from fieldlens.models.adapters.base import ModelAdapter
from fieldlens.receptive.request import MeasureRequest

PER_SEGMENT = 32
"""Maximum number of consecutive targets in a segment, which one pass over a context of 512 tokens or more evaluates."""
ROUND, MIN_ROUNDS = 5, 2
"""Segments in a round, and the number of rounds that are evaluated whatever the deadline."""


def check_protocol(targets: int, length: int) -> Consecutive:
    """The protocol of a check with this many targets: MIN_ROUNDS rounds or more, up to PER_SEGMENT targets per segment.

    A segment has no more targets than one pass over `length` tokens evaluates: at the same cost, more segments with
    fewer targets each give narrower intervals.
    """
    chosen = protocol("consecutive", k=max(1, min(PER_SEGMENT, length // SHORTFALL, targets // (ROUND * MIN_ROUNDS))))
    assert isinstance(chosen, Consecutive)
    return chosen


def check_segments(targets: int, length: int) -> int:
    """The number of segments of a check with at least this many targets."""
    return -(-targets // check_protocol(targets, length).k)


def context_passes(lengths: Sequence[int], targets: int) -> float:
    """Cost of all contexts of one segment, in forward passes over the longest."""
    anchor, longest = Anchor(0, max(lengths)), max(lengths)
    rows = check_protocol(targets, longest).excerpts
    return sum(length * len(rows(anchor, length, longest)) for length in lengths) / longest


def context_lengths(length: int, train_length: int | None = None) -> tuple[int, ...]:
    """The contexts of a check: powers of two from 16 on, the length itself, and the training length below it."""
    lengths = {2**n for n in range(4, 30) if 2**n < length} | {length}
    return tuple(sorted(lengths | ({train_length} if train_length and train_length < length else set())))


class Rounds:
    """Evaluates contexts and windows on the same targets, round by round.

    Rounds and their batches are the same whether or not there is a deadline, so the numbers are, too.
    """

    def __init__(
        self,
        adapter: ModelAdapter,
        text: Text,
        request: MeasureRequest,
        lengths: Sequence[int],
        windows: Sequence[int],
        *,
        about: Mapping[str, Any],
        watch: Watch,
        journal: Path | None,
    ) -> None:
        self.adapter, self.text, self.request, self.watch, self.journal = adapter, text, request, watch, journal
        self.protocol, self.about = check_protocol(request.targets, max(lengths)), dict(about)
        self.plans = {"contexts": (tuple(lengths), request.window)}
        self.plans |= {f"window {width}": ((max(lengths),), width) for width in windows}
        passes = context_passes(lengths, request.targets)
        self.weights = {name: passes if name == "contexts" else 1.0 for name in self.plans}
        self.longest, self.done, self.count = max(lengths), 0, 0
        self.start, self.deadline = 0.0, math.inf

    def run(self, deadline: float | None = None) -> dict[str, Evaluation]:
        """The evaluations by name. After the first MIN_ROUNDS, rounds that would end past the deadline are left out."""
        parts: dict[str, list[Evaluation]] = {name: [] for name in self.plans}
        groups = list(self._groups())
        self.count, self.deadline = len(groups), math.inf if deadline is None else deadline
        self.start = time.monotonic()
        for anchors in groups:
            for name in self.plans:
                parts[name].append(self._evaluate(name, anchors))
            self.done += 1
            if self.done >= self._expected(self.done):
                break
        return {name: merged(evaluations) for name, evaluations in parts.items()}

    def _expected(self, done: float) -> int:
        """How many rounds there will be, if those up to the deadline take as long as the ones that are done."""
        now = time.monotonic()
        seconds = (now - self.start) / done if done else 0.0
        left = (self.deadline - now) / seconds if seconds else math.inf
        return min(self.count, max(MIN_ROUNDS, math.ceil(done), int(min(done + left, self.count))))

    def _groups(self) -> Iterator[list[Anchor]]:
        """The anchors of each round. Draws of one seed are nested, so more rounds add anchors to those of fewer."""
        counts = [len(ids) for ids in self.text.documents]
        spans = eligible(counts, self.protocol, self.longest)
        total, before = check_segments(self.request.targets, self.longest), set[Anchor]()
        for stop in range(ROUND, total + ROUND, ROUND):
            anchors = draw(spans, min(stop, total), self.request.target_seed)
            yield [anchor for anchor in anchors if anchor not in before]
            before = set(anchors)

    def _evaluate(self, name: str, anchors: list[Anchor]) -> Evaluation:
        lengths, window = self.plans[name]
        plan = Plan(self.protocol, lengths, len(anchors), self.request.target_seed, window, self.text.bos)
        journal = self.journal
        if journal is not None:
            label = f"{self.protocol.k}-{self.done}-{name.replace(' ', '-')}"
            journal = journal.with_name(f"{journal.stem}-{label}{journal.suffix}")
        options: dict[str, Any] = {"about": self.about, "sizes": self.text.sizes, "journal": journal}
        return evaluate(self.adapter, self.text.documents, plan, anchors=anchors, watch=self._watch(name), **options)

    def _watch(self, name: str) -> Callable[[Event], None]:
        """Report the progress of one evaluation as progress of all rounds; its own estimates are dropped."""
        names = list(self.plans)
        before, total = sum(self.weights[other] for other in names[: names.index(name)]), sum(self.weights.values())

        def report(event: Event) -> None:
            if isinstance(event, Progress):
                share = (before + self.weights[name] * event.done / event.total) / total
                part = event.part.replace("length", "context") if name == "contexts" else name
                done = self.done + share
                self.watch(Progress(done, self._expected(done), part))

        return report
