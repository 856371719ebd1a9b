"""Recipes: presets, the schedule, and the identity of an experiment."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest

import fieldlens.training.recipe as recipes
from fieldlens.core.errors import BadInput
from fieldlens.receptive.request import MeasureRequest
from fieldlens.storage.run_dir import Run
from fieldlens.storage.sealed import digest
from fieldlens.study import plan
from fieldlens.study.plan import Job, job_from
from fieldlens.training.loop import check
from fieldlens.training.recipe import ADDED, PRESETS, Recipe, experiment, identity, recipe, recipe_from

VERSION_0_1 = [
    "scheme", "corpus", "seed", "tokenizer", "bpe", "pad_vocabulary", "max_bytes", "layers", "width", "heads", "tied",
    "init_std", "length", "batch", "accumulation", "steps", "learning_rate", "final_learning_rate", "warmup", "beta1",
    "beta2", "epsilon", "weight_decay", "clip",
]  # fmt: skip
"""The fields of a recipe in version 0.1: all of them name a training."""


def test_the_papers_schedule() -> None:
    paper = PRESETS["paper"]
    assert paper.rate(0) == pytest.approx(6e-4 / 500)
    assert paper.rate(499) == paper.rate(500) == 6e-4
    assert paper.rate(25_250) == pytest.approx((6e-4 + 5.9e-7) / 2, rel=1e-3)
    assert paper.rate(50_000) == pytest.approx(5.9e-7)
    assert paper.batch * paper.length * paper.steps == 819_200_000


def test_changes_replace_fields_and_none_does_not() -> None:
    assert recipe("smoke", steps=7, width=None) == dataclasses.replace(PRESETS["smoke"], steps=7)
    with pytest.raises(BadInput, match="unknown preset 'glace': did you mean 'glance'"):
        recipe("glace")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be finite and greater than 0, got nan"),
        ({"clip": 0.0}, "clip must be finite and greater than 0, got 0"),
        ({"seed": -1}, "seed must be finite and at least 0, got -1"),
        ({"seed": 2**63}, "seed must be less than 2\\^63, got"),
        ({"beta1": 1.5}, "beta1 must be at least 0 and less than 1, got 1.5"),
        ({"beta2": 1.0}, "beta2 must be at least 0 and less than 1, got 1.0"),
        ({"beta1": float("nan")}, "beta1 must be at least 0 and less than 1, got nan"),
        ({"weight_decay": float("inf")}, "weight_decay must be finite and at least 0, got inf"),
        ({"final_learning_rate": float("inf")}, "final_learning_rate must be finite and at least 0, got inf"),
        ({"optimiser": "muom"}, "unknown optimiser 'muom': did you mean 'muon'"),
        ({"batch": 8, "accumulation": 3}, "batch 8 is not a multiple of accumulation 3"),
    ],
)
def test_bad_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        recipe("smoke", **changes)


def test_an_experiment_is_named_by_its_content() -> None:
    first, second = (experiment(Recipe(corpus=name), "d") for name in ("a", "b"))
    assert digest(first) == digest(second)
    assert set(first) == {*VERSION_0_1, "data"} - {"corpus", "tokenizer"}
    assert digest(experiment(Recipe(seed=1), "d")) != digest(first) != digest(experiment(Recipe(), "e"))


def test_every_later_field_is_declared_as_added() -> None:
    """A field that is missing in ADDED would make all earlier results stale and forbid to resume earlier runs."""
    fields = [field.name for field in dataclasses.fields(Recipe)]
    assert len(VERSION_0_1) == 24
    assert fields[:24] == VERSION_0_1
    assert set(fields[24:]) == set(ADDED)


@dataclasses.dataclass(frozen=True)
class LaterRecipe(Recipe):
    """The recipe of a later version, with one more field."""

    dropout: float = 0.0


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> type[LaterRecipe]:
    """The recipe class of a later version, which declares its field."""
    monkeypatch.setattr(recipes, "ADDED", {"dropout": 0.0})
    monkeypatch.setattr(recipes, "Recipe", LaterRecipe)
    return LaterRecipe


def refused(run: Run, before: Recipe, after: Recipe) -> bool:
    """Whether a run of one recipe is refused when it is resumed with the other."""
    try:
        check(run, {"experiment": experiment(before, "d")}, experiment(after, "d"), resume=True)
    except BadInput:
        return True
    return False


def test_an_added_field_with_its_default_changes_no_identity(later: type[LaterRecipe], tmp_path: Path) -> None:
    before, after = Recipe(), later()
    assert identity(after) == identity(before)
    assert experiment(after, "d") == experiment(before, "d")
    assert Job(after, (), None).training_hash == Job(before, (), None).training_hash
    assert Job(after, (), None).name == Job(before, (), None).name
    assert not refused(Run(tmp_path), before, after)


def test_another_value_of_an_added_field_changes_the_identity(later: type[LaterRecipe], tmp_path: Path) -> None:
    before, after = Recipe(), later(dropout=0.1)
    assert identity(after) == identity(before) | {"dropout": 0.1}
    assert Job(after, (), None).training_hash != Job(before, (), None).training_hash
    assert refused(Run(tmp_path), before, after)
    assert refused(Run(tmp_path), after, before)
    with pytest.raises(BadInput, match=r"dropout \(None -> 0.1\)"):
        check(Run(tmp_path), {"experiment": experiment(before, "d")}, experiment(after, "d"), resume=True)


def test_a_field_that_is_not_declared_as_added_changes_the_identity(
    later: type[LaterRecipe], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What `test_every_later_field_is_declared_as_added` prevents."""
    monkeypatch.setattr(recipes, "ADDED", {})
    assert identity(later()) != identity(Recipe())
    assert Job(later(), (), None).training_hash != Job(Recipe(), (), None).training_hash
    assert refused(Run(tmp_path), Recipe(), later())


