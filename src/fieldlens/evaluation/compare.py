"""Comparison of evaluations: paired t-test over seeds as in the paper, document resampling within a seed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, Literal

import numpy as np

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import bootstrap_difference, differences, finite, holm, paired_t, sign_flip
from fieldlens.evaluation.verdict import ALPHA
from fieldlens.reporting.plots import Line
from fieldlens.reporting.table import Table
from fieldlens.training.recipe import without_defaults

By = Literal["documents", "tokens"]

FOREIGN = -1
"""Seed of a model without one; it is compared with every seed of another group."""

ALIKE = ("protocol", "segments", "target_seed", "data", "align", "tokenizer", "bos")
"""Keys that must be equal for evaluations to be compared, in addition to dtype and targets."""

NOT_COMPARED = ("seed", "corpus", "tokenizer")
ACROSS = 8
"""Maximum number of groups shown as columns; with more, groups are rows."""


@dataclass(frozen=True)
class Group:
    """Evaluations of one experiment that differ only in the seed; a model without a seed has FOREIGN."""

    name: str
    members: dict[int, Evaluation]

    def values(self, length: int) -> dict[int, float]:
        """Perplexity, or bits per byte, by seed; seeds that diverged are left out."""
        return {seed: evaluation.score(length) for seed, evaluation in self.alive().items()}

    def alive(self) -> dict[int, Evaluation]:
        """Evaluations of the seeds that did not diverge."""
        return {seed: evaluation for seed, evaluation in self.members.items() if evaluation.losses}

    def seeds(self) -> list[int]:
        return sorted(self.members.keys() - {FOREIGN})

    def diverged(self) -> list[int]:
        return sorted(self.members.keys() - self.alive().keys())


@dataclass(frozen=True)
class Comparison:
    """Groups compared with the first of them, the reference."""

    groups: list[Group]
    lengths: list[int]
    cells: list[dict[str, Any]]
    """Mean and standard deviation of each group at each length, with the test over seeds."""
    within: list[dict[str, Any]]
    """Tests within each seed that both groups have."""

    def sheet(self) -> Table:
        """Table of lengths by groups, marked as in the paper; transposed if there are more than ACROSS groups."""
        texts = {(cell["group"], cell["length"]): _cell(cell) for cell in self.cells}
        names = [group.name for group in self.groups]
        if len(names) > ACROSS:
            rows = [[name, *(texts[name, length] for length in self.lengths)] for name in names]
            return Table(["model", *map(str, self.lengths)], rows, self.quantity, self.notes())
        rows = [[str(length), *(texts[name, length] for name in names)] for length in self.lengths]
        return Table(["length", *names], rows, self.quantity, self.notes())

    @property
    def quantity(self) -> str:
        members = [evaluation for group in self.groups for evaluation in group.members.values()]
        return "bits per byte" if any(evaluation.by_bytes for evaluation in members) else "perplexity"

    def tests(self) -> list[Table]:
        """Tables of all tests: over seeds if there are several, and within each seed."""
        against, tables = f"against {self.groups[0].name}", []
        if self.over_seeds:
            keys = ["group", "length", "pairs", "difference", "t", "p", "p_holm", "reason"]
            rows = [[_number(cell.get(key)) for key in keys] for cell in self.cells if "p" in cell]
            tables.append(Table([against, *keys[1:6], "p (Holm)", "reason"], rows, "over seeds: paired t-test"))
        if self.within:
            keys = ["group", "length", "seed", "units", "difference", "low", "high", "p_bootstrap", "p", "p_holm"]
            unit = "nats" if self.quantity == "perplexity" else "bits per byte"
            heads = ["length", "seed", self.within[0]["resampled"], f"difference ({unit})", "95% from", "to"]
            heads += ["p (bootstrap)", "p (flips)", "p (Holm)"]
            rows = [[_number(row[key]) for key in keys] for row in self.within]
            tables.append(Table([against, *heads], rows, "within a seed: bootstrap and sign-flip test"))
        return tables

    def lines(self) -> list[Line]:
        """Lines of a figure: mean over seeds with a band of ± 1 standard deviation, of zero width for one seed."""
        lines = []
        for group in self.groups:
            alive = list(group.alive().values())
            if not alive:
                continue
            cells = [cell for cell in self.cells if cell["group"] == group.name]
            pairs = [(cell["mean"], cell["deviation"] or 0.0) for cell in cells]
            low, middle, high = ([mean and mean + sign * spread for mean, spread in pairs] for sign in (-1, 0, 1))
            spec, train_length = alive[0].about["model"].get("scheme"), alive[0].train_length
            lines.append(Line(group.name, spec, self.lengths, middle, low, high, train_length))
        return lines

    def notes(self) -> list[str]:
        """Legend of the marks, and the seeds that diverged or are missing."""
        tests = []
        if self.over_seeds:
            tests.append(f"paired two-sided t-test over seeds, p < {ALPHA:g}, not corrected")
        if any(cell.get("pairs", 2) < 2 for cell in self.cells) and self.within:
            unit = self.within[0]["resampled"]
            tests.append(f"one seed: sign-flip test over {unit}, p < {ALPHA:g} after Holm correction")
        first, notes = self.groups[0].name, []
        if tests:
            notes.append(f"† {first} is significantly better, * significantly worse ({'; '.join(tests)}).")
        all_seeds = {seed for group in self.groups for seed in group.seeds()}
        for group in self.groups:
            if diverged := group.diverged():
                notes.append(f"{group.name}: diverged with seed {', '.join(map(str, diverged))}.")
            missing = all_seeds - group.members.keys()
            if missing and FOREIGN not in group.members:
                notes.append(f"{group.name}: no result for seed {', '.join(map(str, sorted(missing)))}.")
        return notes

    @property
    def over_seeds(self) -> bool:
        """Whether any group shares two or more seeds with the reference."""
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
    """Group evaluations by everything except the seed, and compare each group with the first."""
    groups = group(evaluations)
    lengths = _shared_lengths(groups)
    cells = [_summary(member, length) for member in groups for length in lengths]
    reference = groups[0]
    tested = [cell for cell in cells if cell["group"] != reference.name]
    for cell in tested:
        other = next(member for member in groups if member.name == cell["group"])
        cell.update(_over_seeds(other.values(cell["length"]), reference.values(cell["length"])))
    for cell, corrected in zip(tested, holm([cell["p"] for cell in tested]), strict=True):
        cell["p_holm"] = corrected
    within = [row for other in groups[1:] for length in lengths for row in _within(other, reference, length, by)]
    for row, corrected in zip(within, holm([row["p"] for row in within]), strict=True):
        row["p_holm"] = corrected
    _mark(tested, within)
    return Comparison(groups, lengths, cells, within)


def group(evaluations: Sequence[Evaluation]) -> list[Group]:
    """Group evaluations by everything except the seed, in the order of their first members."""
    if not evaluations:
        raise BadInput("nothing to compare: give at least one result file")
    groups: dict[str, dict[int, Evaluation]] = {}
    identities: dict[str, dict[str, Any]] = {}
    _check_comparable([evaluation for evaluation in evaluations if evaluation.losses])
    for evaluation in _without_duplicates(evaluations):
        identity = _identity(evaluation)
        key = next((key for key, other in identities.items() if other == identity), str(len(identities)))
        identities[key] = identity
        members = groups.setdefault(key, {})
        seed = _seed(evaluation)
        previous = members.get(seed)
        if previous is not None and previous.losses and evaluation.losses:
            shared = previous.losses.keys() & evaluation.losses.keys()
            if any(bool((previous.losses[length] != evaluation.losses[length]).any()) for length in shared):
                raise BadInput(f"two different results for {evaluation.about['model']['name']} with seed {seed}")
        # A run that diverged and was then repaired counts as repaired.
        if previous is None or len(evaluation.losses) > len(previous.losses):
            members[seed] = evaluation
    names = _names([(members[min(members)], identities[key]) for key, members in groups.items()])
    return [Group(name, members) for name, members in zip(names, groups.values(), strict=True)]


def _without_duplicates(evaluations: Sequence[Evaluation]) -> list[Evaluation]:
    """Drop results of a run's model folder if there are results of the run itself: they are the same model."""
    runs = {_weights(evaluation) for evaluation in evaluations if "recipe" in evaluation.about["model"]} - {None}
    return [
        evaluation
        for evaluation in evaluations
        if "recipe" in evaluation.about["model"] or _weights(evaluation) not in runs
    ]


