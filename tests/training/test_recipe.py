"""Recipes: presets, the schedule, what makes an experiment."""

import dataclasses

import pytest

from fieldlens.core.errors import BadInput
from fieldlens.storage.content_cache import digest
from fieldlens.training.recipe import PRESETS, Recipe, experiment, recipe


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
        ({"steps": 0}, "steps is 0"),
        ({"learning_rate": float("nan")}, "learning_rate is nan"),
        ({"clip": 0.0}, "clip is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**63}, "less than 2\\^63 is needed"),
        ({"beta1": 1.5}, "beta1 is 1.5: from 0 to less than 1"),
        ({"beta2": 1.0}, "beta2 is 1.0"),
        ({"beta1": float("nan")}, "beta1 is nan"),
        ({"weight_decay": float("inf")}, "weight_decay is inf: a finite number"),
        ({"final_learning_rate": float("inf")}, "final_learning_rate is inf"),
        ({"batch": 8, "accumulation": 3}, "batch 8 is not a multiple of accumulation 3"),
    ],
)
def test_bad_numbers_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        recipe("smoke", **changes)


def test_an_experiment_is_named_by_its_content() -> None:
    one, same = (experiment(Recipe(corpus=name), "d") for name in ("a", "b"))
    assert digest(one) == digest(same)
    for field in dataclasses.fields(Recipe):
        if field.name not in ("corpus", "tokenizer"):
            assert field.name in one
    assert digest(experiment(Recipe(seed=1), "d")) != digest(one) != digest(experiment(Recipe(), "e"))
