"""The registration: rules and runs are fixed before the results that they judge."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from made_up_worlds import Partial

from fieldlens.paper import registration
from fieldlens.paper.claims import REGISTERED, Finding, registry
from fieldlens.paper.controls import PrintedResults
from fieldlens.paper.evidence import Evidence
from fieldlens.paper.judge import judged
from fieldlens.paper.page import markdown
from fieldlens.paper.results import PaperResults
from fieldlens.storage.results import write_json
from fieldlens.study.plan import Study, read_study

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper")


@pytest.fixture(scope="module")
def registered(study: Study) -> dict[str, Any]:
    return registration.registration(study, "2026-11-18")


def other_rule(evidence: Evidence, corpus: str) -> Finding:
    return Finding((), [True])


def test_no_rule_was_changed_after_a_result_that_it_judges() -> None:
    """A change after the results is recorded by `python results/register.py --reason … --before …`."""
    results = PaperResults(read_study("paper"), ROOT / "results" / "paper")
    committed = registration.read_registration(results.folder)
    assert committed is not None
    assert registration.unrecorded(committed, results) == []


def test_the_committed_registration_is_that_of_this_tree(registered: dict[str, Any]) -> None:
    """Before the first result, `python results/register.py` renews it; later, changes stand in it one by one."""
    committed = registration.read_registration(ROOT / "results" / "paper")
    assert committed is not None
    assert registration.changed(committed, read_study("paper")) == []
    if not committed["changes"]:
        assert committed["controls"] == registered["controls"]


def test_what_the_registration_lacked_is_added_with_its_date_and_the_number_of_results(
    study: Study, registered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The functions that decide verdicts outside of the paper's folder were not part of the first registration."""
    sha256 = {name: value for name, value in registered["sha256"].items() if name not in registration.CALLED}
    before, rotary = registered | {"sha256": sha256}, Partial(study, lambda job: job.recipe.scheme == "rotary")
    assert registration.unrecorded(before, rotary) == list(registration.CALLED)
    after = registration.addendum(before, rotary, "2026-11-19")
    (entry,) = after["addenda"]
    assert entry["results"] == sum(job.recipe.scheme == "rotary" for job in study.whole)
    assert after["sha256"] == sha256
    assert registration.unrecorded(after, rotary) == []
    assert registration.addendum(after, rotary, "2026-11-20") == after
    assert "their hashes were added on 2026-11-19" in registration.summary(after, rotary)
    monkeypatch.setitem(registration.CALLED, "receptive/field.py", (other_rule,))
    assert registration.unrecorded(after, rotary) == ["receptive/field.py"]


def test_a_changed_rule_is_an_error_once_a_result_exists(
    study: Study, registered: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = registry()["rotary-explodes"]
    monkeypatch.setitem(REGISTERED, "rotary-explodes", dataclasses.replace(claim, primary=0))
    nothing, rotary = (Partial(study, lambda job, name=name: job.recipe.scheme == name) for name in ("", "rotary"))
    assert registration.changed(registered, study) == ["rotary-explodes"]
    assert registration.unrecorded(registered, nothing) == []
    assert registration.unrecorded(registered, rotary) == ["rotary-explodes"]
    assert registration.unrecorded(registered, Partial(study, lambda job: job.recipe.scheme == "kerple")) == []
    assert "CHANGED WITHOUT A RECORD: rotary-explodes" in registration.summary(registered, rotary)


def test_a_recorded_change_makes_the_claim_exploratory(
    study: Study, registered: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    claim = registry()["rotary-explodes"]
    monkeypatch.setitem(REGISTERED, "rotary-explodes", dataclasses.replace(claim, corpora=("arxiv",)))
    results = Partial(study, lambda job: job.recipe.scheme == "rotary")
    before = {"rotary-explodes": "does not hold"}
    recorded = registration.record_change(registered, results, "2026-12-01", "a slip", before)
    assert registration.unrecorded(recorded, results) == []
    (change,) = recorded["changes"]
    assert change["verdicts"] == {"rotary-explodes": {"before": "does not hold", "after": "holds"}}
    results.folder = tmp_path
    write_json(tmp_path / registration.FILE, recorded)
    text = markdown(results, judged(results))
    assert "exploratory: 2026-12-01, a slip: does not hold → holds" in text
    assert "changed 1 times since" in text


def test_shared_code_and_the_study_count_as_a_change_of_every_rule(study: Study, registered: dict[str, Any]) -> None:
    with_results, without = PrintedResults(study), Partial(study, lambda job: False)
    for name in (registration.STUDY, "paper/evidence.py", "paper/claims/windows.py"):
        altered = {**registered, "sha256": {**registered["sha256"], name: "another"}}
        assert registration.unrecorded(altered, with_results) == [name]
        assert registration.unrecorded(altered, without) == []


def test_a_rule_is_registered_by_its_source(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    before = registration.hashes(study)
    claim = registry()["rotary-explodes"]
    monkeypatch.setitem(REGISTERED, "rotary-explodes", dataclasses.replace(claim, test=other_rule))
    after = registration.hashes(study)
    assert before["rotary-explodes"] != after["rotary-explodes"]


def test_other_runs_are_another_study(study: Study) -> None:
    job = study.whole[0]
    other = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, heads=8))
    changed = dataclasses.replace(study, whole=(other, *study.whole[1:]))
    assert registration.hashes(changed)[registration.STUDY] != registration.hashes(study)[registration.STUDY]
