"""Events that long computations report while they run, and the function that receives them."""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Stage:
    """Work on a model begins."""

    name: str


@dataclass(frozen=True)
class Estimate:
    """How long the rest takes, and how much memory it needs: in addition to the weights, or in all."""

    seconds: float
    memory: float
    with_weights: bool = False


@dataclass(frozen=True)
class Progress:
    """The amount done so far of a total, and the part of the stage that is being computed."""

    done: float
    total: float
    part: str = ""


@dataclass(frozen=True)
class TrainingStep:
    """A step of a training, with the validation perplexity where it was computed."""

    step: int
    steps: int
    loss: float
    tokens_per_second: float
    seconds_left: float
    validation_perplexity: float | None = None


@dataclass(frozen=True)
class Note:
    """A line for the user, such as the recipe of a training."""

    text: str


@dataclass(frozen=True)
class Warned:
    """Something unexpected that does not stop the computation."""

    text: str


Event = Stage | Estimate | Progress | TrainingStep | Note | Warned
Watch = Callable[[Event], None]


def ignore(event: Event) -> None:
    """The default receiver."""
