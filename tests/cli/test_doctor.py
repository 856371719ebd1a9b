"""fieldlens doctor: the machine, the kernels, the self-test."""

import importlib
import json

import pytest
import torch

from fieldlens import cli
from fieldlens.schemes.discovery import registry

doctor = importlib.import_module("fieldlens.cli.doctor")  # the package has the verb by this name
CPU = ["--device", "cpu", "--threads", "1"]


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> dict:  # type: ignore[type-arg]
    monkeypatch.delenv("FIELDLENS_KERNEL", raising=False)
    cli.main(["doctor", "--json", *CPU])
    return json.loads(capsys.readouterr().out)


def test_doctor_reports_machine_kernels_and_exactness(report: dict) -> None:  # type: ignore[type-arg]
    assert report["versions"]["torch"] == torch.__version__
    assert 1 <= report["machine"]["free_cores"] <= report["machine"]["usable_cores"] <= report["machine"]["cores"]
    assert report["machine"]["threads"] == 1
    assert report["compile"]["flex"] == "not used on this device"
    kernels = {row["scheme"]: row for row in report["kernels"]}
    assert set(registry()) <= set(kernels) == set(report["self_test"]["errors"])
    assert kernels["t5"]["training"] == "blocks (learned bias on a CPU)"
    assert kernels["t5"]["inference"] == kernels["alibi"]["training"] == "cpu_flash (fixed bias on a CPU)"
    assert kernels["rotary"]["training"] == "sdpa (plain causal attention)"
    assert report["self_test"]["exact"]
    assert 0 < report["self_test"]["error"] <= report["self_test"]["tolerance"]
    assert min(report["speed"].values()) > 0


def test_doctor_finds_a_kernel_that_is_wrong(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fused kernel returns slightly too much: exit code 4, and the scheme is named."""
    from fieldlens.kernels import attention

    right = attention.KERNELS["cpu_flash"]
    monkeypatch.setitem(attention.KERNELS, "cpu_flash", lambda *inputs: right(*inputs) * 1.001)
    monkeypatch.setattr(doctor, "_specs", lambda: ["none", "alibi"])
    monkeypatch.setattr(doctor, "_speed", lambda *_: {"matmul_gflops": 1.0, "training_tokens_per_second": 1.0})
    with pytest.raises(SystemExit) as exit_code:
        cli.main(["doctor", *CPU])
    assert exit_code.value.code == 4
    assert "self-test of 2 schemes with gradients: WRONG" in (shown := capsys.readouterr().out)
    assert "(alibi)" in shown


def test_doctor_refuses_an_unknown_kernel(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIELDLENS_KERNEL", "triton")
    with pytest.raises(SystemExit) as exit_code:
        cli.main(["doctor", *CPU])
    assert exit_code.value.code == 2
    assert "unknown value of FIELDLENS_KERNEL 'triton': allowed: blocks, flex, sdpa" in capsys.readouterr().err


def test_the_help_lists_only_what_applies(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "--help"])
    shown = capsys.readouterr().out
    assert "--threads" in shown
    assert "--max-document-bytes" not in shown
    assert "train" not in shown
