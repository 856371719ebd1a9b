"""Events that long computations report while they run, and the function that receives them."""

from collections.abc import Callable
from dataclasses import dataclass


class Event:
    """Base class of all events."""


@dataclass(frozen=True)
class Stage(Event):
    """Work on a model begins; an activity is what happens before its progress can be measured, such as loading."""

    name: str
    activity: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.name, self.activity)))


@dataclass(frozen=True)
class Estimate(Event):
    """How long the rest takes, and how much memory it needs: in addition to the weights, or in all."""

    seconds: float
    memory: float
    with_weights: bool = False


@dataclass(frozen=True)
class Progress(Event):
    """The amount done so far of a total, and the part of the stage that is being computed."""

    done: float
    total: float
    part: str = ""


@dataclass(frozen=True)
class TrainingStep(Event):
    """A step of a training, with the validation perplexity where it was computed."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float
    validation_perplexity: float | None = None


@dataclass(frozen=True)
class Note(Event):
    """A line for the user, such as the recipe of a training."""

    text: str


@dataclass(frozen=True)
class Warned(Event):
    """Something unexpected that does not stop the computation."""

    text: str


Watch = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The default receiver."""
