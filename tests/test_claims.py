"""Claims: where the world is as the paper says all hold, where it is not none does, and nothing decides nothing."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from shelving import Told

from fieldlens.paper.artifacts import sinusoidal_128_512
from fieldlens.paper.claims import findings, judge_one, judged, registry, settled
from fieldlens.paper.evidence import Evidence, plateau
from fieldlens.paper.page import html, markdown
from fieldlens.paper.shelf import Shelf
from fieldlens.receptive import ReceptiveField
from fieldlens.schemes import parse
from fieldlens.study.plan import Job, Study, read_study

ROOT = Path(__file__).parent.parent
NEEDS_NOTHING = {"slope-floor", "two-fits"}
"""Findings that no run decides."""
APART = {"parity-fails"}
"""A claim with a study of its own, and tests beside it."""


def first_wave(job: Job) -> bool:
    return job.recipe.seed == 1235 and job.recipe.corpus == "latex"


def with_a_second_seed(job: Job) -> bool:
    """Also what a claim about training times needs."""
    second = job.recipe.seed == 1236 and job.recipe.corpus == "latex"
    return first_wave(job) or (second and job.recipe.scheme.startswith(("sandwich", "t5")))


def octaves(job: Job, length: int) -> float:
    return float(np.log2(length / job.recipe.length))


def kind_of(job: Job) -> tuple[str, dict[str, Any]]:
    cls, given = parse(job.recipe.scheme)
    return cls.name, given


# ---- the paper's world


def as_printed(job: Job, length: int, asked: dict[str, Any]) -> float:
    """Losses that behave as the paper tells, at a quarter of its distances."""
    (name, given), r = kind_of(job), octaves(job, length)
    if asked.get("protocol") == "non-overlapping":
        return 3.6 - 0.1 * np.log2(length / 32)
    if name == "none":
        window = given.get("window", 999)
        covered = 4.6 * 1.05 * window <= job.recipe.length
        jump = 0.0 if covered or r <= 0 else 0.3 if window <= 30 else 2.5
        return 3.5 - 0.1 * np.log(window) + jump + 0.1 * max(0.0, np.log2(4.83 * window / length))
    if name == "alibi":
        flat_slope = given.get("same", given.get("shift", 0.0))
        rise = 2.5 if flat_slope >= 4 else 0.05
        return 3.2 + rise * (r > 0) * (job.recipe.length == 128) - 0.1 * min(0.0, r)
    if name in ("rotary", "sinusoidal"):
        return 3.2 + max(0.0, r)
    base = 3.2 - 0.05 * min(r, 2.0) + 0.02 * max(0.0, r - 2)
    more = {"kerple": -0.05, "t5": -0.05, "smoothed": 0.005}.get(name, 0.0)
    return base + more + 0.05 * ("dims" in given) + 0.01 * (asked.get("window") is not None)


def fields_as_printed(job: Job, length: int) -> np.ndarray:
    (name, given), back = kind_of(job), np.arange(length)[::-1]
    if name == "none":
        window = given.get("window", 999)
        return np.exp(-back / (1.05 * window)) * (back <= job.recipe.layers * (window - 1))
    if name == "alibi":
        return np.exp(-back / 40)
    shares = (1.0 + back) ** -0.63
    if name in ("rotary", "sinusoidal"):
        end = job.recipe.length
        shares[end - 2 : end + 1] += 0.3 * shares.sum()
    return shares


# ---- a world in which all of it is wrong


def contrary(job: Job, length: int, asked: dict[str, Any]) -> float:
    (name, given), r = kind_of(job), octaves(job, length)
    if asked.get("protocol") == "non-overlapping":
        return 3.6
    if name == "none":
        window = given.get("window", 999)
        return 3.5 + (0.6 * min(3.0, max(0.0, r)) if window != 80 else 0.0)
    if name == "alibi" and "same" in given:
        return 3.2 + (1.0 if given["same"] < 0 else 0.03) * max(0.0, r)
    if name == "alibi":
        return 3.0 - 0.02 * max(0.0, r)
    if name in ("rotary", "sinusoidal"):
        return 3.1
    more = {"kerple": 0.3, "t5": 0.3, "smoothed": 0.5}.get(name, 0.0)
    better = -0.1 if given.get("dims") == 64 else 0.0
    return 3.5 + 0.05 * max(0.0, r) + more + better + 0.5 * (asked.get("window") is not None)


def fields_contrary(job: Job, length: int) -> np.ndarray:
    (name, given), back = kind_of(job), np.arange(length)[::-1]
    if name == "none":
        return np.exp(-back / (1.05 * given.get("window", 999)))  # past every reach
    if name in ("alibi", "t5"):
        return np.ones(length)
    return np.exp(-back / 20)


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


@pytest.fixture(scope="module")
def worlds(study: Study) -> dict[str, Shelf]:
    return {
        "holds": Told(
            study, as_printed, fields_as_printed, with_a_second_seed, lambda job: 110 if "t5" in job.name else 100
        ),
        "does not hold": Told(study, contrary, fields_contrary, with_a_second_seed),
        "undecided": Told(study, there=lambda job: False),
    }


@pytest.mark.parametrize("verdict", ["holds", "does not hold", "undecided"])
def test_every_claim_comes_out_as_the_world_is(worlds: dict[str, Shelf], verdict: str) -> None:
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


def test_what_is_undecided_names_a_run(worlds: dict[str, Shelf]) -> None:
    for one in judged(worlds["undecided"]):
        assert one.name in NEEDS_NOTHING | APART or any(" on " in need for need in one.needs), one.name


def test_a_claim_that_does_not_hold_says_what_would_decide(worlds: dict[str, Shelf]) -> None:
    found = judged(worlds["does not hold"])
    assert all(one.decides for one in found if one.verdict == "does not hold")
    assert not any(one.decides for one in found if one.verdict == "holds")


def test_one_corpus_against_another_does_not_hold(study: Study) -> None:
    """A claim must hold on every corpus that was run."""

    def law(job: Job, length: int, asked: dict[str, Any]) -> float:
        return (as_printed if job.recipe.corpus == "latex" else contrary)(job, length, asked)

    shelf = Told(study, law, fields_as_printed, lambda job: job.recipe.seed == 1235)
    found = judge_one(registry()["alibi-rises"], Evidence(shelf))
    assert found.verdict == "does not hold"
    assert [word.split(":")[0] for word in found.evidence] == ["latex", "prose", "code"]


def test_one_no_outweighs_and_a_doubt_stays() -> None:
    assert settled([True, None, False]) is False
    assert settled([True, None]) is None
    assert settled([True, True]) is True


@pytest.mark.parametrize(("cost", "verdict"), [(0.02, "holds"), (0.0, "does not hold"), (0.2, "does not hold")])
def test_a_cache_must_cost_sandwich_a_little(study: Study, cost: float, verdict: str) -> None:
    def law(job: Job, length: int, asked: dict[str, Any]) -> float:
        return 3.0 + cost * (asked.get("window") is not None and job.recipe.scheme == "sandwich")

    shelf = Told(study, law, there=first_wave)
    assert judge_one(registry()["sliding-cache"], Evidence(shelf)).verdict == verdict


def test_a_rise_that_is_not_certain_decides_nothing(study: Study) -> None:
    """One document of twelve is much worse at long lengths: more than 1 % in the mean, and no evidence."""
    shelf = Told(study, there=first_wave)
    (job,) = [job for job in shelf.jobs(["alibi"], ["arxiv"]) if first_wave(job)]
    found = shelf.result(job)
    assert found is not None
    for length in (256, 512, 1024, 2048):
        found.evaluations[0].losses[length][:3] += 1.0
    assert judge_one(registry()["alibi-rises"], Evidence(shelf)).verdict == "undecided"


def test_dimensions_that_do_not_differ_decide_nothing(study: Study) -> None:
    found = judge_one(registry()["dims-128"], Evidence(Told(study, there=first_wave)))
    assert found.verdict == "undecided"
    assert "more seeds" in found.needs[0]


def test_seeds_are_pooled_by_target(study: Study) -> None:
    shelf = Told(study, as_printed, fields_as_printed, lambda job: job.recipe.corpus == "latex")
    found = shelf.pooled("sandwich", "arxiv")
    assert found is not None
    each = [one.losses[128].double() for one in shelf.evaluations("sandwich", "arxiv").values()]
    assert len(each) == 5
    assert found.losses[128].numpy() == pytest.approx(sum(each).numpy() / 5)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "where", "value"),
    [
        ("slope-floor", "FLOOR", 0.001),
        ("two-fits", "PRINTED", (-1.02, -0.02)),
        ("erf-as-printed", "cumulative", lambda shares: np.linspace(0, 1, len(shares))),
    ],
)
def test_findings_that_need_no_run_can_fail(
    worlds: dict[str, Shelf], monkeypatch: pytest.MonkeyPatch, name: str, where: str, value: Callable[..., Any]
) -> None:
    monkeypatch.setattr(findings, where, value)
    assert judge_one(registry()[name], Evidence(worlds["holds"])).verdict == "does not hold"


def test_a_plateau_begins_where_perplexity_stays() -> None:
    losses = {32: 3.5, 64: 3.1, 128: 3.005, 256: 3.0, 512: 3.0}
    assert plateau({length: np.full(4, value) for length, value in losses.items()}) == 128
    assert plateau({1: np.zeros(2), 2: np.ones(2)}) == 2


@pytest.mark.parametrize(
    ("seeds", "times", "verdict"),
    [
        ((1235, 1236), {1235: 1.1, 1236: 1.2}, "holds"),
        ((1235, 1236), {1235: 1.0, 1236: 0.9}, "does not hold"),
        ((1235, 1236), {1235: 1.1, 1236: 1.0}, "undecided"),
        ((1235,), {1235: 1.1}, "undecided"),
    ],
)
def test_times_decide_where_seeds_agree(
    study: Study, seeds: tuple[int, ...], times: dict[int, float], verdict: str
) -> None:
    def train(job: Job) -> float:
        return 100 * (times[job.recipe.seed] if job.recipe.scheme.startswith("t5") else 1)

    shelf = Told(study, there=lambda job: job.recipe.corpus == "latex" and job.recipe.seed in seeds, train=train)
    assert judge_one(registry()["learned-costs"], Evidence(shelf)).verdict == verdict


def test_a_jump_is_found_where_it_is() -> None:
    shares = np.full((1, 400), 1.0)
    shares[0, 99] = 50.0
    place, times = sinusoidal_128_512.jump(ReceptiveField(shares), 32)
    assert abs(place - 100) <= 1
    assert times == pytest.approx(51 / (2 + 98 / 367), rel=0.02)


def test_the_pages_show_every_claim(worlds: dict[str, Shelf]) -> None:
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
    shelf = Shelf(read_study("paper"), ROOT / "results" / "paper")
    written = re.findall(r"^### (.*): (.*)$", (ROOT / "docs" / "claims.md").read_text(), re.MULTILINE)
    assert written == [(one.name, one.verdict) for one in judged(shelf)]
