"""The result of an evaluation: the loss of every target at every length, and what was asked."""

import math
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols import Anchor, Protocol
from fieldlens.evaluation.statistics import bootstrap_mean, finite
from fieldlens.evaluation.verdict import judge
from fieldlens.storage.results import read_arrays, read_json, write_arrays, write_json
from fieldlens.training.loss import LARGEST

FEW = 10
"""With fewer documents than this segments are resampled one by one: a weaker argument, and said so."""
KIND = "fieldlens evaluation"


@dataclass(frozen=True)
class Plan:
    """What is asked: everything but the model and the text."""

    protocol: Protocol
    lengths: tuple[int, ...]
    segments: int = 1000
    target_seed: int = 0
    window: int | None = None
    bos: int | None = None
    """A token that heads every context, and is not counted."""

    def __post_init__(self) -> None:
        try:
            lengths = sorted({operator.index(length) for length in self.lengths})
            for key in ("segments", "target_seed", "window", "bos"):
                value = getattr(self, key)
                object.__setattr__(self, key, None if value is None else operator.index(value))
        except TypeError:
            raise BadInput("lengths, segments, seed and window are whole numbers") from None
        if not lengths or lengths[0] < 1:
            raise BadInput(
                f"lengths are {', '.join(map(str, self.lengths)) or 'none'}: whole numbers from 1 are needed"
            )
        object.__setattr__(self, "lengths", tuple(lengths))
        self.protocol.check(lengths)

    @property
    def longest(self) -> int:
        return self.lengths[-1]

    def about(self) -> dict[str, Any]:
        return {
            "protocol": self.protocol.about(),
            "lengths": list(self.lengths),
            "segments": self.segments,
            "target_seed": self.target_seed,
            "window": self.window,
            "bos": self.bos,
        }


