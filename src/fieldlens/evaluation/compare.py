"""Comparison of evaluations: over seeds as the paper does, and within a seed by resampling documents."""

import math
import statistics as plain
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import bootstrap_difference, differences, finite, holm, paired_t, sign_flip
from fieldlens.evaluation.verdict import ALPHA
from fieldlens.reporting.plots import Line
from fieldlens.reporting.table import Table

By = Literal["documents", "tokens"]

FOREIGN = -1
"""The seed of a model that has none: it is compared with every seed of another."""

ALIKE = ("protocol", "segments", "target_seed", "data", "align", "tokenizer", "bos")
"""What evaluations must have in common to be compared, beside the type of their numbers and their targets."""

ACROSS = 8
"""So many groups stand side by side in a table; more stand one below the other."""


@dataclass(frozen=True)
class Group:
    """Evaluations of one experiment that differ in the seed only."""

    name: str
    members: dict[int, Evaluation]
    """By seed; a model that was not trained here has the seed FOREIGN."""

    def values(self, length: int) -> dict[int, float]:
        """Perplexity, or bits per byte, by seed; seeds that diverged have none."""
        return {seed: one.score(length) for seed, one in self.alive().items()}

    def alive(self) -> dict[int, Evaluation]:
        return {seed: one for seed, one in self.members.items() if one.losses}

    def seeds(self) -> list[int]:
        return sorted(self.members.keys() - {FOREIGN})

    def diverged(self) -> list[int]:
        return sorted(self.members.keys() - self.alive().keys())


@dataclass(frozen=True)
class Comparison:
    """Groups against the first of them."""

    groups: list[Group]
    lengths: list[int]
    cells: list[dict[str, Any]]
    """Mean and deviation of each group at each length, with its test over seeds."""
    within: list[dict[str, Any]]
    """Tests within each seed that both sides have."""

    def sheet(self) -> Table:
        """Lengths down, groups across, marked as in the paper; with many groups the other way round."""
        at = {(cell["group"], cell["length"]): _cell(cell) for cell in self.cells}
        names = [group.name for group in self.groups]
        if len(names) > ACROSS:
            turned = [[name, *(at[name, length] for length in self.lengths)] for name in names]
            return Table(["model", *map(str, self.lengths)], turned, self.quantity, self.notes())
        rows = [[str(length), *(at[name, length] for name in names)] for length in self.lengths]
        return Table(["length", *names], rows, self.quantity, self.notes())

    @property
    def quantity(self) -> str:
        members = [one for group in self.groups for one in group.members.values()]
        return "bits per byte" if any(one.by_bytes for one in members) else "perplexity"

    def tests(self) -> list[Table]:
        """Every test: over seeds where there are several, and within each seed."""
        against, found = f"against {self.groups[0].name}", []
        if self.over_seeds:
            keys = ["group", "length", "pairs", "difference", "t", "p", "p_holm", "reason"]
            rows = [[_number(cell.get(key)) for key in keys] for cell in self.cells if "p" in cell]
            found.append(Table([against, *keys[1:6], "p (Holm)", "reason"], rows, "over seeds: paired t-test"))
        if self.within:
            keys = ["group", "length", "seed", "units", "difference", "low", "high", "p_bootstrap", "p", "p_holm"]
            unit = "nats" if self.quantity == "perplexity" else "bits per byte"
            heads = ["length", "seed", self.within[0]["resampled"], f"difference ({unit})", "95% from", "to"]
            heads += ["p (bootstrap)", "p (flips)", "p (Holm)"]
            rows = [[_number(row[key]) for key in keys] for row in self.within]
            found.append(Table([against, *heads], rows, "within a seed: bootstrap and sign flips"))
        return found

    def lines(self) -> list[Line]:
        """For a figure: the mean over seeds, with a band of one deviation; one seed has none."""
        found = []
        for group in self.groups:
            alive = list(group.alive().values())
            if not alive:
                continue
            cells = [cell for cell in self.cells if cell["group"] == group.name]
            middle = [cell["mean"] for cell in cells]
            low, high = ([cell["mean"] + sign * (cell["deviation"] or 0.0) for cell in cells] for sign in (-1, 1))
            spec = alive[0].about["model"].get("scheme")
            found.append(Line(group.name, spec, self.lengths, middle, low, high, alive[0].train_length))
        return found

    def notes(self) -> list[str]:
        first, found = self.groups[0].name, []
        if self.over_seeds:
            found.append(f"paired two-sided t-test over seeds, p < {ALPHA:g}, not corrected")
        if any(cell.get("pairs", 2) < 2 for cell in self.cells) and self.within:
            unit = self.within[0]["resampled"]
            found.append(f"one seed: sign flips of whole {unit}, p < {ALPHA:g} after Holm")
        if found:
            found = [f"† {first} is significantly better, * significantly worse ({'; '.join(found)})."]
        everyone = {seed for group in self.groups for seed in group.seeds()}
        for group in self.groups:
            if lost := group.diverged():
                found.append(f"{group.name}: diverged with seed {', '.join(map(str, lost))}.")
            missing = everyone - group.members.keys()
            if missing and FOREIGN not in group.members:
                found.append(f"{group.name}: no result for seed {', '.join(map(str, sorted(missing)))}.")
        return found

    @property
    def over_seeds(self) -> bool:
        """Whether some group shares two seeds or more with the reference."""
        return any(cell.get("pairs", 0) >= 2 for cell in self.cells)

    def to_json(self) -> dict[str, Any]:
        seeds = {group.name: {"seeds": group.seeds(), "diverged": group.diverged()} for group in self.groups}
        return {
            "kind": "fieldlens comparison",
            "reference": self.groups[0].name,
            "groups": seeds,
            "cells": self.cells,
            "within_seed": self.within,
            "notes": self.notes(),
        }


