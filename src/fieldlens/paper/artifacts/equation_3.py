"""Equation 3: semantic, cross and positional parts of the scores of a trained Sinusoidal model."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from fieldlens.core.device import Machine
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.equation_3 import measure_parts, read_parts, result_file
from fieldlens.paper.results import PaperResults
from fieldlens.paper.score_parts import PARTS
from fieldlens.reporting.plots import new_figure
from fieldlens.reporting.table import Table
from fieldlens.study.plan import Job

SIDES = {"inside": "queries inside L_tr", "past": "queries past 2 L_tr"}
COLOURS = {"semantic": "#2E5E8C", "cross": "#B5543A", "positional": "#7A4F9A", "constant": "#888888"}
STYLES = {"semantic": "-", "cross": "--", "positional": "-.", "constant": ":"}


def sinusoidal_job(results: PaperResults) -> Job | None:
    """The study's Sinusoidal run at the usual training length: the first seed on the deciding corpus."""
    jobs = results.jobs(["sinusoidal"], ["github"])
    return jobs[0] if jobs else None


def parts_of(results: PaperResults) -> dict[str, Any] | None:
    job = sinusoidal_job(results)
    return None if job is None else read_parts(results.folder, job)


class Equation3(Artifact):
    name, kind = "equation_3", "figure"
    title = "Equation 3: the parts of a Sinusoidal model's scores, by distance"

    def parts(self, results: PaperResults) -> dict[str, str]:
        job = sinusoidal_job(results)
        return {} if job is None else {job.name: "done" if parts_of(results) else "missing"}

    def cut(self, results: PaperResults) -> str:
        return "none of 1 runs" if parts_of(results) is None else "1 of 1 runs"

    def files(self, results: PaperResults) -> list[Path]:
        return [result_file(results.folder)] if parts_of(results) else []

    def run(self, results: PaperResults, runs: Path, workers: int, machine: Machine) -> None:
        job = sinusoidal_job(results)
        if job is not None and parts_of(results) is None:
            machine.start()
            measure_parts(job, runs, results.folder)

    def draw(self, results: PaperResults) -> Drawn:
        content = parts_of(results)
        columns = ["", *PARTS, "correlation of the positional part with p_m·p_n"]
        if content is None:
            rows = [[words, *["–"] * (len(columns) - 1)] for words in SIDES.values()]
            return Drawn([Table(columns, rows, "share of the variance of the scores")])
        rows = [
            [words, *(f"{content[side]['shares'][part]:.1%}" for part in PARTS), f"{content[side]['similarity']:.2f}"]
            for side, words in SIDES.items()
        ]
        note = (
            "Share: covariance of a part with the score over the keys of a query, divided by the score's variance, "
            "in the first layer. Parts are shown minus their mean over the keys, which softmax ignores."
        )
        records = [
            {"queries": side, "part": part, "distance": distance, "score": value}
            for side in SIDES
            for part in PARTS
            for distance, value in enumerate(content[side]["curves"][part])
        ]
        return Drawn(
            [Table(columns, rows, "share of the variance of the scores", (note,))], {"": _figure(content)}, records
        )


def _figure(content: dict[str, Any]) -> Figure:
    figure, panels = new_figure(2, across=2)
    for panel, (side, words) in zip(panels, SIDES.items(), strict=True):
        for part in PARTS:
            curve = content[side]["curves"][part]
            panel.plot(range(len(curve)), curve, STYLES[part], color=COLOURS[part], linewidth=1, label=part)
        panel.set_title(words, fontsize=7)
        panel.set_xlabel("distance (tokens)", fontsize=7)
        panel.set_ylabel("score", fontsize=7)
        panel.axvline(content["train_length"], color="#777777", linewidth=0.8, linestyle=":")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, fontsize=6, frameon=False, loc="outside upper center", ncols=4)
    return figure