@dataclass(frozen=True)
class Evaluation:
    """The loss of every target at every length, and what was asked of which model on which text."""

    about: dict[str, Any]
    losses: dict[int, Tensor]
    """Negative log-likelihoods in nats, in the order of the targets."""
    targets: list[Anchor]
    """(document, offset) of each target; where targets differ by length, of the text's beginning."""
    sizes: np.ndarray | None = field(default=None, repr=False)
    """Bytes of each target."""

    @property
    def documents(self) -> np.ndarray:
        return np.array([target.document for target in self.targets])

    def units(self) -> tuple[np.ndarray, str]:
        """Which targets are resampled together: those of a document, or of a segment where documents are too few."""
        documents_N = self.documents
        if len(set(documents_N.tolist())) >= FEW:
            return documents_N, "documents"
        each = max(1, len(documents_N) // self.about["segments"])
        return np.arange(len(documents_N)) // each, "segments"

    @property
    def table(self) -> dict[int, float]:
        """Perplexity by length."""
        return {length: _exp(float(found.double().mean())) for length, found in self.losses.items()}

    @property
    def by_bytes(self) -> bool:
        """Whether bytes were drawn, not tokens, to compare models with different tokenizers."""
        return self.about.get("align") == "bytes"

    @property
    def bits_per_byte(self) -> dict[int, float] | None:
        """Bits per byte of text by length."""
        if self.sizes is None:
            return None
        if self.by_bytes:
            return {length: float(self.quantities(length).mean()) for length in self.losses}
        total = math.log(2) * float(self.sizes.sum())
        return {length: float(found.double().sum()) / total for length, found in self.losses.items()}

    def quantities(self, length: int) -> np.ndarray:
        """What is averaged and compared: nats of each target; of a byte, its even share of its token's bits."""
        losses_N = self.losses[length].double().numpy()
        return losses_N / self.sizes / math.log(2) if self.by_bytes else losses_N

    def score(self, length: int) -> float:
        """The number that tables show: perplexity, or bits per byte where bytes were drawn."""
        mean = float(self.quantities(length).mean())
        return mean if self.by_bytes else _exp(mean)

    @property
    def quantity(self) -> str:
        """What `score` is."""
        return "bits per byte" if self.by_bytes else "perplexity"

    def rows(self) -> list[dict[str, Any]]:
        """One row per length: what tables show with its 95 % interval, the mean loss, and bits per byte."""
        bits = self.bits_per_byte
        units_N, unit = self.units()
        found = []
        for length, losses in self.losses.items():
            interval = bootstrap_mean(self.quantities(length), units_N)
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
            found.append(row)
        return found

    @property
    def train_length(self) -> int | None:
        return self.about["model"]["train_length"]

    @property
    def verdict(self) -> dict[str, Any]:
        """What becomes of the model past its training length, with the evidence."""
        if not self.about["protocol"].get("same_targets", True):
            return {"verdict": None, "reason": "this protocol predicts other targets at each length"}
        if self.by_bytes:
            return {"verdict": None, "reason": "bytes were drawn: a verdict needs --align tokens"}
        losses = {length: found.double().numpy() for length, found in self.losses.items()}
        return judge(losses, *self.units(), self.train_length)

    def plot(self) -> Any:
        """A figure of perplexity against length."""
        from fieldlens.reporting.plots import perplexity_lines

        return perplexity_lines([self.line()], self.quantity)

    def line(self) -> Any:
        """The evaluation as a line of a figure."""
        from fieldlens.reporting.plots import Line

        model, rows = self.about["model"], self.rows()
        keys = ("length", self.quantity.replace(" ", "_"), "low", "high")
        lengths, middle, low, high = ([row[key] for row in rows] for key in keys)
        return Line(model["name"], model.get("scheme"), lengths, middle, low, high, self.train_length)

    def to_json(self) -> dict[str, Any]:
        """Everything but the losses of single targets."""
        if not self.losses:
            return dict(self.about)
        documents = len(set(self.documents.tolist()))
        counts = {"targets": len(self.targets), "documents": documents}
        return {"kind": KIND, **self.about, **counts, "results": self.rows(), "verdict": self.verdict}

    def save(self, path: Path) -> None:
        """Write a JSON file, and the losses beside it."""
        arrays = {
            "losses": torch.stack(list(self.losses.values())).numpy(),
            "targets": np.array(self.targets, np.int32),
            **({"sizes": self.sizes} if self.sizes is not None else {}),
        }
        write_arrays(losses_file(path), arrays)
        write_json(path, self.to_json())


def losses_file(path: Path) -> Path:
    return path.with_suffix(".npz")


def read_evaluation(path: Path) -> Evaluation:
    """An evaluation that was saved."""
    about = read_json(path)
    if about.get("kind") != KIND:
        raise BadInput(f"{path} is not the result of an evaluation")
    try:
        _check_about(about)
        if about.get("state") == "diverged":
            return Evaluation(about, {}, [])
        arrays = read_arrays(losses_file(path))
        losses = dict(zip(about["lengths"], torch.from_numpy(arrays["losses"]), strict=True))
        targets = [Anchor(*row) for row in arrays["targets"].tolist()]
        if arrays["losses"].shape != (len(about["lengths"]), about["targets"]) or len(targets) != about["targets"]:
            raise ValueError(
                f"{about['targets']} targets are announced, losses have the shape {arrays['losses'].shape}"
            )
        if not np.isfinite(arrays["losses"]).all():
            raise ValueError("some losses are not finite")
        for key in ("results", "verdict", "targets", "documents"):
            del about[key]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        what = f"is not a whole result of an evaluation ({type(error).__name__}: {error})"
        raise BadInput(f"{path} {what}: delete it, and what made it makes it again") from None
    return Evaluation(about, losses, targets, arrays.get("sizes"))


def _check_about(about: dict[str, Any]) -> None:
    """What every reader relies on; raises what is wrong."""
    model = about["model"]
    if not isinstance(model["name"], str):
        raise TypeError("a name that is no text")
    int(model.get("recipe", {}).get("seed", 0))
    if about.get("state") != "diverged":
        if not all(isinstance(length, int) for length in about["lengths"]):
            raise TypeError("a length that is no number")
        _ = about["protocol"]["name"], about["segments"], about["targets"], model["train_length"]


def _exp(mean: float) -> float:
    """The perplexity of a mean loss; infinite where no number is large enough."""
    return math.exp(mean) if mean < LARGEST else math.inf
