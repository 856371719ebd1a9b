"""The examples run as they say, from an empty folder."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(folder: Path, *command: str, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("name", "figure", "said"),
    [
        ("bias_curves.py", "bias.png", "alibi"),
        ("receptive_field.py", "receptive_field.png", "three windows of 16 reach 46 tokens: beyond them lies 0%"),
    ],
)
def test_scripts(name: str, figure: str, said: str, tmp_path: Path) -> None:
    assert said in run(tmp_path, str(EXAMPLES / name))
    assert (tmp_path / figure).stat().st_size > 1000


def test_the_scratchpad_of_parity_is_right_and_can_be_learnt(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("scratchpad", EXAMPLES / "parity_scratchpad.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    ids_BT, parity_BN = example.strings(3, 5, torch.Generator().manual_seed(0))
    for ids, parities in zip(ids_BT.tolist(), parity_BN.tolist(), strict=True):
        assert parities == [sum(ids[: 2 * n + 1 : 2]) % 2 for n in range(5)]
        assert ids[1::2] == [parity + 2 for parity in parities]
    said = run(tmp_path, str(EXAMPLES / "parity_scratchpad.py"), "none:window=3", "--steps", "2", OMP_NUM_THREADS="1")
    assert said.splitlines()[1].startswith("none:window=3\t")


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="needs Linux and a C compiler")
def test_the_library_for_amd_answers_for_mkl_and_products_stay_exact(tmp_path: Path) -> None:
    library = tmp_path / "mkl_on_amd.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, EXAMPLES / "mkl_on_amd.c"], check=True)
    script = (
        "import ctypes, torch; a, b = torch.randn(2, 256, 256); print(ctypes.CDLL(None).mkl_serv_intel_cpu_true(), "
        "torch.allclose((a @ b).double(), a.double() @ b.double(), atol=1e-3))"
    )
    assert run(tmp_path, "-c", script, LD_PRELOAD=str(library)).split() == ["1", "True"]


def test_the_plugin(tmp_path: Path) -> None:
    plugin = str(EXAMPLES / "cliff.py")
    command = ["-m", "fieldlens", "schemes", "cliff:edge=32", "--plot", "cliff.png"]
    run(tmp_path, *command, FIELDLENS_PLUGINS=plugin)
    assert (tmp_path / "cliff.png").stat().st_size > 1000


def test_every_example_is_run() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "bias_curves.py",
        "parity_scratchpad.py",
        "receptive_field.py",
        "cliff.py",
        "medley.py",
        "salience.py",
    }


def test_the_cluster_file() -> None:
    """The commands in it are commands of fieldlens."""
    import yaml

    from fieldlens import cli

    path = EXAMPLES / "cluster.yaml"
    cluster = yaml.safe_load(path.read_text())
    assert cluster["min_workers"] == cluster["max_workers"] == len(cluster["provider"]["worker_ips"])
    comment = " ".join(line.lstrip("# ").strip() for line in path.read_text().splitlines() if line.startswith("#"))
    commands = re.findall(r"'fieldlens (study [^']*)'", comment)
    assert len(commands) == 2
    for command in commands:
        verb, _, _ = cli.app.parse_args(command.split(), exit_on_error=False, print_error=False)
        assert verb is cli.study


def test_ray_accepts_the_cluster_file() -> None:
    import yaml

    schema = pytest.importorskip("ray.autoscaler._private.util", reason="needs the extra: ray")
    schema.validate_config(schema.fillout_defaults(yaml.safe_load((EXAMPLES / "cluster.yaml").read_text())))