def _weights(evaluation: Evaluation) -> tuple[Any, ...] | None:
    """Weights, configuration and window; the same weights with another configuration are another model."""
    model = evaluation.about["model"]
    return (model["weights"], model.get("configuration"), evaluation.about["window"]) if model.get("weights") else None


def _seed(evaluation: Evaluation) -> int:
    return int(evaluation.about["model"].get("recipe", {}).get("seed", FOREIGN))


def _identity(evaluation: Evaluation) -> dict[str, Any]:
    """Everything that defines the experiment, except its seed."""
    model = evaluation.about["model"]
    if "recipe" not in model:
        identity = {key: model.get(key) for key in ("name", "weights", "configuration")}
        return {**identity, "window": evaluation.about["window"]}
    recipe = {key: value for key, value in without_defaults(model["recipe"]).items() if key not in NOT_COMPARED}
    about = {"data": model.get("data"), "scheme_source": model.get("scheme_source")}
    return {**recipe, **about, "cache window": evaluation.about["window"]}


def _check_comparable(alive: Sequence[Evaluation]) -> None:
    """Raise BadInput unless all results have the same targets from the same text."""
    if not alive:
        raise BadInput("nothing to compare: every run diverged")
    first = alive[0]
    keys = [key for key in ALIKE if not (first.by_bytes and key in ("tokenizer", "bos"))]
    for other in alive[1:]:
        differing = [key for key in keys if first.about.get(key) != other.about.get(key)]
        if first.about["model"].get("dtype") != other.about["model"].get("dtype"):
            differing.append("dtype")
        if differing or first.targets != other.targets:
            name, other_name = (evaluation.about["model"]["name"] for evaluation in (first, other))
            same_longest = max(first.losses) == max(other.losses)
            reason = ", ".join(differing) or ("the targets that were drawn" if same_longest else "the longest length")
            raise BadInput(f"{name} and {other_name} were not evaluated on the same targets: they differ in {reason}")


