"""The paper: printed numbers entered twice, the scaling rule, states, and every artifact redrawn from results."""

import csv
import json
import math
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up_results import MadeUpResults, write_result

from fieldlens.cli import main
from fieldlens.models.decoder import Config, Decoder
from fieldlens.paper import printed
from fieldlens.paper.artifact import find, redraw, registry, state
from fieldlens.paper.artifacts import arxiv_openwebtext2, efficient_inference, model_configs, openweb_github_arxiv
from fieldlens.paper.cells import Score, both, score
from fieldlens.paper.fields import distance
from fieldlens.paper.results import STAND_INS, PaperResults
from fieldlens.paper.scale import heading, scaled, spec_of, unscaled
from fieldlens.receptive.field import ReceptiveField
from fieldlens.reporting.plots import Line, growth_lines
from fieldlens.study.plan import Job, Study, read_study

HERE = Path(__file__).parents[1]
FIGURES = {
    "alibi", "window", "evaluation", "arxiv_sec3", "arxiv_sec1", "rotary_512", "sinusoidal_128_512", "heatmap_8",
    "diagonal_8", "different_d", "sandwich_kerple_t5_receptive", "openwebtext2_sec3", "openwebtext2_sec1",
}  # fmt: skip
TABLES = {
    "arxiv", "extended_training_length", "openweb-github-arxiv", "openwebtext2", "efficient_inference", "dataset",
    "model_configs",
}  # fmt: skip
OWN = {"parity", "equation_3"}
"""Figures that the paper has not got, from runs of their own."""


@pytest.fixture(scope="module")
def study() -> Study:
    return read_study("paper-first")


def law(job: Job, length: int, request: dict[str, Any]) -> float:
    return 3.0 + 0.1 * len(job.recipe.scheme) / 10 + 0.02 * math.log2(length)


def jobs_of(results: PaperResults, model: str, corpus: str = "arxiv", seeds: Sequence[int] = (1235,)) -> list[Job]:
    return [job for job in results.jobs([model], [corpus]) if job.recipe.seed in seeds]


# ---- the printed numbers


def test_the_two_transcriptions_are_equal_to_the_last_digit() -> None:
    first, second = (
        json.loads(path.read_text(), parse_float=str, parse_int=str)
        for path in (Path(printed.__file__).with_name("printed.json"), HERE / "printed_again.json")
    )
    assert first == second


def test_printed_numbers_keep_their_decimals() -> None:
    table = printed.cells("tab:arxiv")
    assert str(table["arxiv", "shift:2", 512]) == "5.50"
    assert str(table["arxiv", "window:320", 1024]) == "178"
    main_table = printed.cells("tab:openweb-github-arxiv")
    assert str(main_table["openwebtext2", "kerple", 512]) == "22.6 ± 3.5*"
    assert str(main_table["openwebtext2", "sinusoidal", 512]) == "26 ± 1†"
    assert str(main_table["github", "rotary", 8192]) == "20.2 ± 2.75†"
    assert main_table["arxiv", "t5", 512].value == Decimal("5.16")


def test_the_permuted_columns_were_put_right() -> None:
    """The paper's row macro prints its arguments in another order: Smoothed is the eighth, T5 the fifth."""
    table = printed.cells("tab:openweb-github-arxiv")
    row = [table["arxiv", model, 1024].value for model in ("sandwich", "smoothed", "alibi", "sinusoidal", "rotary")]
    assert list(map(str, row)) == ["5.05", "5.13", "5.41", "1070", "16.02"]


# ---- the scaling rule


