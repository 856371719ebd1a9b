"""A measurement: what was asked of the lens and what it found, in memory and on disk."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from fieldlens.core.errors import BadInput, unknown
from fieldlens.data.corpus import SPLITS
from fieldlens.receptive.advice import advise, coverage
from fieldlens.receptive.check import Check
from fieldlens.receptive.field import Average, ReceptiveField
from fieldlens.receptive.input_gradients import Target
from fieldlens.schemes.window import check_window
from fieldlens.storage.results import read_arrays, read_json, write_arrays, write_json

KIND = "fieldlens measurement"
RULES = 1
"""Which segments are drawn and what is computed of them; a change makes another measurement."""


@dataclass(frozen=True)
class MeasureRequest:
    """What `fieldlens measure` was asked."""

    corpus: str | None = None
    text: Path | None = None
    length: int | None = None
    segments: int = 20
    target: Target = "log-likelihood"
    average: Average = "shares"
    window: int | None = None
    plain: bool = False
    """Without layers and heat maps."""
    probe: bool = False
    check: bool = False
    targets: int = 200
    target_seed: int = 0
    train_length: int | None = None
    split: str = "test"

    def __post_init__(self) -> None:
        for what in ("segments", "targets"):
            if getattr(self, what) < 1:
                raise BadInput(f"{what} is {getattr(self, what)}: at least 1 is needed")
        if self.length is not None and self.length < 2:
            raise BadInput(f"length is {self.length}: at least 2 is needed")
        if self.corpus is not None and self.text is not None:
            raise BadInput("give either --text or --corpus")
        choices = (("target", get_args(Target)), ("average", get_args(Average)), ("split", SPLITS))
        for what, allowed in choices:
            if getattr(self, what) not in allowed:
                raise unknown(what, getattr(self, what), allowed)
        check_window(self.window)


@dataclass(frozen=True)
class HeatMap:
    """A text before one target, and the share of each of its last tokens."""

    tokens: list[str]
    shares: list[float]
    target: str
    earlier: float
    """The share of the tokens before those."""


@dataclass(frozen=True)
class Measurement:
    """What the lens found of one model."""

    about: dict[str, Any]
    field: ReceptiveField
    layers: dict[int, np.ndarray]
    """Shares of the output of some layers, counted from 1, at the last position, oldest token first."""
    heats: list[HeatMap] = dataclasses.field(default_factory=list)
    probe: dict[str, Any] | None = None
    check: Check | None = None

    @property
    def name(self) -> str:
        return self.about["model"]["name"]

    @property
    def spec(self) -> str | None:
        return self.about["model"]["scheme"]

    def layer_fields(self) -> dict[int, ReceptiveField]:
        """The receptive fields of some layers' outputs, where they are defined."""
        fields = {
            number: ReceptiveField(shares_T[None].copy(), bos=self.field.bos)
            for number, shares_T in self.layers.items()
        }
        return {number: one for number, one in fields.items() if not one.status}

    def to_json(self) -> dict[str, Any]:
        layers = [
            {"layer": number, "erf": {f"{level:g}": one.erf(level) for level in (0.5, 0.9, 0.99)}}
            for number, one in self.layer_fields().items()
        ]
        return {
            **self.about,
            "kind": KIND,
            "receptive_field": self.field.to_json(),
            "coverage": coverage(self.field),
            "layers": layers,
            "probe": self.probe,
            "check": self.check.to_json() if self.check else None,
            "advice": advise(self.field, self.about["theoretical"], self.check),
        }


def save_measurement(one: Measurement, path: Path) -> None:
    """Write a JSON file, and the norms beside it; heat maps and the evaluations of a check are left out."""
    write_json(path, one.to_json())
    layers = {f"layer_{number}": shares_T.astype(np.float16) for number, shares_T in one.layers.items()}
    write_arrays(path.with_suffix(".npz"), {"norms": one.field.norms_NT.astype(np.float32), **layers})


def read_measurement(path: Path) -> Measurement:
    """A measurement that was saved."""
    about = read_json(path)
    if about.get("kind") != KIND:
        raise BadInput(f"{path} is not the result of a measurement")
    try:
        field, arrays = about["receptive_field"], read_arrays(path.with_suffix(".npz"))
        norms_NT = arrays["norms"].astype(np.float64)
        bos = about["asked"]["bos"] is not None
        if norms_NT.shape != (field["segments"], field["length"] + bos):
            raise ValueError(f"norms of the shape {norms_NT.shape}, not {field['segments']} × {field['length'] + bos}")
        found = ReceptiveField(
            norms_NT, field["average"], field["name"], field["train_length"], bos, field["undefined_reason"]
        )
        wide = {name: array.astype(np.float64) for name, array in arrays.items() if name.startswith("layer_")}
        layers = {int(name[6:]): shares_T for name, shares_T in wide.items()}
        return Measurement(about, found, layers, probe=about["probe"])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, BadInput):
            raise
        what = f"is not a whole result of a measurement ({type(error).__name__}: {error})"
        raise BadInput(f"{path} {what}: delete it, and what made it makes it again") from None
