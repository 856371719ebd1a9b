"""The result of an evaluation: the loss of every target at every length, with the plan and the model."""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.context_use import ContextUse, usual_context_use
from fieldlens.evaluation.equivalence import MARGIN
from fieldlens.evaluation.protocols import Anchor, Protocol
from fieldlens.evaluation.statistics import Interval, bootstrap_mean, finite
from fieldlens.evaluation.verdict import Verdict, describe, judge
from fieldlens.storage.records import EvaluationRecord, PlanRecord
from fieldlens.storage.results import read_result, write_result
from fieldlens.storage.shape import check_shape, positive
from fieldlens.training.loss import LARGEST

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 10
"""With fewer documents than this, segments are resampled instead, which assumes that they are independent."""
KIND = "fieldlens evaluation"


@dataclass(frozen=True)
class Plan:
    """What is evaluated: everything but the model and the text."""

    protocol: Protocol
    lengths: tuple[int, ...]
    segments: int = 1000
    target_seed: int = 0
    window: int | None = None
    bos: int | None = None
    """A token that is put before every context and not counted in its length."""

    def __post_init__(self) -> None:
        try:
            lengths = sorted({operator.index(length) for length in self.lengths})
            for key in ("segments", "target_seed", "window", "bos"):
                value = getattr(self, key)
                object.__setattr__(self, key, None if value is None else operator.index(value))
        except TypeError:
            raise BadInput("lengths, segments, seed and window must be integers") from None
        if not lengths or lengths[0] < 1:
            raise BadInput(f"lengths must be integers of at least 1, got {', '.join(map(str, self.lengths)) or 'none'}")
        object.__setattr__(self, "lengths", tuple(lengths))
        self.protocol.check(lengths)

    @property
    def longest(self) -> int:
        return self.lengths[-1]

    def about(self) -> PlanRecord:
        """What decides the numbers, as results record it.

        Results are found by the hash of this. A field that is added later must be left out where it has its default,
        so that the hashes of earlier results stay valid.
        """
        return {
            "protocol": self.protocol.about(),
            "lengths": list(self.lengths),
            "segments": self.segments,
            "target_seed": self.target_seed,
            "window": self.window,
            "bos": self.bos,
        }