@pytest.mark.parametrize(
    ("model", "scaled_spec"),
    [
        ("window:40", "none:window=10"),
        ("window:320", "none:window=80"),
        ("shift:-3", "alibi:shift=-5"),
        ("shift:2", "alibi"),
        ("same:0", "alibi:same=-2"),
        ("alibi", "alibi:shift=-2"),
        ("alibi:slope_floor=0.01", "alibi:shift=-2,slope_floor=0.04"),
        ("t5", "t5:buckets=16,max_distance=32"),
        ("sandwich:dims=32", "sandwich:dims=32"),
        ("kerple", "kerple"),
    ],
)
def test_distances_are_in_units_of_the_training_length(model: str, scaled_spec: str) -> None:
    assert scaled(spec_of(model), 4) == scaled_spec
    assert scaled(spec_of(model), 1) == spec_of(model)


@pytest.mark.parametrize(("window", "ours"), [(40, 10), (80, 20), (100, 25), (120, 30), (160, 40), (320, 80)])
def test_a_window_keeps_its_part_of_the_training_length_with_fewer_layers(window: int, ours: int) -> None:
    spec = scaled(f"none:window={window}", 8, layers=6)
    assert spec == f"none:window={ours}"
    assert 6 * ours / 64 == 12 * window / 512
    assert scaled(f"none:window={window}", 1, layers=6) == f"none:window={2 * window}"
    assert scaled("alibi:shift=2", 8, layers=6) == "alibi:shift=-1"


def test_a_slope_covers_the_same_part_of_the_training_length() -> None:
    from fieldlens.schemes.spec import scheme

    paper, small = (scheme(spec, 8, 16).slopes for spec in ("alibi:shift=2", scaled("alibi:shift=2", 4)))  # type: ignore[attr-defined]
    assert [slope * 512 for slope in paper] == [slope * 128 for slope in small]


def test_the_control_drops_a_window_that_training_never_fills() -> None:
    assert unscaled("none:window=120", 128) == "none:window=120"
    assert unscaled("none:window=160", 128) == "none"
    assert heading("none:window=160", "none") == "w 160 | no window"
    assert heading("none:window=40", "none:window=10") == "w 40 | 10"
    assert heading("alibi:same=2", "alibi:same=0") == "h 2 | 0"


def test_the_full_study_is_the_small_one_run_by_run(study: Study) -> None:
    full = read_study("paper-full")

    def key(job: Job, factor: int) -> tuple[Any, ...]:
        recipe = job.recipe
        corpus = STAND_INS.get(recipe.corpus, recipe.corpus)
        tokens = recipe.length * recipe.batch // factor
        return scaled(recipe.scheme, factor), corpus, recipe.seed, recipe.length // factor, tokens

    expected, small = {key(job, 4) for job in full.jobs}, {key(job, 1): job for job in study.jobs}
    assert len(expected) == len(full.jobs)
    controls = {job.recipe.scheme for job_key, job in small.items() if job_key not in expected}
    assert expected <= small.keys()
    results = PaperResults(study, Path("nowhere"))
    models = (*arxiv_openwebtext2.MODELS, *openweb_github_arxiv.WITH_CONTROL)
    assert controls <= {results.spec(model, control=True) for model in models}
    for job in full.jobs:
        twin = small[key(job, 4)]
        for request, scaled_down in zip(job.evaluations, twin.evaluations, strict=True):
            assert [length / 4 for length in request["lengths"]] == scaled_down["lengths"]
            assert request.get("protocol") == scaled_down.get("protocol")
            assert (request.get("window") or 0) / 4 == (scaled_down.get("window") or 0)
        assert job.measurement is not None
        assert twin.measurement is not None
        assert job.measurement["length"] / 4 == twin.measurement["length"]


def test_every_artifact_finds_its_runs_in_every_study() -> None:
    without = {"alibi", "window", "evaluation", "heatmap_8", "diagonal_8", "dataset", "model_configs", *OWN}
    for name in ("paper", "paper-first", "paper-full"):
        results = PaperResults(read_study(name), Path("nowhere"))
        for artifact in registry().values():
            assert bool(artifact.jobs(results)) != (artifact.name in without), (name, artifact.name)


# ---- artifacts


