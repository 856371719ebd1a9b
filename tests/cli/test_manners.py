"""Command line behaviour: help on one screen, Ctrl-C, pipes, narrow terminals, completion, imports."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from newcomer import save_model, save_text
from rich.console import Console

from fieldlens import cli
from fieldlens.core.device import Machine
from fieldlens.reporting.table import Table, figure

HEAVY = ("torch", "transformers", "matplotlib", "scipy", "ray")

# Runs the command line as `python -m fieldlens` does, and sends itself a SIGINT when the named module is looked for.
INTERRUPTED = """
import os, runpy, signal, sys
class Trap:
    def find_spec(self, name, *rest):
        if name == sys.argv[1]:
            sys.meta_path.remove(self)
            try:
                os.kill(os.getpid(), signal.SIGINT)
            except KeyboardInterrupt:
                os.abort()  # as torch's own code does when an exception strikes it
sys.meta_path.insert(0, trap := Trap())
sys.argv = ["fieldlens", *sys.argv[1:]]
"""


@pytest.fixture(autouse=True)
def _interruptible() -> Iterator[None]:
    """A suite that runs in the background ignores SIGINT, and so would its children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def fieldlens(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fieldlens", *words]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "COLUMNS": "80", **settings}
    )


def test_help_fits_one_screen_and_shows_the_commonest_calls() -> None:
    lines = fieldlens("--help").stdout.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    for verb in ("measure", "train"):
        assert any(line.startswith(f"fieldlens {verb} ") for line in lines), verb


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["measure", "--help"]])
def test_help_and_version_import_nothing_heavy(words: list[str]) -> None:
    program = (
        f"import sys, fieldlens.cli as c\ntry: c.main({words})\nfinally: print(sorted({HEAVY} & sys.modules.keys()))"
    )
    program = program.replace(str(HEAVY), str(set(HEAVY)))
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.splitlines()[-1] == "[]"


def test_version_prints_what_a_bug_report_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [line.split()[0] for line in cli.versions().splitlines()]
    assert names[:5] == ["fieldlens", "python", "torch", "transformers", "tokenizers"]
    monkeypatch.setattr("fieldlens.cli.installed.NEEDED", ("no-such-library",))
    assert "no-such-library missing" in cli.versions()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish", "powershell"])
