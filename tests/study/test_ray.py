"""A study on a real Ray cluster gives the results of one on child processes. Needs the extra `ray`.

Ray listens on every interface: it gets a network namespace with nothing but loopback.
"""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import small_studies

ALONE = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


def can_be_alone() -> bool:
    if not (importlib.util.find_spec("ray") and shutil.which("unshare") and shutil.which("ip")):
        return False
    return subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.skipif(not can_be_alone(), reason="needs Ray and a network namespace")
def test_a_ray_cluster_gives_the_same_results(tmp_path: Path) -> None:
    file = small_studies.write_study(tmp_path, ["alibi", "none:window=4"])
    environment = {**os.environ, **small_studies.settings(tmp_path)}
    ray = small_studies.command(file, "--executor", "ray", out="ray", runs="ray-runs")
    done = subprocess.run([*ALONE, *ray], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert small_studies.study(file).returncode == 0
    assert small_studies.contents(tmp_path / "ray") == small_studies.contents(tmp_path / "results")
