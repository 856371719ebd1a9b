"""Every command of the README but `make` is run as it stands, in an empty folder; the preset glance becomes smoke."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from fieldlens.paper.artifacts.openweb_github_arxiv import PRINTED
from fieldlens.paper.cells import score
from fieldlens.paper.printed import cells
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import LENGTHS
from fieldlens.schemes.spec import parse
from fieldlens.study.plan import read_study

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def printed_labels() -> list[str]:
    """How the lines begin that the README shows as printed: a model's name, a file, a table's heading."""
    shown = next(block for block in blocks("") if block.startswith("model  50%"))
    found = re.findall(r"^(\w+:|model  50%|kind +tokens|model +verdict)", shown, re.MULTILINE)
    assert "first:" in found
    return sorted(set(found))


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 160


def test_every_command_runs(tmp_path: Path) -> None:
    """In one shell, in the order of the page; targets and texts are few, for this is about the commands."""
    commands = [line for block in blocks("sh") for line in block.splitlines() if not line.startswith("make ")]
    assert len(commands) >= 8
    script = "set -ex\n" + "\n".join(commands).replace("--preset glance", "--preset smoke")
    script = re.sub(r"^(fieldlens measure .*)$", r"\1 --segments 2 --targets 9 --plain", script, flags=re.MULTILINE)
    script = re.sub(r"^(fieldlens evaluate .*)$", r"\1 --segments 9", script, flags=re.MULTILINE)
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    python = tmp_path / "bin" / "fieldlens"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -m fieldlens "$@"\n')
    python.chmod(0o755)
    settings = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    settings["FIELDLENS_CACHE"] = str(tmp_path / "cache")
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env=settings, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    for label in printed_labels():
        assert re.search(rf"^{label}", done.stdout, re.MULTILINE), label
    for made in ("lens/report.html", "cliff.png", "evaluations/perplexity.png"):
        assert (tmp_path / made).stat().st_size > 1000, made
    *_, last = blocks("python")
    done = subprocess.run([sys.executable, "-c", last], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_scheme_is_the_example() -> None:
    assert blocks("python")[0] == (ROOT / "examples" / "cliff.py").read_text()


def test_the_table_is_what_the_paper_and_the_committed_results_say() -> None:
    """`python results/refresh.py` writes it."""
    results = PaperResults(read_study("paper"), ROOT / "results" / "paper")
    printed, expected = cells("tab:openweb-github-arxiv"), {}
    for model in PRINTED:
        ours = [score(results, model, "github", length).mean for length in LENGTHS]
        theirs = [printed["github", model, length].value for length in LENGTHS]
        expected[parse(model)[0].label] = [f"{a} · {_three(b)}" for a, b in zip(theirs, ours, strict=True)]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in README.splitlines() if " · " in line]
    assert {row[0]: row[1:] for row in rows if len(row) == 6 and row[0] in expected} == expected


def _three(value: float | None) -> str:
    """Three significant digits."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
