"""The gate of the pilot, from the committed results."""

from pathlib import Path

import pytest

from fieldlens.paper.pilot import GATE, gate, gate_records, gate_table, headroom
from fieldlens.study.plan import read_study
from fieldlens.study.results import Result, read_results
from fieldlens.study.state import StudyPaths, state_of

FOLDER = Path(__file__).parents[2] / "results" / "pilot"


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return read_results(FOLDER)[1]


def test_every_committed_result_belongs_to_the_study(results: list[Result]) -> None:
    paths = StudyPaths(FOLDER, FOLDER)
    states = {job.name: state_of(job, paths, locks=False) for job in read_study("pilot").jobs}
    assert {name for name, state in states.items() if state == "done"} == {result.name for result in results}
    assert "stale" not in states.values()


def test_the_gate_is_the_ratio_of_perplexities(results: list[Result]) -> None:
    for result in results:
        table, trained = result.evaluations[0].table, result.recipe["length"]
        use = gate(result)
        assert use is not None
        assert use.fall == pytest.approx(1 - table[trained] / table[trained // 2])
        assert all(evaluation.about["data"]["split"] == "validation" for evaluation in result.evaluations)


def test_sandwich_passes_with_headroom(results: list[Result]) -> None:
    records = {record["model"]: record for record in gate_records(results)}
    (name,) = [name for name in records if name.startswith("sandwich") and records[name]["train_length"] == 64][:1]
    assert records[name]["passes"]
    room = headroom(results, 64)
    assert room is not None
    assert room.fall > GATE


def test_the_table_has_a_row_for_each_model(results: list[Result]) -> None:
    table = gate_table(results)
    assert len(table.rows) == len(results)
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert any("Headroom" in note for note in table.notes)
