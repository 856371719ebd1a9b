"""The result of a measurement, in memory and on disk."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.result import MODEL
from fieldlens.receptive.advice import advise
from fieldlens.receptive.check import Check
from fieldlens.receptive.decision import Decision, decide
from fieldlens.receptive.explorer.data import Target
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.gradient_advice import coverage
from fieldlens.storage.records import MeasurementRecord
from fieldlens.storage.results import read_result, write_result
from fieldlens.storage.shape import check_shape, positive

KIND = "fieldlens measurement"
RULES = 1
"""Version of how segments are drawn and what is computed; another version is another measurement."""


@dataclass(frozen=True)
class Measurement:
    """The receptive field of one model, with layers, probe, check and single targets."""

    about: MeasurementRecord
    field: ReceptiveField
    layers: dict[int, np.ndarray]
    """Shares at the output of some layers (numbered from 1) at the last position, oldest token first."""
    probe: dict[str, Any] | None = None
    check: Check | None = None
    targets: list[Target] = dataclasses.field(default_factory=list)
    """Single targets for the explorer of the report."""

    @property
    def name(self) -> str:
        return self.about["model"]["name"]

    @property
    def spec(self) -> str | None:
        return self.about["model"]["scheme"]

    @property
    def decision(self) -> Decision:
        """What to do, and the next command."""
        return decide(self.field, self.check, self.about.get("command", ""))

    @property
    def advice(self) -> list[str]:
        """The decision, the evidence and the next command, as sentences."""
        about = self.about
        besides = [f"It {about['besides']}."] if "besides" in about else []
        options = about.get("attention"), about.get("command", "")
        return [*advise(self.field, about["theoretical"], self.check, *options), *besides]

    def layer_fields(self) -> dict[int, ReceptiveField]:
        """The receptive fields at the outputs of layers, where they are defined."""
        fields = {
            number: ReceptiveField(shares_T[None].copy(), bos=self.field.bos)
            for number, shares_T in self.layers.items()
        }
        return {number: field for number, field in fields.items() if not field.status}

    def to_json(self) -> dict[str, Any]:
        layers = [
            {"layer": number, "erf": {f"{level:g}": field.erf(level) for level in (0.5, 0.9, 0.99)}}
            for number, field in self.layer_fields().items()
        ]
        return {
            **self.about,
            "kind": KIND,
            "receptive_field": self.field.to_json(),
            "coverage": coverage(self.field),
            "layers": layers,
            "probe": self.probe,
            "check": self.check.to_json() if self.check else None,
            "decision": self.decision.to_json(),
            "advice": self.advice,
        }


def save_measurement(measurement: Measurement, path: Path) -> None:
    """Write a sealed JSON file, the norms beside it; single targets and the evaluations of a check are left out."""
    layers = {f"layer_{number}": shares_T.astype(np.float16) for number, shares_T in measurement.layers.items()}
    arrays: dict[str, np.ndarray] = {"norms": measurement.field.norms_NT.astype(np.float32), **layers}
    write_result(path, measurement.to_json(), arrays)


SHAPE = {
    "model": MODEL | {"scheme": (str, None)}, "data": {"corpus": str}, "versions": {"fieldlens": str},
    "asked": {"length": positive, "target": str, "bos": (int, None), "segments": positive},
    "theoretical": ({"exact": positive}, None), "probe": (dict, None),
    "receptive_field": {
        "name": str, "length": positive, "segments": positive, "average": str, "train_length": (positive, None),
        "undefined_reason": str,
    },
}  # fmt: skip
"""The shape of a measurement."""


def read_measurement(path: Path) -> Measurement:
    """A saved measurement, verified."""
    about, arrays = read_result(path)
    if about.get("kind") != KIND:
        raise BadInput(f"{path} is not the result of a measurement")
    try:
        check_shape(about, SHAPE)
        saved, norms_NT = about["receptive_field"], arrays["norms"].astype(np.float64)
        bos = about["asked"]["bos"] is not None
        expected = (saved["segments"], saved["length"] + bos)
        if norms_NT.shape != expected:
            raise ValueError(f"the norms have the shape {norms_NT.shape}, expected {expected}")
        field = ReceptiveField(
            norms_NT, saved["average"], saved["name"], saved["train_length"], bos, saved["undefined_reason"]
        )
        wide = {name: array.astype(np.float64) for name, array in arrays.items() if name.startswith("layer_")}
        layers = {int(name[6:]): shares_T for name, shares_T in wide.items()}
        return Measurement(cast(MeasurementRecord, about), field, layers, probe=about["probe"])
    except BadInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        problem = f"is not a complete result of a measurement ({type(error).__name__}: {error})"
        raise BadInput(f"{path} {problem}: delete it and re-run the command") from None
