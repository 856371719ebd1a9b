"""Comparison: seeds are paired, documents resampled whole, and what is missing is said."""

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
from fieldlens.evaluation.compare import compare
from fieldlens.evaluation.protocols import Anchor
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import bootstrap_difference, holm
from fieldlens.reporting.table import Table, records_csv


def evaluation(scheme: str, seed: int, shift: float = 0.0, noise: float = 0.02, **about: Any) -> Evaluation:
    """Losses of 20 documents × 10 targets at two lengths, the same targets' base for all."""
    base = np.random.default_rng(0).gamma(2, 1, 200)
    own = np.random.default_rng([seed, *scheme.encode()]).normal(shift, noise, (2, 200))
    targets = [Anchor(document, offset) for document in range(20) for offset in range(10)]
    model = {"name": scheme, "scheme": scheme, "recipe": {"scheme": scheme, "seed": seed, "corpus": "c"}, "data": "d"}
    shared = {"protocol": "p", "segments": 200, "target_seed": 0, "window": None, "data": {"text": "t"}, "bos": None}
    losses = {64: torch.from_numpy(base + own[0]), 128: torch.from_numpy(base + own[1])}
    return Evaluation({"model": model | {"train_length": 64}, **shared, **about}, losses, targets)


def diverged(scheme: str, seed: int) -> Evaluation:
    one = evaluation(scheme, seed)
    return Evaluation({**one.about, "state": "diverged"}, {}, [])


SEEDS = range(5)


def test_over_seeds_it_is_the_paired_t_test() -> None:
    ours = [evaluation("alibi", seed, 0.05) for seed in SEEDS]
    reference = [evaluation("sandwich", seed) for seed in SEEDS]
    found = compare([*reference, *ours])
    assert [group.name for group in found.groups] == ["sandwich", "alibi"]
    for length in (64, 128):
        (cell,) = [c for c in found.cells if (c["group"], c["length"]) == ("alibi", length)]
        test = stats.ttest_rel([o.table[length] for o in ours], [r.table[length] for r in reference])
        assert cell["p"] == pytest.approx(test.pvalue, rel=1e-12)
        assert cell["t"] == pytest.approx(test.statistic, rel=1e-12)
        assert cell["mean"] == pytest.approx(np.mean([o.table[length] for o in ours]))
        assert cell["deviation"] == pytest.approx(np.std([o.table[length] for o in ours], ddof=1))
        assert cell["mark"] == "†"
        assert cell["p_holm"] >= cell["p"]


def test_a_better_rival_gets_a_star() -> None:
    found = compare([*(evaluation("a", s) for s in SEEDS), *(evaluation("b", s, -0.05) for s in SEEDS)])
    assert {cell["mark"] for cell in found.cells if cell["group"] == "b"} == {"*"}
    assert {cell["mark"] for cell in found.cells if cell["group"] == "a"} == {""}


def test_seeds_are_paired_by_number_not_by_place() -> None:
    reference = [evaluation("a", s) for s in SEEDS]
    ours = [evaluation("b", s, 0.01) for s in SEEDS]
    assert compare([*reference, *ours]).cells == compare([reference[0], *ours[::-1], *reference[::-1]]).cells


def test_within_a_seed_documents_are_resampled() -> None:
    found = compare([evaluation("a", 1), evaluation("b", 1, 0.05)])
    assert [row["resampled"] for row in found.within] == ["documents"] * 2
    assert all(row["p"] < 0.05 and row["low"] < row["difference"] < row["high"] for row in found.within)
    assert {cell["mark"] for cell in found.cells if cell["group"] == "b"} == {"†"}
    assert "one seed" in found.notes()[0]
    assert compare([evaluation("a", 1), evaluation("b", 1)], by="tokens").within[0]["resampled"] == "tokens"


def test_the_same_weights_under_another_configuration_are_another_model() -> None:
    """As a rotary base stretched in config.json: a run, its own model folder, and that folder edited."""
    run, own, edited = (evaluation(name, 1, shift) for name, shift in (("run", 0.0), ("own", 0.0), ("edited", 0.3)))
    for one, configuration in ((run, "c"), (own, "c"), (edited, "e")):
        one.about["model"] |= {"weights": "w", "configuration": configuration}
    for one in (own, edited):
        del one.about["model"]["recipe"]
    assert [group.name for group in compare([run, own, edited]).groups] == ["run", "edited"]


