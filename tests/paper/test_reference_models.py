"""Reference models: exported from finished runs, sealed, described by a card; and those that are committed."""

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import small_studies as small
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import fieldlens
from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.storage.folders import verified_manifest
from fieldlens.storage.sealed import read_sealed, write_sealed
from fieldlens.study.job import perform
from fieldlens.study.results import read_result
from fieldlens.study.state import StudyPaths

ROOT = Path(__file__).parents[2]
MODELS = sorted(path.parent for path in (ROOT / "results" / "models").glob("*/config.json"))


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("export_models", ROOT / "results" / "export_models.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyPaths]:
    """The run folder of a small KERPLE, and the paths of its study; the corpus states sources and licences."""
    folder = tmp_path_factory.mktemp("reference")
    small.training.write_corpus(folder / "plain")
    texts = [path.read_text() for path in sorted((folder / "plain").iterdir())]
    (folder / "words").mkdir()
    for split, part in (("train", texts[:30]), ("validation", texts[30:35]), ("test", texts[35:])):
        meta = [{"licence": "MIT" if n % 3 else "GPL-2.0", "source": f"words {n % 3}"} for n in range(len(part))]
        lines = [json.dumps({"text": text, "meta": about}) for text, about in zip(part, meta, strict=True)]
        (folder / "words" / f"{split}.jsonl").write_text("\n".join(lines))
    study, paths = small.opened(small.write_study(folder, ["kerple"]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FIELDLENS_CACHE", str(folder / "cache"))
        (job,) = study.jobs
        paths.work(job).mkdir(parents=True)
        perform(job, paths, str(folder / "words"), Machine(threads=1))
    return paths.work(job), paths


def test_a_finished_run_becomes_a_sealed_model_folder_with_a_card(
    script: Any, finished: tuple[Path, StudyPaths], tmp_path: Path
) -> None:
    run, paths = finished
    line = script.export(run, paths.results, tmp_path, segments=4)
    folder = tmp_path / "kerple"
    assert str(folder) in line
    assert verified_manifest(folder) is not None
    trained = load_file(run / "model" / "model.safetensors")
    for name, weight in load_file(folder / "model.safetensors").items():
        assert weight.dtype == torch.bfloat16
        assert torch.equal(weight, trained[name].bfloat16())
    ids = torch.arange(40)[None]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    loss = fieldlens.load_model(folder).losses(ids, keep=39).mean()
    assert loss.item() == pytest.approx(model(ids, labels=ids).loss.item(), abs=1e-5)
    assert AutoTokenizer.from_pretrained(folder).eos_token_id is not None


def test_the_card_says_what_the_result_and_the_corpus_say(
    script: Any, finished: tuple[Path, StudyPaths], tmp_path: Path
) -> None:
    run, paths = finished
    script.export(run, paths.results, tmp_path, segments=4)
    folder = tmp_path / "kerple"
    card = (folder / "README.md").read_text()
    result = read_result(paths.results / run.name)
    for length in result.evaluations[0].losses:
        assert f"{result.evaluations[0].score(length):.2f}" in card
    assert "| GPL-2.0 | words 0 | 10 |" in card
    assert card.count("| MIT | words") == 2
    for fact in (result.about["text"], result.about["data"], "seed 1,", "`kerple`"):
        assert fact in card
    assert 0 < float(re.findall(r"largest change of perplexity is ([\d.]+)%", card)[0]) < 5


def test_what_is_not_the_model_of_its_result_is_refused(
    script: Any, finished: tuple[Path, StudyPaths], tmp_path: Path
) -> None:
    run, paths = finished
    shutil.copytree(run, tmp_path / run.name)
    shutil.copytree(paths.results / run.name, tmp_path / "results" / run.name)
    for path in (tmp_path / "results" / run.name).glob("evaluation-*.json"):
        content = read_sealed(path)
        content["model"]["weights"] = "0" * 64
        write_sealed(path, content)
    small.rewrite_record(tmp_path / "results" / run.name)
    with pytest.raises(BadInput, match="is the result of other weights"):
        script.export(tmp_path / run.name, tmp_path / "results", tmp_path / "models")
    write_sealed(tmp_path / run.name / "status.json", {"state": "running", "step": 3}, indent=None)
    with pytest.raises(BadInput, match="is not a finished run"):
        script.export(tmp_path / run.name, paths.results, tmp_path / "models")


def test_committed_models_are_small() -> None:
    sizes = {folder.name: sum(path.stat().st_size for path in folder.iterdir()) for folder in MODELS}
    assert all(size <= 4 << 20 for size in sizes.values()), sizes
    assert sum(sizes.values()) <= 30 << 20


@pytest.mark.parametrize("folder", MODELS, ids=lambda folder: folder.name)
def test_a_committed_model_is_what_its_card_and_the_committed_result_say(folder: Path) -> None:
    manifest = verified_manifest(folder)
    assert manifest is not None
    assert "README.md" in manifest["files"]
    card, result = (folder / "README.md").read_text(), read_result(ROOT / "results" / "paper" / manifest["run"])
    evaluation = result.evaluations[0]
    assert evaluation.about["model"]["weights"] == manifest["weights"]
    scores = [f"{evaluation.score(length):.2f}" for length in sorted(evaluation.losses)]
    assert f"| perplexity | {' | '.join(scores)} |" in card
    adapter = fieldlens.load_model(folder)
    assert adapter.train_length == result.recipe["length"]
    assert float(re.findall(r"largest change of perplexity is ([\d.]+)%", card)[0]) < 0.5
