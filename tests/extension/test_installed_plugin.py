"""Plugins that were installed by pip: a method and a scheme from the entry points of a distribution."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

PLUGIN = """
from fieldlens.extension.base import ExtensionMethod, Region
from fieldlens.schemes import Scheme


class Halved(ExtensionMethod):
    name, label = "halved", "Halved"

    def __init__(self, train_length: int, *, by: float = 2.0) -> None:
        super().__init__(train_length)
        self.by = by

    def regions(self):
        return (Region(a=lambda i: i / self.by, b=lambda j: j / self.by),)


class Ramp(Scheme):
    name, label, source = "ramp", "Ramp", "a test"

    def bias(self, distances_N):
        return -distances_N.double().expand(self.heads, -1)
"""

ENTRY_POINTS = """
[fieldlens.methods]
halved = fieldlens_ramp:Halved

[fieldlens.schemes]
ramp = fieldlens_ramp:Ramp
"""

USE = """
import torch
from fieldlens.extension.attach import attached
from fieldlens.extension.discovery import build, canonical, registry
from fieldlens.models.adapters.adapt import adapt
from fieldlens.models.decoder import Config, Decoder
from fieldlens.schemes import scheme

adapter = adapt(Decoder(Config(scheme="rotary", layers=1, width=16, heads=2, vocab_size=53, train_length=8)).eval())
ids_BT = adapter.noise(24)
with attached(adapter, build("halved:by=4.0", 8)) as extended, torch.no_grad():
    halved = extended.losses(ids_BT)
with attached(adapter, build("linear", 8)) as extended, torch.no_grad():
    print(torch.allclose(halved, extended.losses(ids_BT), atol=1e-4))
print(registry()["halved"].label, canonical("halved:by=2.0"), scheme("ramp", 2, 8).label)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a distribution that pip installed from a wheel, without network."""
    pytest.importorskip("pip")
    folder = tmp_path_factory.mktemp("installed")
    wheel, info = folder / "fieldlens_ramp-1.0-py3-none-any.whl", "fieldlens_ramp-1.0.dist-info"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("fieldlens_ramp.py", PLUGIN)
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: fieldlens-ramp\nVersion: 1.0\n")
        file.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        file.writestr(f"{info}/entry_points.txt", ENTRY_POINTS)
        file.writestr(f"{info}/RECORD", "")
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check"]
    subprocess.run([*pip, "--target", str(folder / "site"), str(wheel)], check=True, capture_output=True)
    return folder / "site"


def python(site: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python with the installed distribution."""
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *words], check=False, env=environment, capture_output=True, text=True)


def test_an_installed_method_and_scheme_can_be_used(site: Path) -> None:
    child = python(site, "-c", USE)
    assert child.returncode == 0, child.stderr
    assert child.stdout.split() == ["True", "Halved", "halved", "Ramp"]


def test_an_installed_plugin_that_fails_is_named(site: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(site, tmp_path / "site"))
    (names,) = broken.glob("*.dist-info/entry_points.txt")
    names.write_text(names.read_text().replace(":Halved", ":Missing"))
    child = python(broken, "-m", "fieldlens", "extend", "model", "--lengths", "64", "--method", "yarn")
    assert child.returncode == 2
    assert child.stderr.count("\n") == 1
    assert "cannot import the installed plugin fieldlens_ramp:Missing" in child.stderr
