"""A new scheme is one new file, found by the registry, the listing, the model and the contract tests."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLUGIN = '''
"""Cliff: a step down at a learned depth."""

import torch
from torch import Tensor, nn

from fieldlens.schemes import Scheme, exact


class Cliff(Scheme):
    """bias_h(Δ) = -depth_h for Δ ≥ edge, else 0."""

    name = "cliff"
    label = "Cliff"
    source = "this test"

    def __init__(self, heads: int, head_width: int, *, edge: int = 3, steep: bool = True, mood: str = "calm") -> None:
        super().__init__(heads, head_width)
        self.edge = edge
        self.depth_H = nn.Parameter(torch.ones(heads))

    def bias(self, distances_N: Tensor) -> Tensor:
        return -exact(self.depth_H)[:, None] * (distances_N >= self.edge)
'''


INIT = PLUGIN[PLUGIN.index("        super()") : PLUGIN.index("\n    def bias")]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "cliff.py").write_text(PLUGIN)
    return {**os.environ, "FIELDLENS_PLUGINS": str(tmp_path / "cliff.py")}


def python(environment: dict[str, str], *arguments: str) -> str:
    child = subprocess.run(
        [sys.executable, *arguments], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert child.returncode == 0, child.stdout + child.stderr
    return child.stdout


def test_listing_and_model_find_it(environment: dict[str, str]) -> None:
    rows = json.loads(
        python(environment, "-m", "fieldlens", "schemes", "cliff:steep=false,edge=5,mood=wild", "--json")
    )["schemes"]
    assert rows[0]["spec"] == "cliff:edge=5,mood=wild,steep=false"
    assert rows[0]["learned_parameters"] == 12
    assert "cliff" in python(environment, "-m", "fieldlens", "schemes")
    program = (
        "import torch, fieldlens\n"
        "shape = dict(layers=1, width=8, heads=2, vocab_size=9)\n"
        "model = fieldlens.Decoder(fieldlens.Config(scheme='cliff:edge=2', **shape))\n"
        "print(tuple(model(torch.zeros(1, 4, dtype=torch.long)).shape))"
    )
    assert python(environment, "-c", program).strip() == "(1, 4, 9)"


def test_contracts_run_over_the_examples() -> None:
    """The command of docs/own-scheme.md."""
    page = (ROOT / "docs" / "own-scheme.md").read_text()
    (command,) = [line for line in page.splitlines() if line.startswith("python -m pytest")]
    for name in ("cliff", "salience"):
        assert (ROOT / "examples" / f"{name}.py").read_text() in page
    files = [f"examples/{name}.py" for name in ("cliff", "salience", "medley")]
    environment = {**os.environ, "FIELDLENS_PLUGINS": os.pathsep.join(files)}
    *words, selected = command.split()[1:]
    assert selected == "cliff"
    words.append("cliff or salience or medley")
    assert " passed" in python(environment, *words, "-p", "no:cacheprovider", "-p", "no:xdist")


def test_a_module_can_be_named_too(environment: dict[str, str], tmp_path: Path) -> None:
    environment = {**environment, "FIELDLENS_PLUGINS": "cliff", "PYTHONPATH": str(tmp_path)}
    assert "cliff" in python(environment, "-m", "fieldlens", "schemes")


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        ("nowhere.py", "PLUGINS: no such file: nowhere.py"),
        ("no_such_module", "PLUGINS: cannot import no_such_module: "),
    ],
)
def test_a_plugin_that_is_not_there(plugin: str, message: str) -> None:
    child = subprocess.run(
        [sys.executable, "-m", "fieldlens", "schemes"],
        env={**os.environ, "FIELDLENS_PLUGINS": plugin},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 2
    assert message in child.stderr
    assert child.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("class Cliff(Scheme):", "class Cliff(Scheme)", "SyntaxError: "),
        ("edge: int = 3", "edge=3", "option 'edge' of scheme 'cliff' needs a type hint and a default"),
        ("edge: int = 3", "edge: int", "option 'edge' of scheme 'cliff' needs a type hint and a default"),
        ("[:, None] * (", "* (", "bias() of scheme 'cliff' returned shape (12,) for 4 tokens, expected (12, 4)"),
    ],
)
def test_errors_in_a_plugin_are_one_line(old: str, new: str, message: str, environment: dict[str, str]) -> None:
    file = Path(environment["FIELDLENS_PLUGINS"])
    file.write_text(PLUGIN.replace(old, new).replace("(distances_N >= self.edge)", "(distances_N[:1] >= self.edge)"))
    child = subprocess.run(
        [sys.executable, "-m", "fieldlens", "schemes", "cliff", "--plot", str(file.with_suffix(".png"))],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == 2, child.stderr
    assert message in child.stderr
    assert child.stderr.count("\n") == 1


def test_a_plugin_can_be_pickled(environment: dict[str, str]) -> None:
    program = (
        "import pickle, fieldlens\n"
        "shape = dict(layers=1, width=8, heads=2, vocab_size=9)\n"
        "model = fieldlens.Decoder(fieldlens.Config(scheme='cliff', **shape))\n"
        "print(pickle.loads(pickle.dumps(model)).scheme.spec)"
    )
    assert python(environment, "-c", program).strip() == "cliff"


def test_two_schemes_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text(PLUGIN.replace('"cliff"', '"alibi"'))
    child = subprocess.run(
        [sys.executable, "-m", "fieldlens", "schemes"],
        env={**os.environ, "FIELDLENS_PLUGINS": str(tmp_path / "other.py")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 2
    assert "scheme 'alibi' is declared twice" in child.stderr


@pytest.mark.parametrize(
    ("old", "new", "code", "message"),
    [
        ("class Cliff", "import sys\nsys.exit(7)\nclass Cliff", 2, "cannot import"),
        ("class Cliff", "raise BaseException('stop')\nclass Cliff", 2, "BaseException: stop"),
        ("        super().__init__(heads, head_width)\n", "", 2, "before Module.__init__() call"),
        (INIT, "        pass\n", 2, "must call super().__init__(heads, head_width)"),
        ('label = "Cliff"', 'label = "[/bold]"', 0, "[/bold]"),
        ('label = "Cliff"', "label = 7", 2, "must be strings"),
        (
            'name = "cliff"',
            'name, marker = "cliff", "no such marker"',
            2,
            "the marker of scheme 'cliff' must be one of",
        ),
    ],
)
def test_a_plugin_that_misbehaves_is_one_line(
    old: str, new: str, code: int, message: str, environment: dict[str, str]
) -> None:
    assert old in PLUGIN
    Path(environment["FIELDLENS_PLUGINS"]).write_text(PLUGIN.replace(old, new))
    child = subprocess.run(
        [sys.executable, "-m", "fieldlens", "schemes", "cliff"],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert child.returncode == code, child.stderr
    assert message in (child.stderr if code else child.stdout)
    assert child.stderr.count("\n") == (1 if code else 0)
