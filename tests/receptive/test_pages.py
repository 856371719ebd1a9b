"""Complete reports in a real browser: a measurement and a study show every part, and hostile names are only text."""

import numpy as np
import pytest
import torch
from browsing import Open

from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation
from fieldlens.receptive import report as receptive_report
from fieldlens.receptive.check import Check
from fieldlens.receptive.explorer.data import Target
from fieldlens.receptive.field import ReceptiveField
from fieldlens.receptive.result import Measurement
from fieldlens.study.page import blocks as study_blocks
from fieldlens.study.results import Result

HOSTILE = "<script>window.hacked=1</script><img src=x onerror=window.hacked=1>"


def measurement(name: str) -> Measurement:
    """A measurement with every part, where `name` is used for all texts."""
    rng = np.random.default_rng(0)
    about = {
        "model": {"name": name, "scheme": None},
        "data": {"corpus": name},
        "asked": {"segments": 4, "length": 64, "target": "log-likelihood"},
        "theoretical": {"exact": 40, "paper": 42, "windows": [21, 21]},
        "versions": {"fieldlens": "0"},
    }
    field = ReceptiveField(rng.random((4, 64)), name=name, train_length=32)
    tokens = [name, " a", "\n", " b"] * 16 + [name]
    targets = [Target(n, 64, tokens, field.segments()[n]) for n in range(4)]
    targets += [Target(0, 64, tokens, field.segments()[1], layer) for layer in (1, 2)]
    probe = {"cuts": [1, 8, 64], "loss": [3.0, 2.0, 1.0], "divergence": [2.0, 1.0, 0.0]}
    evaluation = Evaluation(
        {"model": {"name": name, "train_length": 32}, "protocol": {"same_targets": True}, "segments": 40},
        {n: torch.from_numpy(rng.random(40) + 1) for n in (16, 32, 64)},
        [Anchor(n // 4, n) for n in range(40)],
    )
    layers = {1: rng.random(64), 2: rng.random(64)}
    return Measurement(
        about,
        field,
        layers,
        probe,
        Check(evaluation, {8: evaluation}, {"window 8": 800, "context 64": 6400}, "float32"),
        targets,
    )


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_report_shows_every_part_of_a_measurement(show: Open, width: int, scheme: str) -> None:
    measurements = [measurement(HOSTILE), measurement("plain")]
    page = show(
        *receptive_report.blocks(measurements, HOSTILE),
        title=HOSTILE,
        viewport={"width": width, "height": 800},
        color_scheme=scheme,
    )
    headings = page.locator("h2").all_inner_texts()
    assert headings[2] == "What it looked at"  # the first section after the models
    for part in (
        "How far back it looks",
        "Receptive field by layer",
        "Effect of cutting the context",
        "Check against perplexity",
    ):
        assert part in headings
    assert page.locator("svg[role=img]").count() == 5
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert HOSTILE in page.locator("body").inner_text()


def result(name: str, seed: int) -> Result:
    """The result of one run of a study."""
    rng = np.random.default_rng(seed)
    recipe = {"scheme": name, "corpus": name, "seed": seed, "length": 32}
    model = {"name": name, "scheme": None, "recipe": recipe, "data": "0", "train_length": 32}
    evaluation = Evaluation(
        {
            "model": model,
            "protocol": {"same_targets": True},
            "segments": 40,
            "window": None,
            "asked": {"lengths": [64]},
        },
        {n: torch.from_numpy(rng.random(40) + 1) for n in (16, 32, 64)},
        [Anchor(n // 4, n) for n in range(40)],
    )
    about = {"state": "done", "recipe": recipe, "evaluations": [{"lengths": [64]}], "versions": {"fieldlens": "0"}}
    return Result(f"{name}-{seed}", about, [evaluation], measurement(name))


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_study_shows_every_part(show: Open, width: int, scheme: str) -> None:
    results = [result(HOSTILE, seed) for seed in (1, 2)] + [result("plain", 1)]
    blocks = study_blocks(results, failed=[HOSTILE], missing=[HOSTILE])
    page = show(*blocks, title=HOSTILE, viewport={"width": width, "height": 800}, color_scheme=scheme)
    headings = page.locator("h2").all_inner_texts()
    assert "Does coverage predict extrapolation?" in headings
    assert page.locator("svg[role=img]").count() == 4
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert HOSTILE in page.locator("body").inner_text()
