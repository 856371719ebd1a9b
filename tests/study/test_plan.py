"""Study files: the jobs that they expand to, and invalid files."""

import dataclasses
import json
import shutil
from pathlib import Path

import pytest
import small_studies

from fieldlens.cli import main
from fieldlens.core.errors import BadInput
from fieldlens.evaluation.protocols.last_token import LastToken
from fieldlens.study.plan import job_from, read_study


def test_a_study_is_all_combinations(tmp_path: Path) -> None:
    study, _ = small_studies.opened(small_studies.write_study(tmp_path, ["alibi", "none:window=4"], seeds=[1, 2, 3]))
    assert [(job.recipe.scheme, job.recipe.seed) for job in study.jobs] == [
        (scheme, seed) for seed in (1, 2, 3) for scheme in ("alibi", "none:window=4")
    ]
    assert {job.recipe.steps for job in study.jobs} == {20}
    assert len({job.name for job in study.jobs}) == 6


def test_a_model_may_have_its_own_fields_corpora_and_seeds(tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(
        'preset = "smoke"\ncorpora = ["a", "b"]\nseeds = [1, 2]\n'
        'models = ["alibi", { scheme = "rotary", length = 16, corpora = ["b"], seeds = [2] }]\n'
        '[[evaluate]]\nlengths = [8]\n[[evaluate]]\nlengths = [9]\nmodels = ["rotary"]\n'
        '[measure]\nlength = 40\nmodels = ["alibi"]\n'
    )
    study = read_study(str(file))
    (rotary,) = [job for job in study.jobs if job.recipe.scheme == "rotary"]
    assert (rotary.recipe.length, rotary.recipe.corpus, rotary.recipe.seed) == (16, "b", 2)
    assert [request["lengths"] for request in rotary.evaluations] == [[8], [9]]
    assert rotary.measurement is None
    assert len(study.jobs) == 5
    assert len(study.only(["alibi-*-1-*"]).jobs) == 2
    with pytest.raises(BadInput, match="no run of study 'own' matches sandwich"):
        study.only(["sandwich*"])


def test_rows_of_models_run_in_the_order_in_which_they_are_listed(tmp_path: Path) -> None:
    rows = (
        'preset = "smoke"\ncorpora = ["a", "b"]\nseeds = [1, 2]\nmodels = [\n'
        '{ schemes = ["alibi", "rotary"], length = 16, corpora = ["b"], seeds = [2] },\n'
        '{ scheme = "alibi", corpora = ["a"] },\n]\n[evaluate]\nlengths = [8]\n'
    )
    listed = [("alibi", "b", 2), ("rotary", "b", 2), ("alibi", "a", 1), ("alibi", "a", 2)]
    by_seed = [("alibi", "a", 1), ("alibi", "a", 2), ("alibi", "b", 2), ("rotary", "b", 2)]
    file = tmp_path / "rows.toml"
    for text, expected in ((f'order = "rows"\n{rows}', listed), (rows, by_seed)):
        file.write_text(text)
        jobs = read_study(str(file)).jobs
        assert [(job.recipe.scheme, job.recipe.corpus, job.recipe.seed) for job in jobs] == expected
        assert [job.recipe.length for job in jobs if job.recipe.corpus == "b"] == [16, 16]


def test_addresses_keep_training_apart_from_protocols(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (job,) = small_studies.opened(small_studies.write_study(tmp_path, ["alibi"]))[0].jobs
    before = job.config_hashes
    same = job_from(json.loads(json.dumps(job.to_json())))
    assert same.config_hashes == before
    monkeypatch.setattr(LastToken, "version", 2)
    after = job_from(job.to_json()).config_hashes
    assert after["training"] == before["training"]
    assert after["evaluations"] != before["evaluations"]
    assert after["measurement"] == before["measurement"]
    other = dataclasses.replace(job, recipe=dataclasses.replace(job.recipe, seed=2))
    assert not {*other.config_hashes["evaluations"], other.training_hash} & {
        *before["evaluations"],
        before["training"],
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('models = ["alibi"]\nspeed = 1', "unknown key 'speed'"),
        ('models = ["alibbi"]', "did you mean 'alibi'"),
        ('models = ["alibi:slope=1"]', "did you mean 'slopes'"),
        ('models = ["alibi"]\norder = "row"', "did you mean 'rows'"),
        ('models = [{ schemes = "alibi" }]', "schemes must be a list of specs"),
        ('models = [{ schemes = ["alibi"], scheme = "rotary" }]', "without a key 'scheme' beside it"),
        ("models = []", "models must be a non-empty list, got []"),
        ("title = 'x'", "models must be a non-empty list, got None"),
        ('models = ["alibi"]\npreset = "pockt"', "did you mean 'pocket'"),
        ('models = ["alibi"]\nseeds = []', "seeds must be a non-empty list, got []"),
        ('models = ["alibi"]\nseeds = ["one"]', "seeds must be integers from 0 to 2^63 - 1, got ['one']"),
        ('models = ["alibi"]\n[recipe]\nstepps = 3', "did you mean 'steps'"),
        ('models = ["alibi"]\n[recipe]\nsteps = 0', "steps must be at least 1, got 0"),
        ('models = ["alibi"]\n[recipe]\nsteps = "many"', "steps must be an integer, got 'many'"),
        ('models = ["alibi"]\n[recipe]\nheads = 3', "3"),
        ('models = [{ scheme = "rotary", width = 12, heads = 4 }]', "rotary"),
        (
            'models = ["alibi"]\ncorpora = ["../elsewhere"]',
            "a corpus must be a name without a path, got '../elsewhere'",
        ),
        ('models = ["alibi"]\n[evaluate]\nlenghts = [1]', "did you mean 'lengths'"),
        ('models = ["alibi"]\n[evaluate]\nsegments = 3', "lengths must be a list of integers, got None"),
        ('models = ["alibi"]\n[evaluate]\nlengths = [0]', "lengths must be integers of at least 1, got 0"),
        ('models = ["alibi"]\n[evaluate]\nlengths = [8]\nprotocol = "last"', "unknown protocol 'last'"),
        ('models = ["alibi"]\n[evaluate]\nlengths = [8]\nmodels = ["rotary"]', "unknown model 'rotary'"),
        ('models = ["alibi"]\n[measure]\nlength = 1', "length must be at least 2, got 1"),
        ('models = ["alibi"]\nmeasure = 3', "measure must be a table or a list, got 3"),
        ('models = ["alibi"]\n[data]\nlatex = "0"', "unknown corpus 'latex'"),
        ('models = [{ scheme = "alibi", seeds = [7] }]', "model alibi: 7 is not among the study's seeds"),
        ('models = ["alibi"]\n[[measure]]\n[[measure]]', "measured 2 times"),
        ("models = [", "is not TOML"),
        ('models = ["alibi"]\ncorpora = 3', "corpora must be a list, got 3"),
        ('models = ["alibi"]\ncorpora = "words"', "corpora must be a list, got 'words'"),
        ('models = ["alibi"]\ncorpora = []', "corpora must be a non-empty list, got []"),
        ('models = ["alibi"]\npreset = ["a"]', "preset must be a string, got ['a']"),
        ('models = [{ scheme = "alibi", seeds = [] }]', "the study has no runs"),
        ('models = ["alibi"]\n[recipe]\nbeta1 = nan', "beta1 must be a number, got nan"),
        (
            'models = ["alibi"]\n[recipe]\ntokenizer = "nowhere"',
            "tokenizer must be a folder with a tokenizer.json, got 'nowhere'",
        ),
        ('models = ["alibi"]\n[evaluate]\nlengths = [8]\nmodels = 3', "models must be a list, got 3"),
        ('models = ["alibi"]\n[evaluate]\nlengths = [8]\nsegments = 2.5', "segments must be an integer, got 2.5"),
        ('models = ["alibi"]\n[evaluate]\nlengths = [8]\nsegments = 0', "segments must be at least 1, got 0"),
        ('models = ["alibi"]\n[evaluate]\nlengths = [8]\nwindow = 0', "window must be at least 1, got 0"),
        ('models = ["alibi"]\n[evaluate]\nlengths = [8]\nsplit = "tset"', "did you mean 'test'"),
        ('models = ["alibi"]\n[evaluate]\nlengths = [8]\nprotocol = 3', "protocol must be a string, got 3"),
        ('models = ["alibi"]\n[measure]\ntarget = "bogus"', "unknown target 'bogus'"),
        ('models = ["alibi"]\n[measure]\naverage = "bogus"', "unknown average 'bogus'"),
        ('models = ["alibi"]\n[measure]\nlength = 10.5', "length must be an integer, got 10.5"),
        ('models = ["alibi"]\n[measure]\nwindow = 0', "window must be at least 1, got 0"),
    ],
)
def test_bad_files_are_refused_in_one_line(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text)
    with pytest.raises(SystemExit) as stop:
        main(["study", str(file), "--out", str(tmp_path / "out"), "--runs", str(tmp_path / "runs")])
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.toml"]


@pytest.mark.parametrize("name", ["deno", "nowhere.toml"])
def test_no_such_study(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["study", name, "--dry-run"])
    assert stop.value.code == 2
    assert "demo" in capsys.readouterr().err


def test_an_absent_corpus_is_refused_before_anything_runs(tmp_path: Path) -> None:
    file = small_studies.write_study(tmp_path, ["alibi"])
    shutil.rmtree(tmp_path / "words")
    done = small_studies.study(file)
    assert done.returncode == 2
    assert "corpus 'words' is not built in" in done.stderr
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("name", ["demo", "paper", "paper-first", "modern"])
def test_built_in_studies_are_complete(name: str) -> None:
    study = read_study(name)
    assert len(study.jobs) == len({job.name for job in study.jobs}) > 4
    for job in study.jobs:
        assert job.evaluations
        assert job.measurement
