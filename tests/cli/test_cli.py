"""The command line: what it prints, what it plots, and its error messages."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fieldlens import __version__, cli
from fieldlens.cli.schemes import _fits
from fieldlens.core import device as machine
from fieldlens.core.errors import BadInput
from fieldlens.schemes.discovery import registry
from fieldlens.schemes.spec import scheme


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    code = 0
    try:
        cli.main(words)
    except SystemExit as stop:
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_listing_names_every_scheme(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schemes")
    assert code == 0
    for name, cls in registry().items():
        assert name in out
        assert cls.label in out


def test_listing_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "schemes", "--json")
    rows = {row["spec"]: row for row in json.loads(out)["schemes"]}
    assert set(rows) == set(registry())
    assert rows["kerple"]["learned_parameters"] == 24
    assert rows["t5"]["learned_parameters"] == 384
    assert rows["sandwich"]["options"]["dims"] == {"default": 128, "choices": None}
    assert rows["sandwich"]["options"]["ratios"]["choices"] == ["fixed", "learned"]
    assert rows["sinusoidal"]["kind"] == "absolute"


@pytest.mark.parametrize(
    "words",
    [
        ["--plot", "all.png"],
        ["sandwich", "--heatmap", "--plot", "heat.png"],
        ["sandwich", "--fit", "--plot", "row.svg"],
        ["sandwich:dims=32", "sandwich", "--head", "12", "--log", "--plot", "dims.pdf"],
        ["none:window=40", "alibi:window=8", "--heatmap", "--length", "60", "--plot", "windows.png"],
    ],
    ids=lambda words: words[-1],
)
def test_plots_are_written(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, "schemes", *words)
    assert (code, err) == (0, "")
    assert f"plot: {words[-1]}" in out
    assert (tmp_path / words[-1]).stat().st_size > 3000


def test_fit_prints_our_constants_beside_the_papers(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "schemes", "sandwich", "--fit", "--json")
    (fit,) = json.loads(out)["fits"]
    assert (round(fit["slope"], 4), round(fit["constant"], 4)) == (-0.8324, -0.7938)
    assert fit["paper"] == {"slope": -0.825, "constant": -0.8}
    _, out, _ = run(capsys, "schemes", "sandwich", "--fit")
    assert "-0.8324·log(1 + Δ) - 0.7938" in out
    assert "-0.8250·log(1 + Δ) - 0.8000" in out


def test_a_fit_skips_infinite_biases() -> None:
    instance, distances = scheme("alibi", 8, 64), torch.arange(100)
    bias_HN = (2 - 3 * torch.log1p(distances.double())).masked_fill(distances >= 64, -torch.inf).expand(8, -1)
    (fit,) = _fits([(instance, bias_HN)], 8)
    assert (fit["slope"], fit["constant"]) == (pytest.approx(-3), pytest.approx(2))
    with pytest.raises(BadInput, match="a fit needs at least 2 distances"):
        _fits([(instance, bias_HN[:, 63:])], 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["schemes", "sandwhich"], "unknown scheme 'sandwhich': did you mean 'sandwich'?"),
        (["schemes", "sandwich:dim=3"], "did you mean 'dims'?"),
        (["schemes", "none:window=0"], "window must be at least 1, got 0"),
        (["schemes", "alibi:shift=-2000"], "shift and same must be within ±100, got -2000"),
        (["schemes", "sandwich:dims=1" + "0" * 30], "must be between -1e+12 and 1e+12"),
        (["schemes", "sandwich:window=1", "--fit"], "'sandwich:window=1' has 1"),
        (["schemes", "rotary", "--head-width", "7"], "head width must be even, got 7"),
        (["schemes", "rotary", "--plot", "x.png"], "'rotary' adds no bias to scores"),
        (["schemes", "cope", "--plot", "x.png"], "what 'cope' adds to scores depends on the text: add --text FILE"),
        (["schemes", "sandwich", "--plot", "x.gif"], "must end in .png, .svg, .pdf"),
        (["schemes", "sandwich", "--heatmap"], "--plot FILE.png"),
        (
            ["schemes", "--head", "13", "--plot", "x.png"],
            "--head must be between 1 and 12, the number of heads, got 13",
        ),
        (["schemes", "--length", "1", "--plot", "x.png"], "--length must be between 2 and 16,777,216, got 1"),
        (["schemes", "--length", "999999999999", "--plot", "x.png"], "between 2 and 16,777,216, got 999999999999"),
        (["schemes", "--heads", "0"], "heads must be between 1 and 65536, got 0"),
        (["schemes", "--heads", "99999999999"], "heads must be between 1 and 65536, got 99999999999"),
        (["schemes", "--device", "meta"], "device 'meta' cannot be used"),
        (["schemes", "--threads", "0"], "threads must be at least 1, got 0"),
        (["schemes", "--device", "abacus"], "device 'abacus' cannot be used"),
        (["schemes", "--dtype", "int4"], "int4"),
        (["schemes", "--hed", "1"], "--hed"),
        (["scemes"], "schemes"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_refusals_are_one_line_and_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert code == 2
    assert out == ""
    assert message in err
    assert err.startswith("fieldlens: ")
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_debug_shows_the_traceback() -> None:
    with pytest.raises(BadInput):
        cli.main(["schemes", "sandwhich", "--debug"])


def test_a_disk_that_cannot_be_written_is_exit_4(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path, expected in ((Path("/proc/x.png"), 4), (tmp_path / "file" / "x.png", 2)):
        code, _, err = run(capsys, "schemes", "sandwich", "--plot", str(path))
        assert code == expected
        assert err.count("\n") == 1


def test_bfloat16_is_probed_before_it_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(machine, "bfloat16_runs", lambda: False)
    assert machine.Machine(device="cpu", dtype="bfloat16").start()[1] == torch.float32
    assert "bfloat16 does not run on this CPU; float32 is used instead" in capsys.readouterr().err
    monkeypatch.setattr(machine, "bfloat16_runs", lambda: True)
    assert machine.Machine(device="cpu", dtype="bfloat16").start()[1] == torch.bfloat16


def test_a_machine_that_crashes_on_bfloat16_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert not machine.bfloat16_runs()


def test_version_and_help_do_not_import_torch() -> None:
    program = "import sys, fieldlens.cli as c\ntry: c.main([sys.argv[1]])\nfinally: assert 'torch' not in sys.modules"
    for word, expected in (("--version", f"fieldlens {__version__}"), ("--help", "schemes")):
        child = subprocess.run([sys.executable, "-c", program, word], capture_output=True, text=True, check=True)
        assert expected in child.stdout


def test_every_verb_has_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    verbs = [name for name in cli.app if not name.startswith("-")]
    assert "schemes" in verbs
    for verb in verbs:
        _, out, _ = run(capsys, verb, "--help")
        assert f"Example: fieldlens {verb}" in out
        for flag in ("--device", "--dtype", "--threads"):
            assert flag in out, (verb, flag)


def test_a_name_that_looks_like_markup(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = run(capsys, "schemes", "sandwich", "--plot", str(tmp_path / "[red].PNG"))
    assert code == 0
    assert "[red].PNG" in out
