"""Comparison: seeds are paired, documents are resampled as clusters, and missing seeds are reported."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from fieldlens.core.errors import BadInput
from fieldlens.evaluation.compare import compare, places
from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation, read_evaluation
from fieldlens.evaluation.statistics import bootstrap_difference, holm
from fieldlens.reporting import plots
from fieldlens.reporting.table import Table, records_csv
from fieldlens.storage.results import read_result, write_result


def evaluation(scheme: str, seed: int, shift: float = 0.0, noise: float = 0.02, **about: Any) -> Evaluation:
    """Losses of 20 documents × 10 targets at two lengths, from the same base losses for all."""
    base = np.random.default_rng(0).gamma(2, 1, 200)
    own = np.random.default_rng([seed, *scheme.encode()]).normal(shift, noise, (2, 200))
    targets = [Anchor(document, offset) for document in range(20) for offset in range(10)]
    model = {"name": scheme, "scheme": scheme, "recipe": {"scheme": scheme, "seed": seed, "corpus": "c"}, "data": "d"}
    shared = {"protocol": "p", "segments": 200, "target_seed": 0, "window": None, "data": {"text": "t"}, "bos": None}
    losses = {64: torch.from_numpy(base + own[0]), 128: torch.from_numpy(base + own[1])}
    return Evaluation({"model": model | {"train_length": 64}, **shared, **about}, losses, targets)


def diverged(scheme: str, seed: int) -> Evaluation:
    result = evaluation(scheme, seed)
    return Evaluation({**result.about, "state": "diverged"}, {}, [])


SEEDS = range(5)


def test_the_comparison_over_seeds_is_the_paired_t_test() -> None:
    results = [evaluation("alibi", seed, 0.05) for seed in SEEDS]
    reference = [evaluation("sandwich", seed) for seed in SEEDS]
    comparison = compare([*reference, *results])
    assert [group.name for group in comparison.groups] == ["sandwich", "alibi"]
    for length in (64, 128):
        (cell,) = [c for c in comparison.cells if (c["group"], c["length"]) == ("alibi", length)]
        test = stats.ttest_rel(
            [result.table[length] for result in results], [result.table[length] for result in reference]
        )
        assert cell["p"] == pytest.approx(test.pvalue, rel=1e-12)
        assert cell["t"] == pytest.approx(test.statistic, rel=1e-12)
        assert cell["mean"] == pytest.approx(np.mean([result.table[length] for result in results]))
        assert cell["deviation"] == pytest.approx(np.std([result.table[length] for result in results], ddof=1))
        assert cell["mark"] == "†"
        assert cell["p_holm"] >= cell["p"]


def test_a_better_rival_gets_a_star() -> None:
    comparison = compare([*(evaluation("a", s) for s in SEEDS), *(evaluation("b", s, -0.05) for s in SEEDS)])
    assert {cell["mark"] for cell in comparison.cells if cell["group"] == "b"} == {"*"}
    assert {cell["mark"] for cell in comparison.cells if cell["group"] == "a"} == {""}


def test_seeds_are_paired_by_number_not_by_place() -> None:
    reference = [evaluation("a", s) for s in SEEDS]
    results = [evaluation("b", s, 0.01) for s in SEEDS]
    assert compare([*reference, *results]).cells == compare([reference[0], *results[::-1], *reference[::-1]]).cells


def test_within_a_seed_documents_are_resampled() -> None:
    comparison = compare([evaluation("a", 1), evaluation("b", 1, 0.05)])
    assert [row["resampled"] for row in comparison.within] == ["documents"] * 2
    assert all(row["p"] < 0.05 and row["low"] < row["difference"] < row["high"] for row in comparison.within)
    assert {cell["mark"] for cell in comparison.cells if cell["group"] == "b"} == {"†"}
    assert "one seed" in comparison.notes()[0]
    assert compare([evaluation("a", 1), evaluation("b", 1)], by="tokens").within[0]["resampled"] == "tokens"


def test_the_same_weights_under_another_configuration_are_another_model() -> None:
    """As a rotary base stretched in config.json: a run, its own model folder, and that folder edited."""
    run, own, edited = (evaluation(name, 1, shift) for name, shift in (("run", 0.0), ("own", 0.0), ("edited", 0.3)))
    for result, configuration in ((run, "c"), (own, "c"), (edited, "e")):
        result.about["model"] |= {"weights": "w", "configuration": configuration}
    for result in (own, edited):
        del result.about["model"]["recipe"]
    assert [group.name for group in compare([run, own, edited]).groups] == ["run", "edited"]


def test_two_formulas_under_one_name_are_two_experiments() -> None:
    seeds = [evaluation("steep", seed) for seed in (1, 2)]
    for result, file in zip(seeds, ("before", "after"), strict=True):
        result.about["model"]["scheme_source"] = file
    assert [group.name for group in compare(seeds).groups] == [
        "steep (scheme_source before)",
        "steep (scheme_source after)",
    ]


def test_a_whole_number_is_the_same_experiment_as_its_decimal() -> None:
    seeds = [evaluation("steep", seed) for seed in (1, 2)]
    for result, clip in zip(seeds, (1, 1.0), strict=True):
        result.about["model"]["recipe"]["clip"] = clip
    assert [sorted(group.members) for group in compare(seeds).groups] == [[1, 2]]


def test_missing_and_diverged_seeds_are_shown_never_averaged() -> None:
    comparison = compare(
        [*(evaluation("a", s) for s in SEEDS), evaluation("b", 0, 0.1), evaluation("b", 1), diverged("b", 2)]
    )
    (cell,) = [c for c in comparison.cells if (c["group"], c["length"]) == ("b", 64)]
    assert (cell["seeds"], cell["diverged"], cell["pairs"]) == (2, 1, 2)
    assert "b: diverged with seed 2." in comparison.notes()
    assert "b: no result for seed 3, 4." in comparison.notes()
    alone = compare([evaluation("a", 1), diverged("b", 1)])
    assert "diverged" in [cell for row in alone.sheet().rows for cell in row]
    with pytest.raises(BadInput, match="every run diverged"):
        compare([diverged("b", 1)])


def test_degenerate_pairs_get_no_star() -> None:
    same = evaluation("a", 0)
    copies = [Evaluation({**same.about, "model": _seeded(same, "a", s)}, same.losses, same.targets) for s in SEEDS]
    twins = [Evaluation({**same.about, "model": _seeded(same, "b", s)}, same.losses, same.targets) for s in SEEDS]
    moved = {n: losses + 0.1 for n, losses in same.losses.items()}
    shifted = [Evaluation({**same.about, "model": _seeded(same, "c", s)}, moved, same.targets) for s in SEEDS]
    comparison = compare([*copies, *twins, *shifted])
    reasons = {cell["group"]: (cell["reason"], cell["mark"]) for cell in comparison.cells if "reason" in cell}
    assert reasons["b"] == ("identical", "")
    assert reasons["c"][0].startswith("constant difference")
    assert reasons["c"][1] == ""


def _seeded(result: Evaluation, name: str, seed: int) -> dict[str, Any]:
    recipe = {**result.about["model"]["recipe"], "scheme": name, "seed": seed}
    return {**result.about["model"], "name": name, "recipe": recipe}


def test_copies_get_no_mark_even_alone() -> None:
    same = evaluation("a", 0)
    moved = {n: losses + 0.1 for n, losses in same.losses.items()}
    copies = [Evaluation({**same.about, "model": _seeded(same, "a", s)}, same.losses, same.targets) for s in SEEDS]
    shifted = [Evaluation({**same.about, "model": _seeded(same, "c", s)}, moved, same.targets) for s in SEEDS]
    comparison = compare([*copies, *shifted])
    assert {cell["mark"] for cell in comparison.cells} == {""}
    assert "over seeds" in comparison.notes()[0]
    assert "one seed" not in comparison.notes()[0]


def test_a_model_without_a_seed_is_compared_with_every_seed() -> None:
    foreign = evaluation("b", 1, 0.05)
    del foreign.about["model"]["recipe"]
    comparison = compare([evaluation("a", 1), evaluation("a", 2), foreign])
    assert [row["seed"] for row in comparison.within if row["length"] == 64] == [1, 2]
    assert not any("no result" in note for note in comparison.notes())
    alone = compare([evaluation("a", 1), foreign])
    assert {cell["mark"] for cell in alone.cells if cell["group"] == "b"} == {"†"}


def test_a_run_and_its_model_folder_are_one_model() -> None:
    run, folder = evaluation("a", 1), evaluation("a", 1)
    del folder.about["model"]["recipe"]
    for result in (run, folder):
        result.about["model"]["weights"] = "w"
    comparison = compare([folder, run, evaluation("b", 1)])
    assert [group.name for group in comparison.groups] == ["a", "b"]
    other = evaluation("a", 1)
    del other.about["model"]["recipe"]
    other.about["model"] |= {"weights": "w", "name": "a banded"}
    other.about["window"] = 4
    assert len(compare([run, other]).groups) == 2


def test_one_seed_has_no_band() -> None:
    single, double = compare([evaluation("a", 1)]).lines(), compare([evaluation("a", 1), evaluation("a", 2)]).lines()
    assert single[0].low == single[0].middle == single[0].high
    assert double[0].low[0] < double[0].middle[0] < double[0].high[0]


def test_holm_runs_over_all_groups_and_lengths() -> None:
    groups = [[evaluation(name, s, shift) for s in SEEDS] for name, shift in (("a", 0), ("b", 0.01), ("c", 0.02))]
    comparison = compare([member for group in groups for member in group])
    tested = [cell for cell in comparison.cells if cell["group"] != "a"]
    assert [cell["p_holm"] for cell in tested] == holm([cell["p"] for cell in tested])
    assert [row["p_holm"] for row in comparison.within] == holm([row["p"] for row in comparison.within])
    row, result, reference = comparison.within[0], groups[1][0], groups[0][0]
    _, boot = bootstrap_difference((result.losses[64] - reference.losses[64]).numpy(), result.documents)
    assert row["p_bootstrap"] == boot.p


def test_few_documents_stay_documents() -> None:
    results = [evaluation(name, 1, shift) for name, shift in (("a", 0), ("b", 0.5))]
    results = [
        Evaluation(result.about, result.losses, [Anchor(t.document // 7, t.offset) for t in result.targets])
        for result in results
    ]
    comparison = compare(results)
    assert comparison.within[0]["resampled"] == "documents"
    assert comparison.within[0]["units"] == 3
    assert {cell["mark"] for cell in comparison.cells} == {""}  # three documents cannot be significant


def test_a_repaired_seed_counts_and_windows_separate_groups() -> None:
    assert compare([diverged("a", 1), evaluation("a", 1)]).groups[0].diverged() == []
    names = [group.name for group in compare([evaluation("a", 1), evaluation("a", 1, 0.1, window=8)]).groups]
    assert names == ["a (cache window None)", "a (cache window 8)"]


def test_different_targets_are_refused() -> None:
    with pytest.raises(BadInput, match="a and b were not evaluated on the same targets: they differ in target_seed"):
        compare([evaluation("a", 0), evaluation("b", 0, target_seed=1)])
    with pytest.raises(BadInput, match="they differ in segments"):
        compare([evaluation("a", 0), evaluation("a", 0, segments=7)])
    with pytest.raises(BadInput, match="nothing to compare"):
        compare([])
    with pytest.raises(BadInput, match="two different results for a with seed 0"):
        compare([evaluation("a", 0), evaluation("a", 0, 0.5)])


def test_experiments_with_equal_names_are_distinguished() -> None:
    wide = evaluation("a", 0)
    wide.about["model"]["recipe"]["width"] = 256
    narrow = evaluation("a", 0)
    narrow.about["model"]["recipe"]["width"] = 128
    assert [group.name for group in compare([wide, narrow]).groups] == ["a (width 256)", "a (width 128)"]


def test_sheets_come_in_every_format() -> None:
    comparison = compare([*(evaluation("a_1", s) for s in SEEDS), *(evaluation("b", s, 0.05) for s in SEEDS)])
    sheet = comparison.sheet()
    assert sheet.markdown().splitlines()[2].startswith("| length | a_1 | b |")
    assert r"a\_1" in sheet.latex()
    assert r"$^\dagger$" in sheet.latex()
    assert r"\pm" in sheet.latex()
    rows = list(csv.DictReader(io.StringIO(records_csv(comparison.cells))))
    assert len(rows) == 4
    assert float(rows[2]["p"]) == comparison.cells[2]["p"]
    assert json.loads(json.dumps(comparison.to_json(), allow_nan=False))["reference"] == "a_1"
    over, within = comparison.tests()
    assert len(over.rows) == 2
    assert len(within.rows) == 2 * 5


def test_many_models_become_rows() -> None:
    comparison = compare([evaluation(f"m{n}", 0, 0.01 * n) for n in range(9)])
    narrow, tall = compare([*(group.members[0] for group in comparison.groups[:8])]).sheet(), comparison.sheet()
    assert (narrow.columns[0], tall.columns[0]) == ("length", "model")
    assert [row[0] for row in tall.rows] == [f"m{n}" for n in range(9)]
    assert tall.columns[1:] == [row[0] for row in narrow.rows]
    assert [row[3] for row in narrow.rows] == list(tall.rows[2][1:])


def test_hostile_names_are_only_text() -> None:
    sheet = Table(["[bold]x", "a|b"], [["[/red]\\input{x}", "1*"]], "[link]")
    assert r"\|" in sheet.markdown()
    assert r"\textbackslash{}input\{x\}" in sheet.latex()
    from rich.console import Console

    out = io.StringIO()
    Console(file=out, width=80).print(sheet)
    assert "[/red]" in out.getvalue()


def test_bytes_are_compared_in_bits(tmp_path: Path) -> None:
    a, b = evaluation("a", 0, align="bytes"), evaluation("b", 0, 0.1, align="bytes")
    sized = [Evaluation(result.about, result.losses, result.targets, np.full(200, 2, np.uint16)) for result in (a, b)]
    comparison = compare(sized)
    assert comparison.quantity == "bits per byte"
    assert comparison.cells[0]["mean"] == pytest.approx(float(a.losses[64].mean()) / 2 / np.log(2))
    assert sized[0].bits_per_byte == pytest.approx({n: float(a.losses[n].mean()) / 2 / np.log(2) for n in (64, 128)})


def test_a_small_deviation_is_not_rounded_to_zero() -> None:
    members = [evaluation("a", seed, noise=0) for seed in (0, 1)]
    for member, perplexity in zip(members, (258.6, 259.2), strict=True):
        member.losses[64][:] = float(np.log(perplexity))
    assert "258.9 ± 0.4" in [cell for row in compare(members).sheet().rows for cell in row]
    assert [places(2000.0, deviation) for deviation in (None, 0.0, 12.0, 0.6, 0.04, 1e-9)] == [0, 0, 0, 0, 2, 6]


def test_an_infinite_perplexity_is_shown_and_not_tested(tmp_path: Path) -> None:
    explodes = [evaluation("b", seed, 2000.0) for seed in SEEDS]
    comparison = compare([*(evaluation("a", seed) for seed in SEEDS), *explodes])
    cells = [cell for cell in comparison.cells if cell["group"] == "b"]
    assert [(cell["mean"], cell["p"], cell["reason"]) for cell in cells] == [
        (None, None, "a perplexity is infinite")
    ] * 2
    assert [row[2] for row in comparison.sheet().rows] == ["∞", "∞"]
    json.dumps(comparison.to_json(), allow_nan=False)
    plots.save(plots.figure_of(plots.perplexity_lines(comparison.lines())), tmp_path / "a.png")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("weights", [[]]), ("configuration", {}), ("window", []), ("lengths", [0, 64]), ("segments", "x"),
        ("train_length", 1e308), ("name", None), ("scheme", -1), ("protocol", True), ("targets", 10**30),
    ],
)  # fmt: skip
def test_a_result_of_another_shape_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    result = evaluation("a", 1, protocol={"name": "p"}, versions={"fieldlens": "1"}, lengths=[64, 128])
    result.save(tmp_path / "a.json")
    about, arrays = read_result(tmp_path / "a.json")
    assert read_evaluation(tmp_path / "a.json").table == result.table
    target = about["model"] if key in ("weights", "configuration", "train_length", "name", "scheme") else about
    target[key] = value
    write_result(tmp_path / "a.json", about, arrays)  # with a new seal
    with pytest.raises(BadInput, match="is not a complete result of an evaluation"):
        read_evaluation(tmp_path / "a.json")


def test_a_result_from_before_a_field_was_added_joins_the_others() -> None:
    old, new = evaluation("a", 1), evaluation("a", 2)
    new.about["model"]["recipe"]["optimiser"] = "adamw"
    other = evaluation("a", 3)
    other.about["model"]["recipe"]["optimiser"] = "muon"
    assert [group.seeds() for group in compare([old, new, other]).groups] == [[1, 2], [3]]
