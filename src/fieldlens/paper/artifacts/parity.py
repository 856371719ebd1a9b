"""Parity, of the Limitations: a task on which every token matters as much."""

import statistics as plain
from pathlib import Path

from matplotlib.figure import Figure

from fieldlens.core.device import Machine
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.parity import CHANCE, SCHEMES, SEEDS, Task, Trial, perform_all, trials
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.plots import new_figure, tints
from fieldlens.reporting.table import Table

SHOWN = (20, 40, 100, 200)


def folder_of(results: PaperResults) -> Path:
    return results.folder / "parity"


def found(results: PaperResults) -> dict[str, dict[int, dict[int, float]]]:
    """The accuracies by bits of each scheme's models that are there, by seed."""
    each = {scheme: {seed: Trial(scheme, seed).accuracy(folder_of(results)) for seed in SEEDS} for scheme in SCHEMES}
    return {scheme: {seed: one for seed, one in some.items() if one} for scheme, some in each.items()}


def inside(one: dict[int, float]) -> float:
    """Accuracy in distribution: the mean over all lengths of training."""
    return plain.fmean(one[bits] for bits in range(1, Task().longest + 1))


class Parity(Artifact):
    name, kind, stand_ins = "parity", "figure", False
    title = "Parity: trained on 1 to 20 bits, tested on up to 200"

    def parts(self, results: PaperResults) -> dict[str, str]:
        return {trial.name: trial.state(folder_of(results)) for trial in trials()}

    def cut(self, results: PaperResults) -> str:
        states = list(self.parts(results).values())
        return f"{states.count('done') or 'none'} of {len(states)} runs"

    def files(self, results: PaperResults) -> list[Path]:
        folder = folder_of(results)
        return [trial.file(folder) for trial in trials() if trial.state(folder) == "done"]

    def run(self, results: PaperResults, workers: int, machine: Machine) -> None:
        perform_all(list(trials()), folder_of(results), workers, machine)

    def draw(self, results: PaperResults) -> Drawn:
        rows, records = [], []
        for scheme, some in found(results).items():
            models = list(some.values())
            cells = [list(map(inside, models)), *([one[bits] for one in models] for bits in SHOWN)]
            rows.append([scheme, *map(_cell, cells), str(len(some))])
            records += [
                {"scheme": scheme, "seed": seed, "bits": bits, "accuracy": share}
                for seed, one in some.items()
                for bits, share in one.items()
            ]
        columns = ["scheme", "1 to 20 bits", *(f"{bits} bits" for bits in SHOWN), "seeds"]
        note = f"Chance is {CHANCE:.0%}. Training strings begin with one bit and grow as the longest are mastered."
        return Drawn(
            [Table(columns, rows, "part of the strings answered rightly", (note,))], {"": _figure(results)}, records
        )


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{plain.fmean(values):.1%}" + (f" ± {plain.stdev(values):.1%}" if len(values) > 1 else "")


def _figure(results: PaperResults) -> Figure:
    figure, (panel,) = new_figure(1)
    each = {scheme: list(some.values()) for scheme, some in found(results).items() if some}
    for (scheme, some), (tint, marker) in zip(each.items(), tints(list(each)), strict=True):
        bits = sorted(some[0])
        means = [plain.fmean(one[n] for one in some) for n in bits]
        panel.plot(bits, means, color=tint, marker=marker, markersize=3, linewidth=1, label=scheme.split(":")[0])
    panel.axhline(CHANCE, color="#777777", linewidth=0.6, linestyle="--")
    longest = Task().longest
    panel.axvline(longest, color="#777777", linewidth=0.8, linestyle=":")
    panel.annotate(
        "trained", (longest, 1), xycoords=("data", "axes fraction"), fontsize=6, color="#555555", ha="center"
    )
    panel.set_xscale("log")
    panel.set_xticks([1, 2, 5, 10, 20, 50, 100, 200], ["1", "2", "5", "10", "20", "50", "100", "200"])
    panel.minorticks_off()
    panel.set_ylim(0.35, 1.03)
    panel.set_xlabel("bits", fontsize=7)
    panel.set_ylabel("answered rightly", fontsize=7)
    figure.legend(*panel.get_legend_handles_labels(), fontsize=6, frameon=False, loc="outside upper center", ncols=3)
    return figure
