"""benchmarks/gpu.py: runs here with tiny sizes, on the CPU; the site says whether a GPU was measured."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


def test_the_gpu_benchmark_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.delenv("FIELDLENS_KERNEL", raising=False)
    monkeypatch.setenv("COLUMNS", "200")
    gpu = importlib.import_module("gpu")
    try:
        written = (ROOT / "benchmarks" / "gpu.json").exists()
        gpu.main(device="cpu", tiny=True, rounds=1)
        assert (ROOT / "benchmarks" / "gpu.json").exists() == written  # figures of a CPU are not kept
        errors = gpu.exactness(gpu.TINY, gpu.torch.device("cpu"), gpu.torch.float32)
        monkeypatch.setitem(gpu.LIMITS, gpu.torch.float32, 1e-12)
        with pytest.raises(SystemExit, match=r"not exact: .*alibi \(window –, cpu_flash"):
            gpu.main(device="cpu", tiny=True, only=["exactness"])
    finally:
        for name in ("gpu", "rounds"):
            sys.modules.pop(name, None)
    assert max(row["output"] for row in errors) < 1e-5
    titles = {line.strip() for line in capsys.readouterr().out.splitlines()}
    assert {"exactness, float32", "attention, 160 tokens", "training", "long texts"} <= titles


def test_the_site_says_that_no_gpu_was_measured(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("gpu_site_builder", ROOT / "docs" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    builder = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(builder)
    assert builder.gpu_figures(tmp_path / "gpu.json").startswith("Not yet measured")
    (tmp_path / "gpu.json").write_text('{"gpu": "H100"}')
    assert builder.gpu_figures(tmp_path / "gpu.json") == "On one H100: [the tables](performance.md#gpu)."