def test_completion_knows_verbs_and_flags(shell: str, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    done = fieldlens("--install-completion", "--shell", shell, "--output", str(script), HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    for word in ("measure", "generate", "train-length"):
        assert word in script.read_text(), word


@pytest.mark.parametrize(
    ("module", "words"),
    [("cyclopts", ["schemes"]), ("torch", ["schemes"]), ("torch.nn", ["schemes"]), ("rich", ["--help"])],
)
def test_ctrl_c_during_imports_leaves_no_traceback(module: str, words: list[str]) -> None:
    program = INTERRUPTED.replace("sys.argv[1]", repr(module)) + 'runpy.run_module("fieldlens", run_name="__main__")'
    child = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert (child.returncode, child.stdout, child.stderr) == (130, "", "fieldlens: interrupted\n")


def test_ctrl_c_in_the_middle_of_work_leaves_no_traceback(tmp_path: Path) -> None:
    """The whole group gets the signal, as from a terminal, once the estimate shows that work has begun."""
    words = ["measure", str(save_model(tmp_path / "model")), "--text", str(save_text(tmp_path / "text.txt"))]
    with subprocess.Popen(
        [
            sys.executable,
            "-m",
            "fieldlens",
            *words,
            "--length",
            "64",
            "--segments",
            "90",
            "--out",
            str(tmp_path / "lens"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as child:
        assert child.stderr is not None
        assert any("in addition to the weights" in line for line in child.stderr)  # reads up to this line
        os.killpg(child.pid, signal.SIGINT)
        out, err = child.communicate()
    assert (child.returncode, out, err) == (130, "", "fieldlens: interrupted\n")


def test_a_pipe_that_closes_early_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    child = subprocess.run(
        [sys.executable, "-m", "fieldlens", "schemes"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (child.returncode, child.stderr) == (141, "")


def test_a_standard_output_that_is_closed_is_no_error() -> None:
    words = f"'{sys.executable}' -m fieldlens runs . >&-"
    child = subprocess.run(["sh", "-c", words], stderr=subprocess.PIPE, text=True, check=False)
    assert "Traceback" not in child.stderr


def test_a_closed_standard_error_does_not_stop_work() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = (
        "from fieldlens.cli.console import console\n"
        "screen = console(stderr=True)\nscreen.print('step 1')\nscreen.print('step 2')\nprint('done')"
    )
    child = subprocess.run(
        [sys.executable, "-c", program], stderr=writer, stdout=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert (child.returncode, child.stdout) == (0, "done\n")


def test_no_escape_codes_in_a_pipe_or_without_colour() -> None:
    for settings in ({}, {"NO_COLOR": "1"}):
        for words in (["schemes"], ["--help"], ["schemes", "--help"]):
            assert "\x1b" not in fieldlens(*words, **settings).stdout


def shown(sheet: Table, width: int) -> str:
    screen = Console(width=width, highlight=False)
    with screen.capture() as capture:
        screen.print(sheet)
    return capture.get()


@pytest.mark.parametrize("width", [20, 30, 40, 60, 80, 200])
def test_a_number_is_never_cut(width: int) -> None:
    numbers = ["188,159", "-0.00475", "10,825,721"]
    sheet = Table(["model", "p (bootstrap)", "difference (nats)", "bytes"], [["sandwich", *numbers]], "A title")
    text = shown(sheet, width)
    assert max(map(len, text.splitlines())) <= width or width == 20
    for number in numbers:
        assert number in text


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.012345, "0.0123"), (43.729, "43.7"), (999.4, "999"), (1025.4, "1025"), (44100.0, "44100"), (2e7, "2e+07")],
)
def test_a_large_number_is_written_out(value: float, expected: str) -> None:
    assert figure(value, 3) == expected


def test_numbers_are_right_aligned_and_words_left_aligned() -> None:
    rows = [["a", "fresh", "5.27 · 38.1", "1 of 5 seeds", "12"], ["b", "stale", "diverged", "needs no run", "–"]]
    assert Table(["n", "state", "both", "why", "count"], rows).right == [False, False, True, False, True]


def test_help_is_wrapped_only_by_the_terminal() -> None:
    text = """Say it.

    Example: say it

    Two lines
    of one paragraph.

    Parameters
    ----------
    it
        What is
        said.
    """
    expected = [
        "Say it.",
        "",
        "Example: say it",
        "",
        "Two lines of one paragraph.",
        "",
        "Parameters",
        "----------",
        "it",
    ]
    assert cli.flowing(text).splitlines() == [*expected, "    What is said."]
    assert "threads that compete for cores are slow." in (Machine.__doc__ or "")


def test_a_short_row_is_filled_up() -> None:
    for width in (10, 40, 200):
        assert "undefined" in shown(Table(["model", "50% of it", "coverage"], [["dead", "undefined"]]), width)


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_two_numbers_in_a_cell_stay_whole(width: int) -> None:
    cells = ["5.27 ± 0.33 · 37.9 ± 0.4*", "18050† · 2,691 ± 294†"] * 3
    rows = [["alibi:slope_floor=0.01 | alibi:shift=-2", *cells], ["sandwich", *cells]]
    text = shown(Table(["model", *(f"× {n} ({n}00 | {n}0)" for n in range(6))], rows), width)
    assert max(map(len, text.splitlines())) <= width
    for number in ("5.27 ± 0.33", "37.9 ± 0.4*", "18050†", "2,691 ± 294†"):
        assert sum(number in line for line in text.splitlines()) >= 2


def test_latex_breaks_a_long_table_and_escapes_every_symbol() -> None:
    short, long = (Table(["d̄ 32 · 8", "n"], [["a", "1"]] * rows).latex() for rows in (3, 60))
    assert (r"\begin{tabular}" in short, r"\begin{longtable}" in long) == (True, True)
    assert r"$\bar d$ 32 $\cdot$ 8" in short
    assert short.isascii()


def test_prose_is_wrapped_before_the_table_becomes_blocks() -> None:
    sheet = Table(["model", "evidence"], [["sandwich", "some words that do not fit on one line"]])
    assert len(shown(sheet, 30).splitlines()) == 3
    assert "model  " in shown(sheet, 30)
    assert "evidence" in shown(sheet, 12).splitlines()[2]


def test_pipes_get_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    from fieldlens.cli.console import UNFOLDED, console

    monkeypatch.delenv("COLUMNS", raising=False)
    assert console().width == UNFOLDED
    monkeypatch.setenv("COLUMNS", "60")
    assert console().width == 60