def test_two_formulas_under_one_name_are_two_experiments() -> None:
    seeds = [evaluation("steep", seed) for seed in (1, 2)]
    for one, file in zip(seeds, ("before", "after"), strict=True):
        one.about["model"]["scheme_source"] = file
    assert [group.name for group in compare(seeds).groups] == [
        "steep (scheme_source before)",
        "steep (scheme_source after)",
    ]


def test_a_whole_number_is_the_same_experiment_as_its_decimal() -> None:
    seeds = [evaluation("steep", seed) for seed in (1, 2)]
    for one, clip in zip(seeds, (1, 1.0), strict=True):
        one.about["model"]["recipe"]["clip"] = clip
    assert [sorted(group.members) for group in compare(seeds).groups] == [[1, 2]]


def test_missing_and_diverged_seeds_are_shown_never_averaged() -> None:
    found = compare(
        [*(evaluation("a", s) for s in SEEDS), evaluation("b", 0, 0.1), evaluation("b", 1), diverged("b", 2)]
    )
    (cell,) = [c for c in found.cells if (c["group"], c["length"]) == ("b", 64)]
    assert (cell["seeds"], cell["diverged"], cell["pairs"]) == (2, 1, 2)
    assert "b: diverged with seed 2." in found.notes()
    assert "b: no result for seed 3, 4." in found.notes()
    alone = compare([evaluation("a", 1), diverged("b", 1)])
    assert "diverged" in [cell for row in alone.sheet().rows for cell in row]
    with pytest.raises(BadInput, match="every run diverged"):
        compare([diverged("b", 1)])


def test_degenerate_pairs_get_no_star() -> None:
    same = evaluation("a", 0)
    copies = [Evaluation({**same.about, "model": _seeded(same, "a", s)}, same.losses, same.targets) for s in SEEDS]
    twins = [Evaluation({**same.about, "model": _seeded(same, "b", s)}, same.losses, same.targets) for s in SEEDS]
    moved = {n: found + 0.1 for n, found in same.losses.items()}
    shifted = [Evaluation({**same.about, "model": _seeded(same, "c", s)}, moved, same.targets) for s in SEEDS]
    found = compare([*copies, *twins, *shifted])
    reasons = {cell["group"]: (cell["reason"], cell["mark"]) for cell in found.cells if "reason" in cell}
    assert reasons["b"] == ("identical", "")
    assert reasons["c"][0].startswith("constant difference")
    assert reasons["c"][1] == ""


def _seeded(one: Evaluation, name: str, seed: int) -> dict[str, Any]:
    recipe = {**one.about["model"]["recipe"], "scheme": name, "seed": seed}
    return {**one.about["model"], "name": name, "recipe": recipe}


def test_copies_get_no_mark_even_alone() -> None:
    same = evaluation("a", 0)
    moved = {n: losses + 0.1 for n, losses in same.losses.items()}
    copies = [Evaluation({**same.about, "model": _seeded(same, "a", s)}, same.losses, same.targets) for s in SEEDS]
    shifted = [Evaluation({**same.about, "model": _seeded(same, "c", s)}, moved, same.targets) for s in SEEDS]
    found = compare([*copies, *shifted])
    assert {cell["mark"] for cell in found.cells} == {""}
    assert "over seeds" in found.notes()[0]
    assert "one seed" not in found.notes()[0]


def test_a_model_without_a_seed_is_compared_with_every_seed() -> None:
    foreign = evaluation("b", 1, 0.05)
    del foreign.about["model"]["recipe"]
    found = compare([evaluation("a", 1), evaluation("a", 2), foreign])
    assert [row["seed"] for row in found.within if row["length"] == 64] == [1, 2]
    assert not any("no result" in note for note in found.notes())
    alone = compare([evaluation("a", 1), foreign])
    assert {cell["mark"] for cell in alone.cells if cell["group"] == "b"} == {"†"}


