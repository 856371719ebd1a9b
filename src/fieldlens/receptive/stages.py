"""Stages of a measurement, so that progress says which of how many is running."""

import dataclasses

from fieldlens.core.events import Event, Progress, Watch
from fieldlens.receptive.request import MeasureRequest


class Stages:
    """Numbers the stages of one measurement in the events that it reports."""

    def __init__(self, request: MeasureRequest, watch: Watch) -> None:
        details = [] if request.plain else ["layers", "passage"]
        probe, check = ["probe"] * request.probe, ["check"] * request.check
        self.names, self.report = ["gradients", *details, *probe, *check], watch

    def watch(self, stage: str = "") -> Watch:
        """A function that reports events of a stage; by default, the stage is the part that an event names."""

        def report(event: Event) -> None:
            if isinstance(event, Progress) and (stage or event.part) in self.names:
                name = stage or event.part
                part = name if name == event.part else f"{name}, {event.part}"
                event = dataclasses.replace(event, part=f"{self.names.index(name) + 1}/{len(self.names)} {part}")
            self.report(event)

        return report
