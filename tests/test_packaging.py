"""The wheel and the sdist: every file of the package is in, and what is in runs from anywhere."""

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import fieldlens

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), "-t", "wheel", "-t", "sdist"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return folder


def test_every_file_of_the_package_is_in_the_wheel(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    source = ROOT / "src"
    wanted = {path.relative_to(source).as_posix() for path in (source / "fieldlens").rglob("*") if path.is_file()}
    assert {name for name in wanted if "__pycache__" not in name} <= held
    for name in ("py.typed", "reporting/style.css", "study/studies/demo.toml"):
        assert f"fieldlens/{name}" in held


def test_the_sdist_holds_what_make_needs(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        held = {name.split("/", 1)[-1] for name in opened.getnames()}
    for name in (
        "Makefile",
        "constraints.txt",
        "pyproject.toml",
        "README.md",
        "SECURITY.md",
        "docs/index.md",
        "examples/cliff.py",
    ):
        assert name in held
    for path in (ROOT / "results").rglob("*.json"):
        assert path.relative_to(ROOT).as_posix() in held


def test_what_is_installed_runs_from_anywhere(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    program = "import fieldlens; print(fieldlens.__file__)"
    for words, said in (
        (["-c", program], str(tmp_path / "installed")),
        (["-m", "fieldlens", "--version"], f"fieldlens {fieldlens.__version__}\n"),
        (["-m", "fieldlens", "study", "demo", "--dry-run"], "sandwich"),
    ):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path / "installed")},
            capture_output=True,
            text=True,
            check=True,
        )
        assert said in done.stdout


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"]["path"] == "src/fieldlens/__init__.py"
    assert "version:" not in (ROOT / "CITATION.cff").read_text().replace("cff-version:", "")


def test_every_extra_is_documented() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    page = (ROOT / "docs" / "index.md").read_text()
    for extra in extras:
        assert f"| `{extra}` |" in page