def test_a_run_and_its_model_folder_are_one_model() -> None:
    run, folder = evaluation("a", 1), evaluation("a", 1)
    del folder.about["model"]["recipe"]
    for one in (run, folder):
        one.about["model"]["weights"] = "w"
    found = compare([folder, run, evaluation("b", 1)])
    assert [group.name for group in found.groups] == ["a", "b"]
    other = evaluation("a", 1)
    del other.about["model"]["recipe"]
    other.about["model"] |= {"weights": "w", "name": "a banded"}
    other.about["window"] = 4
    assert len(compare([run, other]).groups) == 2


def test_one_seed_has_no_band() -> None:
    one, two = compare([evaluation("a", 1)]).lines(), compare([evaluation("a", 1), evaluation("a", 2)]).lines()
    assert one[0].low == one[0].middle == one[0].high
    assert two[0].low[0] < two[0].middle[0] < two[0].high[0]


def test_holm_runs_over_all_groups_and_lengths() -> None:
    groups = [[evaluation(name, s, shift) for s in SEEDS] for name, shift in (("a", 0), ("b", 0.01), ("c", 0.02))]
    found = compare([one for group in groups for one in group])
    tested = [cell for cell in found.cells if cell["group"] != "a"]
    assert [cell["p_holm"] for cell in tested] == holm([cell["p"] for cell in tested])
    assert [row["p_holm"] for row in found.within] == holm([row["p"] for row in found.within])
    row, ours, theirs = found.within[0], groups[1][0], groups[0][0]
    _, boot = bootstrap_difference((ours.losses[64] - theirs.losses[64]).numpy(), ours.documents)
    assert row["p_bootstrap"] == boot.p


def test_few_documents_stay_documents() -> None:
    few = [evaluation(name, 1, shift) for name, shift in (("a", 0), ("b", 0.5))]
    few = [Evaluation(one.about, one.losses, [Anchor(t.document // 7, t.offset) for t in one.targets]) for one in few]
    found = compare(few)
    assert found.within[0]["resampled"] == "documents"
    assert found.within[0]["units"] == 3
    assert {cell["mark"] for cell in found.cells} == {""}  # three documents cannot convince


def test_a_repaired_seed_counts_and_windows_tell_groups_apart() -> None:
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


def test_experiments_of_one_name_are_told_apart() -> None:
    wide = evaluation("a", 0)
    wide.about["model"]["recipe"]["width"] = 256
    narrow = evaluation("a", 0)
    narrow.about["model"]["recipe"]["width"] = 128
    assert [group.name for group in compare([wide, narrow]).groups] == ["a (width 256)", "a (width 128)"]


def test_sheets_come_in_every_format() -> None:
    found = compare([*(evaluation("a_1", s) for s in SEEDS), *(evaluation("b", s, 0.05) for s in SEEDS)])
    sheet = found.sheet()
    assert sheet.markdown().splitlines()[2].startswith("| length | a_1 | b |")
    assert r"a\_1" in sheet.latex()
    assert r"$^\dagger$" in sheet.latex()
    assert r"\pm" in sheet.latex()
    rows = list(csv.DictReader(io.StringIO(records_csv(found.cells))))
    assert len(rows) == 4
    assert float(rows[2]["p"]) == found.cells[2]["p"]
    assert json.loads(json.dumps(found.to_json(), allow_nan=False))["reference"] == "a_1"
    over, within = found.tests()
    assert len(over.rows) == 2
    assert len(within.rows) == 2 * 5


def test_many_models_stand_one_below_the_other() -> None:
    found = compare([evaluation(f"m{n}", 0, 0.01 * n) for n in range(9)])
    few, many = compare([*(group.members[0] for group in found.groups[:8])]).sheet(), found.sheet()
    assert (few.columns[0], many.columns[0]) == ("length", "model")
    assert [row[0] for row in many.rows] == [f"m{n}" for n in range(9)]
    assert many.columns[1:] == [row[0] for row in few.rows]
    assert [row[3] for row in few.rows] == list(many.rows[2][1:])


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
    sized = [Evaluation(one.about, one.losses, one.targets, np.full(200, 2, np.uint16)) for one in (a, b)]
    found = compare(sized)
    assert found.quantity == "bits per byte"
    assert found.cells[0]["mean"] == pytest.approx(float(a.losses[64].mean()) / 2 / np.log(2))
    assert sized[0].bits_per_byte == pytest.approx({n: float(a.losses[n].mean()) / 2 / np.log(2) for n in (64, 128)})