def compare(evaluations: Sequence[Evaluation], by: By = "documents") -> Comparison:
    """Group by everything but the seed; the first group is the reference."""
    groups = group(evaluations)
    lengths = _shared(groups)
    cells = [_summary(one, length) for one in groups for length in lengths]
    reference = groups[0]
    tested = [cell for cell in cells if cell["group"] != reference.name]
    for cell in tested:
        other = next(one for one in groups if one.name == cell["group"])
        cell.update(_over_seeds(other.values(cell["length"]), reference.values(cell["length"])))
    for cell, corrected in zip(tested, holm([cell["p"] for cell in tested]), strict=True):
        cell["p_holm"] = corrected
    within = [row for other in groups[1:] for length in lengths for row in _within(other, reference, length, by)]
    for row, corrected in zip(within, holm([row["p"] for row in within]), strict=True):
        row["p_holm"] = corrected
    _mark(tested, within)
    return Comparison(groups, lengths, cells, within)


def group(evaluations: Sequence[Evaluation]) -> list[Group]:
    """In the order of their first members."""
    if not evaluations:
        raise BadInput("nothing to compare: give at least one result file")
    found: dict[str, dict[int, Evaluation]] = {}
    identities: dict[str, dict[str, Any]] = {}
    _check_comparable([one for one in evaluations if one.losses])
    for one in _once(evaluations):
        identity = _identity(one)
        key = next((key for key, known in identities.items() if known == identity), str(len(identities)))
        identities[key] = identity
        members = found.setdefault(key, {})
        seed = _seed(one)
        known = members.get(seed)
        if known is not None and known.losses and one.losses:
            both = known.losses.keys() & one.losses.keys()
            if any(bool((known.losses[n] != one.losses[n]).any()) for n in both):
                raise BadInput(f"two different results for {one.about['model']['name']} with seed {seed}")
        if known is None or len(one.losses) > len(known.losses):  # a run that diverged once and was repaired counts
            members[seed] = one
    names = _names([(members[min(members)], identities[key]) for key, members in found.items()])
    return [Group(name, members) for name, members in zip(names, found.values(), strict=True)]


