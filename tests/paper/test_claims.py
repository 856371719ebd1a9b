"""Claims: all hold on results as the paper describes them, none on contrary results, none decided without results."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_results import MadeUpResults
from made_up_worlds import (
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
"""Claims that need no runs."""
APART = {"parity-fails"}
"""A claim with its own study, tested in test_parity.py."""


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


@pytest.fixture(scope="module")
def worlds(study: Study) -> dict[str, PaperResults]:
    return {
        "holds": MadeUpResults(
            study,
            as_printed,
            fields_as_printed,
            with_a_second_seed,
            lambda job: 100 + 10 * job.name.startswith(("t5", "kerple")),
        ),
        "does not hold": MadeUpResults(
            study, contrary, fields_contrary, with_a_second_seed, lambda job: 100 - 10 * learned(job)
        ),
        "undecided": MadeUpResults(study, available=lambda job: False),
    }


@pytest.mark.parametrize("verdict", ["holds", "does not hold", "undecided"])
def test_every_claim_comes_out_as_the_world_is(worlds: dict[str, PaperResults], verdict: str) -> None:
    claims = {claim.name: claim for claim in judged(worlds[verdict])}
    wrong = {
        name: (claim.verdict, claim.evidence)
        for name, claim in claims.items()
        if claim.verdict != verdict
        and name not in NEEDS_NOTHING | APART
        and (name, verdict) != ("erf-as-printed", "does not hold")
    }
    assert not wrong
    assert {claims[name].verdict for name in NEEDS_NOTHING} == {"holds"}


def test_an_undecided_claim_names_a_run(worlds: dict[str, PaperResults]) -> None:
    for claim in judged(worlds["undecided"]):
        assert claim.name in NEEDS_NOTHING | APART or any(" on " in need for need in claim.needs), claim.name


def test_a_claim_that_does_not_hold_says_what_would_decide(worlds: dict[str, PaperResults]) -> None:
    claims = judged(worlds["does not hold"])
    assert all(claim.decides for claim in claims if claim.verdict == "does not hold")
    assert not any(claim.decides for claim in claims if claim.verdict == "holds")


def test_one_corpus_against_another_does_not_hold(study: Study) -> None:
    """A claim must hold on every corpus that was run."""

    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        return (as_printed if job.recipe.corpus == "latex" else contrary)(job, length, request)

    results = MadeUpResults(study, law, fields_as_printed, lambda job: job.recipe.seed == 1235)
    claim = judge(results, "alibi-rises")
    assert claim.verdict == "does not hold"
    assert [line.split(":")[0] for line in claim.evidence] == ["latex", "prose", "code"]


def test_one_false_answer_decides_and_none_leaves_it_open() -> None:
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
        claim = judge(MadeUpResults(study, law, available=first_wave), name)
        assert claim.verdict == "undecided"
        assert "two or more seeds" in claim.wants[0]


@pytest.mark.parametrize("name", BETWEEN)
def test_seeds_that_disagree_decide_nothing(study: Study, name: str) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        return (as_printed if job.recipe.seed == 1235 else contrary)(job, length, request)

    def spread(job: Job, length: int) -> np.ndarray:
        return (fields_as_printed if job.recipe.seed == 1235 else fields_contrary)(job, length)

    claim = judge(MadeUpResults(study, law, spread, with_a_second_seed), name)
    assert claim.verdict == "undecided"


ALONE = {
    "alibi-rises": "alibi",
    "sandwich-improves": "sandwich",
    "falls-then-rises": "sandwich",
    "sliding-cache": "sandwich",
    "leave-the-field": "rotary",
    "large-slopes": "alibi:same",
    "early-tokens": "alibi",
}
"""Claims about one model at a time, with the model that the test changes."""


@pytest.mark.parametrize("name", ALONE)
def test_one_deviating_seed_leaves_a_claim_about_one_model_open(study: Study, name: str) -> None:
    """One seed agrees strongly with the paper, two differ a little: pooled they would agree with the paper."""

    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        loss = as_printed(job, length, request)
        if job.recipe.seed == 1235 or not job.recipe.scheme.startswith(ALONE[name]):
            return loss
        base = as_printed(job, 128, {**request, "window": None})
        return base - 0.1 * (loss - base)

    results = MadeUpResults(
        study, law, fields_as_printed, lambda job: job.recipe.corpus == "latex" and job.recipe.seed < 1238
    )
    assert judge(results, name).verdict == "undecided"


@pytest.mark.parametrize("name", ["sinusoidal-jumps", "rotary-rings", "windows-covered"])
def test_seeds_whose_fields_disagree_decide_nothing(study: Study, name: str) -> None:
    def spread(job: Job, length: int) -> np.ndarray:
        return fields_as_printed(job, length) if job.recipe.seed == 1235 else np.ones(length)

    results = MadeUpResults(study, as_printed, spread, with_a_second_seed)
    assert judge(results, name).verdict == "undecided"


@pytest.mark.parametrize(("name", "drift"), [("alibi-rises", 0.0003), ("sandwich-improves", -0.0003)])
def test_a_negligible_change_is_no_change_however_significant(study: Study, name: str, drift: float) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        return 3.0 + drift * (length > job.recipe.length)

    claim = judge(MadeUpResults(study, law, available=first_wave, noise=1e-5), name)
    assert claim.verdict == "does not hold"


def test_models_go_by_the_papers_names_and_ours(worlds: dict[str, PaperResults]) -> None:
    results = worlds["holds"]
    models = ("alibi", "shift:2", "same:8", "window:80", "t5", "sandwich:dims=64")
    labels = ["alibi", "Δ 2 | 0", "h 8 | 6", "w 80 | 20", "t5", "sandwich:dims=64"]
    assert [results.label(model) for model in models] == labels
    assert MadeUpResults(read_study("paper-full")).label("window:80") == "w 80"


def test_a_corpus_that_was_run_and_decides_nothing_leaves_a_claim_open(worlds: dict[str, PaperResults]) -> None:
    answers: dict[str, bool | None] = {"arxiv": True, "openwebtext2": None}
    outcome = over(Evidence(worlds["holds"]), list(answers), lambda corpus: (answers[corpus], [corpus]))
    assert (outcome.verdict, outcome.needs, outcome.wants) == ("undecided", [], ["prose: more targets or seeds"])


@pytest.mark.parametrize(
    ("name", "module", "attribute", "value"),
    [
        ("slope-floor", findings, "FLOOR", 0.001),
        ("two-fits", findings, "PRINTED", (-1.02, -0.02)),
        ("erf-as-printed", findings, "cumulative", lambda shares: np.linspace(0, 1, len(shares))),
        ("dims-window", sandwich, "DIMENSIONS", ("sandwich", "sandwich:dims=64")),
    ],
)
def test_findings_that_need_no_run_can_fail(
    worlds: dict[str, PaperResults], monkeypatch: pytest.MonkeyPatch, name: str, module: Any, attribute: str, value: Any
) -> None:
    monkeypatch.setattr(module, attribute, value)
    assert judge(worlds["holds"], name).verdict == "does not hold"


def test_the_pages_show_every_claim(worlds: dict[str, PaperResults]) -> None:
    results = worlds["does not hold"]
    claims = judged(results)
    text, page = markdown(results, claims), html(results, claims)
    for claim in claims:
        assert f"### {claim.name}: {claim.verdict}" in text
        assert claim.name in page
    assert "latex" in text
    assert "2 of 5 seeds" in text
    assert "stood for by" in text


def test_the_committed_page_is_what_the_committed_results_say() -> None:
    """`fieldlens paper claims --out docs` writes the page."""
    results = PaperResults(read_study("paper"), ROOT / "results" / "paper")
    assert (ROOT / "docs" / "claims.md").read_text() == markdown(results, judged(results))


def test_evidence_shows_what_each_seed_says(study: Study) -> None:
    """It shows why a small p does not decide the claim."""

    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        return 3.0 + (0.1 if job.recipe.seed == 1235 else -0.3) * (job.recipe.scheme == "kerple")

    results = MadeUpResults(study, law, fields_as_printed, with_a_second_seed, noise=0.0)
    claim = judge(results, "learned-better")
    assert claim.verdict == "undecided"
    assert any("kerple minus sandwich: -0.1000" in line and "seeds +0.1000, -0.3000" in line for line in claim.evidence)


def test_a_diverged_run_is_named(study: Study) -> None:
    results = MadeUpResults(study, as_printed, fields_as_printed, first_wave)
    for job in study.whole:
        result = results.result(job)
        if result is not None and job.recipe.scheme == "kerple":
            result.about["state"] = "diverged"
            result.evaluations[:] = [dataclasses.replace(evaluation, losses={}) for evaluation in result.evaluations]
    claim = judge(results, "learned-better")
    assert "kerple on latex, which diverged with seed 1235" in claim.needs
    assert "Diverged, and counted as no number: kerple-latex-1235" in markdown(results, [claim])