def test_there_are_thirteen_figures_and_seven_tables() -> None:
    kinds = {name: artifact.kind for name, artifact in registry().items() if name not in OWN}
    assert {name for name, kind in kinds.items() if kind == "figure"} == FIGURES
    assert {name for name, kind in kinds.items() if kind == "table"} == TABLES


@pytest.fixture(scope="module")
def first_wave(study: Study, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper") / "results"
    for job in study.jobs:
        if job.recipe.seed == 1235:
            write_result(job, study, folder, law)
    return folder


def test_every_artifact_redraws_from_results_alone(
    first_wave: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["paper", "all", "--study", "paper-first", "--results", str(first_wave), "--out", str(tmp_path), "--json"])
    drawn = {row["name"]: row["files"] for row in json.loads(capsys.readouterr().out)["drawn"]}
    assert drawn.keys() == registry().keys()
    for name in FIGURES | TABLES:
        endings = {Path(file).suffix for file in drawn[name]}
        assert endings >= ({".png", ".svg"} if name in FIGURES else {".md", ".tex", ".csv"}), name
        assert all(Path(file).stat().st_size for file in drawn[name])
    assert "latex, prose and code replace" in (tmp_path / "arxiv.md").read_text()
    assert "w 40 \\| 10" in (tmp_path / "arxiv.md").read_text()
    latex = (tmp_path / "arxiv.tex").read_text()
    assert r"$\Delta$ -3 $|$ -5" in latex
    assert "latex" in (tmp_path / "arxiv_sec3.svg").read_text()
    main(["paper", "--study", "paper-first", "--results", str(first_wave), "--out", str(tmp_path), "--json"])
    states = {row["name"]: row for row in json.loads(capsys.readouterr().out)["artifacts"]}
    assert states["arxiv"]["state"] == "partial"
    assert states["arxiv"]["why"] == "1 of 5 seeds, 23 of 91 runs"
    assert states["heatmap_8"]["state"] == "fresh"
    assert all(row["drawn"] for name, row in states.items() if name not in OWN)


@pytest.mark.parametrize("edition", ["paper", "paper-first"])
def test_the_committed_results_are_whole_and_every_artifact_is_drawn_from_them(
    edition: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = HERE.parent / "results" / edition
    folders = {path.parent.name for path in folder.glob("*/result.json")}
    states = PaperResults(read_study(edition), folder).states
    assert {name: states.get(name) for name in folders} == dict.fromkeys(folders, "done")
    options = ["--study", edition, "--results", str(folder), "--out", str(tmp_path), "--json"]
    main(["paper", "all", *options])
    drawn = {row["name"] for row in json.loads(capsys.readouterr().out)["drawn"] if row["files"]}
    assert drawn == registry().keys()
    main(["paper", *options])
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["artifacts"]}
    assert {row["state"] for row in rows.values()} <= {"fresh", "partial", "missing"}
    for name, row in rows.items():
        text = (tmp_path / f"{name}.md").read_text() if (tmp_path / f"{name}.md").exists() else ""
        assert ("\nCut: " in text) == (row["state"] != "fresh"), name


def test_the_second_edition_shows_code_first_and_beside_what_the_paper_has_on_arxiv(tmp_path: Path) -> None:
    edition = read_study("paper")
    results = MadeUpResults(edition, law)
    titles = [sheet.title for sheet in find("openweb-github-arxiv").draw(results).sheets]
    assert [title.split(" (")[0] for title in titles[:3]] == ["GitHub | code", "ArXiv | latex", "OpenWebText2 | prose"]
    experiments = find("arxiv").draw(results)
    assert experiments.sheets[0].title == "GitHub | code: shift all h by Δ (paper on ArXiv · ours)"
    assert [sheet.title.split(":")[0] for sheet in experiments.sheets] == ["GitHub | code"] * 3 + ["ArXiv | latex"] * 3
    (cell,) = [
        row
        for row in experiments.records
        if (row["corpus"], row["model"], row["length"]) == ("github", "window:320", 1024)
    ]
    assert (cell["paper_corpus"], str(cell["paper"]), cell["our_model"]) == ("arxiv", "178", "none:window=80")
    assert cell["ours"] == pytest.approx(math.exp(law(results.jobs(["window:320"], ["github"])[0], 128, {})), rel=0.02)
    assert set(find("arxiv_sec3").draw(results).figures) == {"-code", "-latex"}
    repaired = find("extended_training_length").draw(results).sheets[1]
    assert [row[0] for row in repaired.rows if "code" in row[0]] == [
        f"{label}, GitHub | code" for label in ("Δ 6 | 3", "w 160 | 40", "Δ 8 | 5", "w 320 | 80")
    ]
    for artifact in registry().values():
        if artifact.name not in OWN:
            drawn = artifact.draw(results)
            assert drawn.figures or artifact.kind == "table", artifact.name


def test_a_cell_is_what_a_hand_computes(study: Study, tmp_path: Path) -> None:
    results = PaperResults(study, tmp_path)
    for seed in (1235, 1236):
        for job in jobs_of(results, "window:40", seeds=[seed]):
            write_result(job, study, tmp_path, law)
    redraw(find("arxiv"), PaperResults(study, tmp_path), tmp_path / "out")
    values = []
    for path in sorted(tmp_path.glob("none-window=10-*")):
        (file,) = path.glob("evaluation-*.npz")
        losses = np.load(file)["losses"].astype(float)
        values.append(math.exp(losses[3].mean()))  # 256 is the fourth of its lengths
    mean, spread = sum(values) / 2, abs(values[0] - values[1]) / math.sqrt(2)
    rows = list(csv.DictReader((tmp_path / "out" / "arxiv.csv").read_text().splitlines()))
    (row,) = [row for row in rows if (row["model"], row["length"], row["distances"]) == ("window:40", "1024", "scaled")]
    assert float(row["ours"]) == pytest.approx(mean, rel=1e-9)
    assert float(row["deviation"]) == pytest.approx(spread, rel=1e-6)
    assert row["paper"] == "8.27"
    line = next(
        text
        for text in (tmp_path / "out" / "arxiv.md").read_text().splitlines()
        if "w 40" not in text and "8.27" in text and "1024" in text
    )
    assert f"8.27 · {mean:.2f} ± {spread:.2f}" in line


def test_distances_between_curves_are_in_the_numbers_too(study: Study, tmp_path: Path) -> None:
    for model in ("sandwich", "kerple"):
        for job in jobs_of(PaperResults(study, tmp_path), model, seeds=[1235]):
            write_result(
                job, study, tmp_path, spread=lambda job, length: np.arange(length) < len(job.recipe.scheme) * 8
            )
    results, name = PaperResults(study, tmp_path), "sandwich_kerple_t5_receptive"
    sandwich, kerple = results.field("sandwich", "arxiv"), results.field("kerple", "arxiv")
    assert sandwich is not None
    assert kerple is not None
    assert distance(sandwich, kerple) > 0
    redraw(find(name), results, tmp_path / "out")
    rows = {row["model"]: row for row in csv.DictReader((tmp_path / "out" / f"{name}.csv").read_text().splitlines())}
    for a, b in (("sandwich", "kerple"), ("kerple", "sandwich")):
        assert float(rows[a][f"distance_to_{b}"]) == pytest.approx(distance(sandwich, kerple))
        assert float(rows[a][f"distance_to_{a}"]) == 0
        assert rows[a]["distance_to_t5"] == ""


def test_parameters_are_counted_as_the_decoder_has_them() -> None:
    for tied in (True, False):
        config = Config(layers=2, width=24, heads=3, vocab_size=100, tied=tied)
        assert model_configs.parameters(config) == sum(parameter.numel() for parameter in Decoder(config).parameters())
    assert model_configs.parameters(Config()) == 162_322_944


def test_cells_show_values_deviations_and_divergence() -> None:
    assert both(None, Score({})) == "– · –"
    assert str(Score({}, diverged=2)) == "diverged"
    assert str(Score({1: 5.0, 2: 6.0}, mark="†")) == "5.50 ± 0.71†"
    assert str(Score({1: 5.0}, diverged=2)) == "5.00 (2 diverged)"
    assert str(Score({1: 178.4})) == "178"


def test_evaluations_with_and_without_a_cache_are_distinguished(study: Study) -> None:
    def by_window(job: Job, length: int, request: dict[str, Any]) -> float:
        return 4.0 if request.get("window") else 3.0

    results = MadeUpResults(study, by_window, available=lambda job: job.recipe.seed == 1235)
    with_cache, without = (
        score(results, "alibi", "arxiv", 8192, **efficient_inference.cached(results, window)).mean
        for window in (True, False)
    )
    assert with_cache == pytest.approx(math.exp(4), rel=0.01)
    assert without == pytest.approx(math.exp(3), rel=0.01)


def test_the_main_table_marks_what_differs_from_sandwich(study: Study) -> None:
    def worse(job: Job, length: int, request: dict[str, Any]) -> float:
        return 3.0 + {"rotary": 1.0, "kerple": -0.5}.get(job.recipe.scheme, 0.0)

    results = MadeUpResults(
        study, worse, available=lambda job: job.recipe.seed <= 1237 and job.recipe.corpus == "latex"
    )
    drawn = find("openweb-github-arxiv").draw(results)
    rows = {row[0].split(" | ")[0]: row[1:] for row in drawn.sheets[0].rows}
    assert all(cell.endswith("†") for cell in rows["rotary"])
    assert all(cell.endswith("*") for cell in rows["kerple"])
    tests = drawn.sheets[-1]
    assert len(tests.rows) == 7 * 5
    assert all(float(row[6]) >= float(row[5]) for row in tests.rows)
    by_holm = {(row[1], row[2]): (float(row[5]), float(row[6])) for row in tests.rows}
    p, corrected = min(by_holm.values())
    assert corrected == pytest.approx(35 * p, rel=0.01)
    in_full = {(row["our_model"], str(row["our_length"])): row for row in drawn.records if row["test_p"] is not None}
    assert in_full.keys() == by_holm.keys()
    for cell, (p, corrected) in by_holm.items():
        assert (in_full[cell]["test_p"], in_full[cell]["test_p_holm"]) == pytest.approx((p, corrected), rel=0.01)
    assert {row["mark"] for row in in_full.values() if row["test_p"] < 0.05 and row["test_difference"] > 0} == {"†"}


def test_a_distance_between_curves_is_their_largest_gap() -> None:
    uniform, last = (ReceptiveField(np.array([shares])) for shares in ([1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 4.0]))
    assert distance(uniform, last) == pytest.approx(0.75)
    assert distance(uniform, uniform) == 0


def test_the_protocol_is_drawn_from_its_own_indices(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = find("evaluation").draw(PaperResults(study, Path("nowhere"))).figures[""]
    for panel, length in zip(figure.axes, (5, 3), strict=True):
        assert len(panel.texts) == 5
        squares = [patch.get_facecolor() for patch in panel.patches]
        commonest = {colour: squares.count(colour) for colour in squares}
        assert 5 * length in commonest.values()
        assert 5 in commonest.values()


def test_a_repair_shows_levels_growth_and_cost_before_and_after(study: Study) -> None:
    def law(job: Job, length: int, request: dict[str, Any]) -> float:
        level = 20.0 if job.recipe.length == 128 else 30.0
        return math.log(level * (2 if job.recipe.length == 128 and length > 128 else 1))

    results = MadeUpResults(study, law, train=lambda job: 100.0 if job.recipe.length == 128 else 150.0, noise=0.0)
    sheet = find("extended_training_length").draw(results).sheets[1]
    rows = {row[0]: row[1:] for row in sheet.rows}
    assert rows["w 160 | 40, ArXiv | latex"] == [
        "128 → 256",
        "40.0 → 30.0",
        "2.00 → 1.00",
        "74 → 148",
        "× 1.50, 1.50, 1.50, 1.50, 1.50",
    ]


def test_growth_is_over_a_models_own_perplexity_where_it_was_trained() -> None:
    wide = [None, None, None]
    lines = [
        Line("a", "alibi", [64, 128, 256], [30.0, 20.0, 24.0], wide, wide, 128),
        Line("b", "rotary", [64, 128, 256], [9.0, 10.0, 90.0], wide, wide, 128),
        Line("c", "kerple", [64, 128, 256], [9.0, 10.0, 11.0], wide, wide, None),
    ]
    panel = growth_lines(lines).axes[0]
    drawn = {line.get_label(): list(line.get_ydata()) for line in panel.lines}
    assert drawn["a"] == [1.5, 1.0, 1.2]
    assert drawn["b"] == [0.9, 1.0, 9.0]
    assert "c" not in drawn
    assert panel.get_ylim() == (pytest.approx(0.87), 1.5)


# ---- the command


def fails(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["paper", *words])
    output = capsys.readouterr().err
    assert caught.value.code == 2
    assert output.count("\n") == 1
    return output


def test_mistakes_end_in_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert "did you mean 'arxiv'?" in fails(capsys, "arxv")
    assert "is not a folder" in fails(capsys, "--results", str(tmp_path / "none"))
    assert "needs 5 runs" in fails(capsys, "rotary_512", "--study", "paper-first", "--results", str(tmp_path))
    assert "--run needs the name of an artifact" in fails(capsys, "--run")
    assert "trains no sandwich model" in fails(capsys, "--study", str(_foreign(tmp_path)))
    assert "neither next to the study file nor in --corpora" in fails(
        capsys,
        "rotary_512",
        "--run",
        "--study",
        "paper-first",
        "--results",
        str(tmp_path),
        "--runs",
        str(tmp_path / "runs"),
    )


def _foreign(folder: Path) -> Path:
    (folder / "mine.toml").write_text('models = ["alibi"]\n')
    return folder / "mine.toml"


@pytest.mark.parametrize(
    "content", ["", "[]", "{", '{"kind": "fieldlens result"}', '{"addresses": {"evaluations": [7]}}']
)
def test_hostile_results_are_ignored(study: Study, tmp_path: Path, content: str) -> None:
    job = jobs_of(PaperResults(study, tmp_path), "rotary")[0]
    job_folder = write_result(job, study, tmp_path)
    (job_folder / "result.json").write_text(content)
    summary = state(find("rotary_512"), PaperResults(study, tmp_path), tmp_path / "out")
    assert summary["state"] in ("stale", "missing")
    assert summary["runs"]["done"] == 0


def test_a_damaged_file_of_a_result_ends_in_one_line(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job_folder = write_result(jobs_of(PaperResults(study, tmp_path), "rotary")[0], study, tmp_path)
    damaged = job_folder / "measurement.npz"
    damaged.write_bytes(bytes(damaged.stat().st_size))  # of the right size
    output = fails(
        capsys, "rotary_512", "--study", "paper-first", "--results", str(tmp_path), "--out", str(tmp_path / "out")
    )
    causes = "other training settings, another evaluation request, another text, or damaged"
    assert f"needs 5 runs, but 1 of 5 results are stale ({causes})" in output
    assert output.endswith("; to perform the runs, use fieldlens paper rotary_512 --run --corpora FOLDER\n")


def test_parity_needs_no_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = fails(capsys, "parity", "--results", str(tmp_path), "--out", str(tmp_path / "out"))
    assert output.endswith("; to perform the runs, use fieldlens paper parity --run\n")


def test_the_list_names_every_artifact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["paper", "--study", "paper-first", "--results", str(tmp_path)])
    output = capsys.readouterr().out
    assert all(name in output for name in registry())
    assert "missing" in output