def _once(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Without the results of a run's model folder where those of the run itself are there: they are one model."""
    runs = {_weights(one) for one in evaluations if "recipe" in one.about["model"]} - {None}
    return [one for one in evaluations if "recipe" in one.about["model"] or _weights(one) not in runs]


def _weights(one: Evaluation) -> tuple[Any, ...] | None:
    """What a model computes with; the same weights under another configuration are another model."""
    model = one.about["model"]
    return (model["weights"], model.get("configuration"), one.about["window"]) if model.get("weights") else None


def _seed(one: Evaluation) -> int:
    return int(one.about["model"].get("recipe", {}).get("seed", FOREIGN))


def _identity(one: Evaluation) -> dict[str, Any]:
    """All that defines the experiment but its seed."""
    model = one.about["model"]
    if "recipe" not in model:
        known = {key: model.get(key) for key in ("name", "weights", "configuration")}
        return {**known, "window": one.about["window"]}
    recipe = {key: value for key, value in model["recipe"].items() if key not in ("seed", "corpus", "tokenizer")}
    about = {"data": model.get("data"), "scheme_source": model.get("scheme_source")}
    return {**recipe, **about, "cache window": one.about["window"]}


def _check_comparable(alive: Sequence[Evaluation]) -> None:
    """Every result must have predicted the same targets from the same text."""
    if not alive:
        raise BadInput("nothing to compare: every run diverged")
    first = alive[0]
    keys = [key for key in ALIKE if not (first.by_bytes and key in ("tokenizer", "bos"))]
    for other in alive[1:]:
        differing = [key for key in keys if first.about.get(key) != other.about.get(key)]
        if first.about["model"].get("dtype") != other.about["model"].get("dtype"):
            differing.append("dtype")
        if differing or first.targets != other.targets:
            a, b = (one.about["model"]["name"] for one in (first, other))
            longest = {max(one.losses) for one in (first, other)}
            what = ", ".join(differing) or ("the longest length" if len(longest) > 1 else "the targets that were drawn")
            raise BadInput(f"{a} and {b} were not evaluated on the same targets: they differ in {what}")


def _names(experiments: list[tuple[Evaluation, dict[str, Any]]]) -> list[str]:
    """Each by its model's name; where names collide, with what tells them apart."""
    names = [one.about["model"]["name"] for one, _ in experiments]
    found = []
    for index, (_, identity) in enumerate(experiments):
        rivals = [other for at, (_, other) in enumerate(experiments) if names[at] == names[index] and at != index]
        keys = sorted({key for other in rivals for key in identity if other.get(key) != identity[key]})
        details = ", ".join(f"{key} {str(identity[key])[:12]}" for key in keys)
        found.append(f"{names[index]} ({details})" if details else names[index])
    return found


def _shared(groups: list[Group]) -> list[int]:
    """The lengths that all have."""
    return sorted(set.intersection(*(set(one.losses) for group in groups for one in group.alive().values())))


def _summary(one: Group, length: int) -> dict[str, Any]:
    values = list(one.values(length).values())
    return {
        "group": one.name,
        "length": length,
        "seeds": len(values),
        "diverged": len(one.diverged()),
        "mean": plain.fmean(values) if values else None,
        "deviation": plain.stdev(values) if len(values) > 1 else None,
        "mark": "",
    }


def _over_seeds(values: dict[int, float], reference: dict[int, float]) -> dict[str, Any]:
    shared = sorted(values.keys() & reference.keys())
    if not shared:
        return {"pairs": 0, "difference": None, "t": None, "p": None, "reason": "no seed in common"}
    found = paired_t([values[seed] for seed in shared], [reference[seed] for seed in shared])
    t = finite(found.statistic)
    return {"pairs": len(shared), "difference": found.difference, "t": t, "p": found.p, "reason": found.reason}


def _pairs(other: Group, reference: Group) -> list[tuple[int, Evaluation, Evaluation]]:
    """Results of the same seed; one without a seed goes with every seed of the other side."""
    ours, theirs = other.alive(), reference.alive()
    found = [(seed, ours[seed], theirs[seed]) for seed in sorted(ours.keys() & theirs.keys())]
    if not found and FOREIGN in ours:
        found = [(seed, ours[FOREIGN], one) for seed, one in sorted(theirs.items())]
    if not found and FOREIGN in theirs:
        found = [(seed, one, theirs[FOREIGN]) for seed, one in sorted(ours.items())]
    return found


def _within(other: Group, reference: Group, length: int, by: By) -> list[dict[str, Any]]:
    rows = []
    for seed, ours, theirs in _pairs(other, reference):
        differences_N = differences(ours.quantities(length), theirs.quantities(length))
        units_N = np.arange(len(differences_N)) if by == "tokens" else ours.documents
        interval, boot = bootstrap_difference(differences_N, units_N)
        flip = sign_flip(differences_N, units_N)
        low, high = map(finite, interval)
        rows.append(
            {
                "group": other.name,
                "length": length,
                "seed": None if seed == FOREIGN else seed,
                "resampled": by,
                "units": len(set(units_N.tolist())),
                "difference": flip.difference,
                "low": low,
                "high": high,
                "p_bootstrap": boot.p,
                "p": flip.p,
                "reason": flip.reason,
            }
        )
    return rows


def _mark(tested: list[dict[str, Any]], within: list[dict[str, Any]]) -> None:
    """† where the reference is better, * where it is worse; from documents where there is one seed only."""
    for cell in tested:
        p, difference = cell["p"], cell["difference"]
        if cell["pairs"] < 2:
            rows = [row for row in within if (row["group"], row["length"]) == (cell["group"], cell["length"])]
            p, difference = (rows[0]["p_holm"], rows[0]["difference"]) if len(rows) == 1 else (None, None)
        if p is not None and difference is not None and p < ALPHA:
            cell["mark"] = "†" if difference > 0 else "*"


def _cell(cell: dict[str, Any]) -> str:
    if cell["mean"] is None:
        return "diverged" if cell["diverged"] else "–"
    spread = f" ± {cell['deviation']:.{places(cell['mean'])}f}" if cell["deviation"] is not None else ""
    return f"{cell['mean']:.{places(cell['mean'])}f}{spread}{cell['mark']}"


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def places(value: float) -> int:
    """Three digits that matter."""
    return max(0, 2 - int(math.log10(max(value, 1))))
