"""Claims: where the world is as the paper says all hold, where it is not none does, and nothing decides nothing."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shelving import Told
from worlds import (
    as_printed,
    contrary,
    fields_as_printed,
    fields_contrary,
    first_wave,
    judge,
    learned,
    with_a_second_seed,
)

from fieldlens.paper.claims import findings, judged, over, sandwich, settled
from fieldlens.paper.evidence import Evidence
from fieldlens.paper.page import html, markdown
from fieldlens.paper.results import PaperResults
from fieldlens.study.plan import Job, Study, read_study

ROOT = Path(__file__).parents[2]
NEEDS_NOTHING = {"slope-floor", "two-fits", "dims-window"}
"""What no run decides."""
APART = {"parity-fails"}
"""A claim with a study of its own, and tests beside it."""


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


@pytest.fixture(scope="module")
def worlds(study: Study) -> dict[str, PaperResults]:
    return {
        "holds": Told(
            study,
            as_printed,
            fields_as_printed,
            with_a_second_seed,
            lambda job: 100 + 10 * job.name.startswith(("t5", "kerple")),
        ),
        "does not hold": Told(
            study, contrary, fields_contrary, with_a_second_seed, lambda job: 100 - 10 * learned(job)
        ),
        "undecided": Told(study, there=lambda job: False),
    }


@pytest.mark.parametrize("verdict", ["holds", "does not hold", "undecided"])
def test_every_claim_comes_out_as_the_world_is(worlds: dict[str, PaperResults], verdict: str) -> None:
    found = {one.name: one for one in judged(worlds[verdict])}
    wrong = {
        name: (one.verdict, one.evidence)
        for name, one in found.items()
        if one.verdict != verdict
        and name not in NEEDS_NOTHING | APART
        and (name, verdict) != ("erf-as-printed", "does not hold")
    }
    assert not wrong
    assert {found[name].verdict for name in NEEDS_NOTHING} == {"holds"}


def test_what_is_undecided_names_a_run(worlds: dict[str, PaperResults]) -> None:
    for one in judged(worlds["undecided"]):
        assert one.name in NEEDS_NOTHING | APART or any(" on " in need for need in one.needs), one.name


def test_a_claim_that_does_not_hold_says_what_would_decide(worlds: dict[str, PaperResults]) -> None:
    found = judged(worlds["does not hold"])
    assert all(one.decides for one in found if one.verdict == "does not hold")
    assert not any(one.decides for one in found if one.verdict == "holds")


def test_one_corpus_against_another_does_not_hold(study: Study) -> None:
    """A claim must hold on every corpus that was run."""

    def law(job: Job, length: int, asked: dict[str, Any]) -> float:
        return (as_printed if job.recipe.corpus == "latex" else contrary)(job, length, asked)

    shelf = Told(study, law, fields_as_printed, lambda job: job.recipe.seed == 1235)
    found = judge(shelf, "alibi-rises")
    assert found.verdict == "does not hold"
    assert [word.split(":")[0] for word in found.evidence] == ["latex", "prose", "code"]


def test_one_no_outweighs_and_a_doubt_stays() -> None:
    assert settled([True, None, False]) is False
    assert settled([True, None]) is None
    assert settled([True, True]) is True


BETWEEN = [
    "slope-values", "narrow-windows", "sandwich-best", "sandwich-comparable", "dims-128", "learned-better",
    "smoothed-alike", "one-pattern",
]  # fmt: skip
"""Claims that compare models with each other."""


@pytest.mark.parametrize("name", BETWEEN)
def test_one_seed_does_not_tell_models_apart(study: Study, name: str) -> None:
    for law in (as_printed, contrary):
        found = judge(Told(study, law, there=first_wave), name)
        assert found.verdict == "undecided"
        assert "two or more seeds" in found.wants[0]


@pytest.mark.parametrize("name", BETWEEN)
def test_seeds_that_disagree_decide_nothing(study: Study, name: str) -> None:
    def law(job: Job, length: int, asked: dict[str, Any]) -> float:
        return (as_printed if job.recipe.seed == 1235 else contrary)(job, length, asked)

    def spread(job: Job, length: int) -> np.ndarray:
        return (fields_as_printed if job.recipe.seed == 1235 else fields_contrary)(job, length)

    found = judge(Told(study, law, spread, with_a_second_seed), name)
    assert found.verdict == "undecided"


ALONE = {
    "alibi-rises": "alibi",
    "sandwich-improves": "sandwich",
    "falls-then-rises": "sandwich",
    "sliding-cache": "sandwich",
    "leave-the-field": "rotary",
    "large-slopes": "alibi:same",
    "early-tokens": "alibi",
}
"""Claims about one model at a time, and one that they ask about."""


@pytest.mark.parametrize("name", ALONE)
def test_a_seed_that_goes_its_own_way_leaves_a_claim_about_one_model_open(study: Study, name: str) -> None:
    """One seed much as the paper says, two a little otherwise: pooled it would look as the paper says."""

    def law(job: Job, length: int, asked: dict[str, Any]) -> float:
        told = as_printed(job, length, asked)
        if job.recipe.seed == 1235 or not job.recipe.scheme.startswith(ALONE[name]):
            return told
        base = as_printed(job, 128, {**asked, "window": None})
        return base - 0.1 * (told - base)

    shelf = Told(study, law, fields_as_printed, lambda job: job.recipe.corpus == "latex" and job.recipe.seed < 1238)
    assert judge(shelf, name).verdict == "undecided"


@pytest.mark.parametrize("name", ["sinusoidal-jumps", "rotary-rings", "windows-covered"])
def test_seeds_whose_fields_disagree_decide_nothing(study: Study, name: str) -> None:
    def spread(job: Job, length: int) -> np.ndarray:
        return fields_as_printed(job, length) if job.recipe.seed == 1235 else np.ones(length)

    shelf = Told(study, as_printed, spread, with_a_second_seed)
    assert judge(shelf, name).verdict == "undecided"


@pytest.mark.parametrize(("name", "drift"), [("alibi-rises", 0.0003), ("sandwich-improves", -0.0003)])
def test_a_trifle_is_no_move_however_certain(study: Study, name: str, drift: float) -> None:
    def law(job: Job, length: int, asked: dict[str, Any]) -> float:
        return 3.0 + drift * (length > job.recipe.length)

    found = judge(Told(study, law, there=first_wave, noise=1e-5), name)
    assert found.verdict == "does not hold"


def test_models_go_by_the_papers_names_and_ours(worlds: dict[str, PaperResults]) -> None:
    shelf = worlds["holds"]
    assert [shelf.label(model) for model in ("alibi", "shift:2", "same:8", "window:80", "t5", "sandwich:dims=64")] == [
        "alibi", "Δ 2 | 0", "h 8 | 6", "w 80 | 20", "t5", "sandwich:dims=64",
    ]  # fmt: skip
    assert Told(read_study("paper-full")).label("window:80") == "w 80"


def test_a_corpus_that_was_run_and_decides_nothing_leaves_a_claim_open(worlds: dict[str, PaperResults]) -> None:
    answers: dict[str, bool | None] = {"arxiv": True, "openwebtext2": None}
    found = over(Evidence(worlds["holds"]), list(answers), lambda corpus: (answers[corpus], [corpus]))
    assert (found.verdict, found.needs, found.wants) == ("undecided", [], ["prose: more targets or seeds"])


@pytest.mark.parametrize(
    ("name", "module", "where", "value"),
    [
        ("slope-floor", findings, "FLOOR", 0.001),
        ("two-fits", findings, "PRINTED", (-1.02, -0.02)),
        ("erf-as-printed", findings, "cumulative", lambda shares: np.linspace(0, 1, len(shares))),
        ("dims-window", sandwich, "DIMENSIONS", ("sandwich", "sandwich:dims=64")),
    ],
)
def test_findings_that_need_no_run_can_fail(
    worlds: dict[str, PaperResults], monkeypatch: pytest.MonkeyPatch, name: str, module: Any, where: str, value: Any
) -> None:
    monkeypatch.setattr(module, where, value)
    assert judge(worlds["holds"], name).verdict == "does not hold"


def test_the_pages_show_every_claim(worlds: dict[str, PaperResults]) -> None:
    shelf = worlds["does not hold"]
    found = judged(shelf)
    text, page = markdown(shelf, found), html(shelf, found)
    for one in found:
        assert f"### {one.name}: {one.verdict}" in text
        assert one.name in page
    assert "latex" in text
    assert "2 of 5 seeds" in text
    assert "stood for by" in text


def test_the_committed_page_is_what_the_committed_results_say() -> None:
    """Nobody writes a verdict by hand: `fieldlens paper claims --out docs` writes the page."""
    shelf = PaperResults(read_study("paper"), ROOT / "results" / "paper")
    assert (ROOT / "docs" / "claims.md").read_text() == markdown(shelf, judged(shelf))


def test_evidence_shows_what_each_seed_says(study: Study) -> None:
    """So that a reader sees why a small p decides nothing."""

    def law(job: Job, length: int, asked: dict[str, Any]) -> float:
        return 3.0 + (0.1 if job.recipe.seed == 1235 else -0.3) * (job.recipe.scheme == "kerple")

    shelf = Told(study, law, fields_as_printed, with_a_second_seed, noise=0.0)
    found = judge(shelf, "learned-better")
    assert found.verdict == "undecided"
    assert any("kerple minus sandwich: -0.1000" in line and "seeds +0.1000, -0.3000" in line for line in found.evidence)


def test_what_diverged_is_named(study: Study) -> None:
    shelf = Told(study, as_printed, fields_as_printed, first_wave)
    for job in study.whole:
        one = shelf.result(job)
        if one is not None and job.recipe.scheme == "kerple":
            one.about["state"] = "diverged"
            one.evaluations[:] = [dataclasses.replace(each, losses={}) for each in one.evaluations]
    found = judge(shelf, "learned-better")
    assert "kerple on latex, which diverged with seed 1235" in found.needs
    assert "Diverged, and counted as no number: kerple-latex-1235" in markdown(shelf, [found])