def _names(experiments: list[tuple[Evaluation, dict[str, Any]]]) -> list[str]:
    """Model name of each experiment; where names collide, with the settings that differ."""
    models = [evaluation.about["model"]["name"] for evaluation, _ in experiments]
    names = []
    for index, (_, identity) in enumerate(experiments):
        rivals = [
            other for place, (_, other) in enumerate(experiments) if models[place] == models[index] and place != index
        ]
        keys = sorted({key for other in rivals for key in identity if other.get(key) != identity[key]})
        details = ", ".join(f"{key} {str(identity[key])[:12]}" for key in keys)
        names.append(f"{models[index]} ({details})" if details else models[index])
    return names


def _shared_lengths(groups: list[Group]) -> list[int]:
    """Lengths that all evaluations have."""
    return sorted(set.intersection(*(set(member.losses) for group in groups for member in group.alive().values())))


def _summary(group: Group, length: int) -> dict[str, Any]:
    values = list(group.values(length).values())
    return {
        "group": group.name,
        "length": length,
        "seeds": len(values),
        "diverged": len(group.diverged()),
        "mean": finite(fmean(values)) if values else None,
        "deviation": stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else None,
        "mark": "",
    }


def _over_seeds(values: dict[int, float], reference: dict[int, float]) -> dict[str, Any]:
    """Paired t-test over the seeds that both groups have."""
    shared = sorted(values.keys() & reference.keys())
    infinite = not all(math.isfinite(group[seed]) for group in (values, reference) for seed in shared)
    if infinite or not shared:
        reason = "a perplexity is infinite" if infinite else "no seed in common"
        return {"pairs": len(shared), "difference": None, "t": None, "p": None, "reason": reason}
    test = paired_t([values[seed] for seed in shared], [reference[seed] for seed in shared])
    t = finite(test.statistic)
    return {"pairs": len(shared), "difference": test.difference, "t": t, "p": test.p, "reason": test.reason}


def _pairs(group: Group, reference: Group) -> list[tuple[int, Evaluation, Evaluation]]:
    """Results of the same seed; a result without a seed is paired with every seed of the other group."""
    left, right = group.alive(), reference.alive()
    pairs = [(seed, left[seed], right[seed]) for seed in sorted(left.keys() & right.keys())]
    if not pairs and FOREIGN in left:
        pairs = [(seed, left[FOREIGN], evaluation) for seed, evaluation in sorted(right.items())]
    if not pairs and FOREIGN in right:
        pairs = [(seed, evaluation, right[FOREIGN]) for seed, evaluation in sorted(left.items())]
    return pairs


def _within(group: Group, reference: Group, length: int, by: By) -> list[dict[str, Any]]:
    """Bootstrap interval and sign-flip test within each seed."""
    rows = []
    for seed, evaluation, other in _pairs(group, reference):
        differences_N = differences(evaluation.quantities(length), other.quantities(length))
        units_N = np.arange(len(differences_N)) if by == "tokens" else evaluation.documents
        interval, bootstrap = bootstrap_difference(differences_N, units_N)
        flip = sign_flip(differences_N, units_N)
        low, high = map(finite, interval)
        rows.append(
            {
                "group": group.name,
                "length": length,
                "seed": None if seed == FOREIGN else seed,
                "resampled": by,
                "units": len(set(units_N.tolist())),
                "difference": flip.difference,
                "low": low,
                "high": high,
                "p_bootstrap": bootstrap.p,
                "p": flip.p,
                "reason": flip.reason,
            }
        )
    return rows


def _mark(tested: list[dict[str, Any]], within: list[dict[str, Any]]) -> None:
    """Set † if the reference is better, * if it is worse: by the test over seeds, or over documents if one seed."""
    for cell in tested:
        p, difference = cell["p"], cell["difference"]
        if cell["pairs"] < 2:
            rows = [row for row in within if (row["group"], row["length"]) == (cell["group"], cell["length"])]
            p, difference = (rows[0]["p_holm"], rows[0]["difference"]) if len(rows) == 1 else (None, None)
        if p is not None and difference is not None and p < ALPHA:
            cell["mark"] = "†" if difference > 0 else "*"


def _cell(cell: dict[str, Any]) -> str:
    if cell["mean"] is None:
        return "∞" if cell["seeds"] else "diverged" if cell["diverged"] else "–"
    digits = places(cell["mean"], cell["deviation"])
    spread = f" ± {cell['deviation']:.{digits}f}" if cell["deviation"] is not None else ""
    return f"{cell['mean']:.{digits}f}{spread}{cell['mark']}"


def _number(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def places(value: float, deviation: float | None = None) -> int:
    """Decimal places that show three significant digits of a value of at least 1, and one of its deviation."""
    digits = max(0, 2 - int(math.log10(max(value, 1))))
    return digits if not deviation else max(digits, min(6, math.ceil(-math.log10(2 * deviation))))