@dataclass(frozen=True, repr=False)
class Evaluation:
    """The loss of every target at every length, with a record of plan, model and text in `about`."""

    about: EvaluationRecord
    losses: dict[int, Tensor]
    """Negative log-likelihoods in nats, in the order of the targets."""
    targets: list[Anchor]
    """(document, offset) of each target; where targets differ by length, of the start of the context."""
    sizes: np.ndarray | None = field(default=None, repr=False)
    """Bytes of each target."""

    @property
    def documents(self) -> np.ndarray:
        return np.array([target.document for target in self.targets])

    @property
    def counts(self) -> dict[str, int]:
        """The number of targets, of segments that were drawn, and of documents."""
        documents = len(set(self.documents.tolist()))
        return {"targets": len(self.targets), "segments": self.about["segments"], "documents": documents}

    @property
    def counts_text(self) -> str:
        """The counts in words: "320 targets in 20 segments of 7 documents"."""
        numbers = {name: f"{n:,} {name if n != 1 else name[:-1]}" for name, n in self.counts.items()}
        return "{targets} in {segments} of {documents}".format(**numbers)

    def units(self) -> tuple[np.ndarray, str]:
        """Which targets are resampled together: those of a document, or of a segment if there are few documents."""
        documents_N = self.documents
        if len(set(documents_N.tolist())) >= FEW:
            return documents_N, "documents"
        per_segment = max(1, len(documents_N) // self.about["segments"])
        return np.arange(len(documents_N)) // per_segment, "segments"

    @property
    def table(self) -> dict[int, float]:
        """Perplexity by length."""
        return {length: _exp(float(losses.double().mean())) for length, losses in self.losses.items()}

    @property
    def by_bytes(self) -> bool:
        """Whether targets are bytes, not tokens, to compare models with different tokenizers."""
        return self.about.get("align") == "bytes"

    @property
    def bits_per_byte(self) -> dict[int, float] | None:
        """Bits per byte of text by length."""
        if self.sizes is None:
            return None
        if self.by_bytes:
            return {length: float(self.quantities(length).mean()) for length in self.losses}
        total = math.log(2) * float(self.sizes.sum())
        return {length: float(losses.double().sum()) / total for length, losses in self.losses.items()}

    def quantities(self, length: int) -> np.ndarray:
        """The value of each target: its loss in nats, or for a byte its share of its token's bits."""
        losses_N = self.losses[length].double().numpy()
        return losses_N / self.sizes / math.log(2) if self.by_bytes else losses_N

    def score(self, length: int) -> float:
        """The number in tables: perplexity, or bits per byte if targets are bytes."""
        mean = float(self.quantities(length).mean())
        return mean if self.by_bytes else _exp(mean)

    @property
    def quantity(self) -> str:
        """The name of the number in tables."""
        return "bits per byte" if self.by_bytes else "perplexity"

    def rows(self) -> list[dict[str, Any]]:
        """One row per length: the score with its 95 % interval, the mean loss, and bits per byte."""
        bits = self.bits_per_byte
        units_N, unit = self.units()
        rows = []
        for length, losses in self.losses.items():
            interval = bootstrap_mean(self.quantities(length), units_N)
            if interval.low < 0:  # no loss is: there are too few documents for an interval
                interval = Interval(math.nan, math.nan)
            low, high = interval if self.by_bytes or not all(map(math.isfinite, interval)) else map(_exp, interval)
            row: dict[str, Any] = {
                "length": length,
                self.quantity.replace(" ", "_"): finite(self.score(length)),
                "low": finite(low),
                "high": finite(high),
                "resampled": unit,
                "nll": float(losses.double().mean()),
            }
            if bits:
                row.setdefault("bits_per_byte", bits[length])
            rows.append(row)
        return rows

    @property
    def train_length(self) -> int | None:
        return self.about["model"]["train_length"]

    @property
    def margin(self) -> float:
        """Relative change of perplexity that counts as none."""
        return self.about.get("margin", MARGIN)

    @property
    def context_use(self) -> ContextUse | None:
        """How much the loss falls from a quarter of the training length to the training length; None if unknown."""
        return usual_context_use(self) if self.about["protocol"].get("same_targets", True) else None

    @property
    def verdict(self) -> Verdict:
        """How the loss changes past the training length, with the evidence, and whether the model uses its context."""
        use = self.context_use
        return {**self._judge(), "context_use": use.to_json() if use else None}

    def _judge(self) -> Verdict:
        if not self.about["protocol"].get("same_targets", True):
            return {"verdict": None, "reason": "this protocol predicts different targets at each length"}
        if self.by_bytes:
            return {"verdict": None, "reason": "a verdict needs --align tokens"}
        losses = {length: values.double().numpy() for length, values in self.losses.items()}
        return judge(losses, *self.units(), self.train_length, self.margin)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot perplexity against length on `ax`, by default on a new figure; return the matplotlib Axes."""
        from fieldlens.reporting.plots import perplexity_lines

        return perplexity_lines([self.line()], self.quantity, ax)

    def line(self) -> Any:
        """The evaluation as a line of a figure."""
        from fieldlens.reporting.plots import Line

        model, rows = self.about["model"], self.rows()
        keys = ("length", self.quantity.replace(" ", "_"), "low", "high")
        lengths, middle, low, high = ([row[key] for row in rows] for key in keys)
        return Line(model["name"], model.get("scheme"), lengths, middle, low, high, self.train_length)

    def to_frame(self) -> Any:
        """One row per length as a pandas DataFrame."""
        from fieldlens.reporting.table import to_frame

        return to_frame(self.rows())

    def __repr__(self) -> str:
        if not self.losses:
            return f"Evaluation({self.about['model']['name']}: diverged)"
        scores = ", ".join(f"{length}: {self.score(length):.4g}" for length in self.losses)
        return f"Evaluation({self.about['model']['name']}, {self.quantity} {{{scores}}}, {len(self.targets)} targets)"

    def _repr_html_(self) -> str:
        from fieldlens.reporting.table import Table

        name = self.about["model"]["name"]
        if not self.losses:
            return Table(["model", "state"], [[name, "diverged"]]).html()
        verdict = self.verdict
        cells = [
            [str(row["length"]), f"{self.score(row['length']):.4g}", *(_shown(row[key]) for key in ("low", "high"))]
            for row in self.rows()
        ]
        notes = [f"verdict: {describe(verdict) if verdict['verdict'] else verdict['reason']}"]
        notes += [verdict["context_use"]["text"]] if verdict["context_use"] else []
        return Table(["length", self.quantity, "95 % low", "95 % high"], cells, name, notes).html()

    def to_json(self) -> dict[str, Any]:
        """Everything but the losses of single targets."""
        if not self.losses:
            return dict(self.about)
        documents = len(set(self.documents.tolist()))
        counts = {"targets": len(self.targets), "documents": documents}
        return {"kind": KIND, **self.about, **counts, "results": self.rows(), "verdict": self.verdict}

    def save(self, path: Path) -> None:
        """Write a sealed JSON file, with the losses beside it."""
        arrays = {
            "losses": torch.stack(list(self.losses.values())).numpy(),
            "targets": np.array(self.targets, np.int32),
            **({"sizes": self.sizes} if self.sizes is not None else {}),
        }
        write_result(path, self.to_json(), arrays)


def merged(evaluations: Sequence[Evaluation]) -> Evaluation:
    """Evaluations of one model and plan on disjoint targets as one, with the targets in order."""
    first = evaluations[0]
    targets = [target for evaluation in evaluations for target in evaluation.targets]
    order = sorted(range(len(targets)), key=targets.__getitem__)
    losses = {length: torch.cat([part.losses[length] for part in evaluations])[order] for length in first.losses}
    sizes = [evaluation.sizes for evaluation in evaluations if evaluation.sizes is not None]
    about = first.about.copy()
    about["segments"] = sum(evaluation.about["segments"] for evaluation in evaluations)
    about["seconds"] = sum(evaluation.about["seconds"] for evaluation in evaluations)
    return Evaluation(
        about,
        losses,
        [targets[number] for number in order],
        np.concatenate(sizes)[order] if len(sizes) == len(evaluations) else None,
    )


def read_evaluation(path: Path) -> Evaluation:
    """A saved evaluation, verified."""
    about, arrays = read_result(path)
    if about.get("kind") != KIND:
        raise BadInput(f"{path} is not the result of an evaluation")
    try:
        _check_about(about)
        if about.get("state") == "diverged":
            return Evaluation(cast(EvaluationRecord, about), {}, [])
        losses_LN, targets = arrays["losses"], [Anchor(*row) for row in arrays["targets"].tolist()]
        losses = dict(zip(about["lengths"], torch.from_numpy(losses_LN), strict=True))
        if losses_LN.shape != (len(about["lengths"]), about["targets"]) or len(targets) != about["targets"]:
            raise ValueError(f"expected {about['targets']} targets, the losses have the shape {losses_LN.shape}")
        if len(losses) != len(about["lengths"]) or (about.get("align") == "bytes" and "sizes" not in arrays):
            raise ValueError("a length is repeated, or the sizes of the targets are missing")
        if not np.isfinite(losses_LN).all():
            raise ValueError("some losses are not finite")
        for key in ("results", "verdict", "targets", "documents"):
            del about[key]
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"is not a complete result of an evaluation ({type(error).__name__}: {error})"
        raise BadInput(f"{path} {problem}: delete it and re-run the command") from None
    return Evaluation(cast(EvaluationRecord, about), losses, targets, arrays.get("sizes"))


MODEL = {
    "name": str, "train_length": (positive, None), "scheme?": (str, None), "weights?": (str, None),
    "configuration?": (str, None), "dtype?": (str, None), "folder?": str, "recipe?": {"scheme": str, "seed?": int},
}  # fmt: skip
"""The shape of a model's record in a result."""

SHAPE = {
    "model": MODEL, "protocol": {"name": str, "same_targets?": bool}, "lengths": [positive], "segments": positive,
    "targets": positive, "window": (positive, None), "align?": str, "versions?": {"fieldlens": str},
}  # fmt: skip
"""The shape of an evaluation."""


def _check_about(about: dict[str, Any]) -> None:
    """Check the keys that every reader needs."""
    check_shape(about, SHAPE if about.get("state") != "diverged" else {"model": MODEL, "window": (positive, None)})


def _shown(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def _exp(mean: float) -> float:
    """The perplexity of a mean loss; inf on overflow."""
    return math.exp(mean) if mean < LARGEST else math.inf