def test_recipes_of_earlier_versions_are_read_with_what_they_did(
    later: type[LaterRecipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = dataclasses.asdict(Recipe(seed=7))
    assert recipe_from(fields) == later(seed=7)
    assert recipe_from(fields | {"dropout": 0.1}) == later(seed=7, dropout=0.1)
    job = Job(Recipe(seed=7), (), None)
    assert job_from(job.to_json()).config_hashes == job.config_hashes
    with pytest.raises(BadInput, match="'momentum'"):
        recipe_from(fields | {"momentum": 0.9})
    monkeypatch.setattr(recipes, "ADDED", {"dropout": 0.3})  # the default of the class is a new one
    assert recipe_from(fields) == later(seed=7, dropout=0.3)


def measurement_hash(**options: Any) -> str | None:
    return Job(Recipe(), (), options).measurement_hash


@pytest.mark.parametrize("option", sorted(plan.MEASURE_BASELINE))
def test_a_measurement_option_with_its_default_changes_no_hash(option: str) -> None:
    others = {"length": 48} if option != "length" else {}
    default = plan.MEASURE_BASELINE[option]
    assert measurement_hash(**others, **{option: default}) == measurement_hash(**others)
    assert measurement_hash(**others, **{option: "another value"}) != measurement_hash(**others)
    assert getattr(MeasureRequest(), option) == default


def test_an_added_measurement_option_with_its_default_changes_no_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    before = measurement_hash(length=48)
    assert measurement_hash(length=48, norm="l2") != before
    monkeypatch.setitem(plan.MEASURE_BASELINE, "norm", "l2")
    assert measurement_hash(length=48, norm="l2") == before != measurement_hash(length=48, norm="l1")


def test_every_measurement_option_has_a_default_in_the_hashes() -> None:
    assert set(plan.MEASURE_BASELINE) == set(plan.MEASURE) - {"models"}
