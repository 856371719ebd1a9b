"""What result files record, key by key: text, model, protocol, versions, machine, the state of a run."""

from typing import Any, NotRequired, TypedDict


class Versions(TypedDict):
    """Versions of the software that computed a result."""

    fieldlens: str
    torch: NotRequired[str]
    transformers: NotRequired[str]
    python: NotRequired[str]


class Provenance(TypedDict):
    """Versions and machine, as every result and every run has them."""

    versions: Versions
    machine: dict[str, Any]


class DataRecord(TypedDict):
    """A text: its corpus and split (None for a file), and the hash of its content."""

    corpus: NotRequired[str]
    split: NotRequired[str | None]
    text: str


class TextRecord(TypedDict):
    """A tokenized text: the data, the hash of the tokenizer, and what decided about a BOS token."""

    data: DataRecord
    tokenizer: str
    bos_source: str | None


class OriginRecord(TypedDict):
    """A model before it is loaded: its name; for a run also its folder, recipe, data and address."""

    name: str
    folder: NotRequired[str]
    recipe: NotRequired[dict[str, Any]]
    data: NotRequired[dict[str, Any]]
    address: NotRequired[str]
    scheme_source: NotRequired[Any]


class ModelRecord(OriginRecord):
    """A loaded model: what decides its numbers, as hashes of weights and configuration."""

    train_length: int | None
    kind: NotRequired[str]
    scheme: NotRequired[str | None]
    parameters: NotRequired[int]
    dtype: NotRequired[str]
    weights: NotRequired[str | None]
    configuration: NotRequired[str]
    method: NotRequired[Any]


class PlanRecord(TypedDict):
    """What is evaluated: everything but the model and the text."""

    protocol: dict[str, Any]
    lengths: list[int]
    segments: int
    target_seed: int
    window: int | None
    bos: int | None


class EvaluationRecord(TypedDict, total=False):
    """An evaluation without its losses; one of a run that diverged has only kind, state, model and window."""

    kind: str
    state: str
    asked: dict[str, Any]
    model: ModelRecord
    data: DataRecord
    tokenizer: str
    bos_source: str | None
    align: str
    drawn: str
    margin: float
    address: str
    protocol: dict[str, Any]
    lengths: list[int]
    segments: int
    target_seed: int
    window: int | None
    bos: int | None
    seconds: float
    versions: Versions
    machine: dict[str, Any]


class MeasureSettings(TypedDict):
    """The settings of a measurement that decide its numbers."""

    length: int
    segments: int
    target: str
    average: str
    window: int | None
    target_seed: int
    bos: int | None


class MeasurementRecord(TypedDict):
    """A measurement without its numbers."""

    model: ModelRecord
    data: DataRecord
    tokenizer: str
    bos_source: str | None
    besides: NotRequired[str]
    asked: MeasureSettings
    command: NotRequired[str]
    targets: NotRequired[Any]
    theoretical: dict[str, Any] | None
    attention: NotRequired[dict[str, Any] | None]
    versions: Versions
    machine: dict[str, Any]


class RunStatus(TypedDict, total=False):
    """The state of a run: running, stopped, finished or diverged; empty if there is no run."""

    state: str
    step: int
    loss: float
    validation_perplexity: float
    reason: str
