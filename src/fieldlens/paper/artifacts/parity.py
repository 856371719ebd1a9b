"""Parity, from the paper's Limitations section: a task in which every token matters equally."""

import statistics
from pathlib import Path

from matplotlib.figure import Figure

from fieldlens.core.device import Machine
from fieldlens.paper.artifact import Artifact, Drawn
from fieldlens.paper.parity import CHANCE, SCHEMES, SEEDS, Task, Trial, perform_all, trials
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.plots import new_figure, tints
from fieldlens.reporting.table import Table

TABLE_BITS = (20, 40, 100, 200)


def folder_of(results: PaperResults) -> Path:
    return results.folder / "parity"


def found(results: PaperResults) -> dict[str, dict[int, dict[int, float]]]:
    """Accuracy by scheme, seed and number of bits, of the trials that are done."""
    folder = folder_of(results)
    accuracies = {scheme: {seed: Trial(scheme, seed).accuracy(folder) for seed in SEEDS} for scheme in SCHEMES}
    return {
        scheme: {seed: accuracy for seed, accuracy in by_seed.items() if accuracy}
        for scheme, by_seed in accuracies.items()
    }


def inside(accuracy: dict[int, float]) -> float:
    """In-distribution accuracy: the mean over all training lengths."""
    return statistics.fmean(accuracy[bits] for bits in range(1, Task().longest + 1))


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

    def run(self, results: PaperResults, runs: Path, workers: int, machine: Machine) -> None:
        perform_all(list(trials()), folder_of(results), workers, machine)

    def draw(self, results: PaperResults) -> Drawn:
        rows, records = [], []
        for scheme, by_seed in found(results).items():
            models = list(by_seed.values())
            cells = [list(map(inside, models)), *([accuracy[bits] for accuracy in models] for bits in TABLE_BITS)]
            rows.append([scheme, *map(_cell, cells), str(len(models))])
            records += [
                {"scheme": scheme, "seed": seed, "bits": bits, "accuracy": share}
                for seed, accuracy in by_seed.items()
                for bits, share in accuracy.items()
            ]
        columns = ["scheme", "1 to 20 bits", *(f"{bits} bits" for bits in TABLE_BITS), "seeds"]
        note = f"Chance is {CHANCE:.0%}. Training strings begin with one bit and grow as the longest are mastered."
        figures = {"": _figure(results)} if records else {}
        return Drawn([Table(columns, rows, "part of the strings answered rightly", (note,))], figures, records)


def _cell(values: list[float]) -> str:
    if not values:
        return "–"
    return f"{statistics.fmean(values):.1%}" + (f" ± {statistics.stdev(values):.1%}" if len(values) > 1 else "")


def _figure(results: PaperResults) -> Figure:
    figure, (panel,) = new_figure(1)
    by_scheme = {scheme: list(by_seed.values()) for scheme, by_seed in found(results).items() if by_seed}
    for (scheme, models), (tint, marker) in zip(by_scheme.items(), tints(list(by_scheme)), strict=True):
        bits = sorted(models[0])
        means = [statistics.fmean(accuracy[n] for accuracy in models) for n in bits]
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
