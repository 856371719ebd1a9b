"""Planted bugs: one at a time in a copy of the source, and the test suite must turn red."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import plant

from campaign.piece import RIGHT, Outcome, Piece, wrong


def prepare(folder: Path) -> Path:
    """A copy of the source, whose tests can be collected."""
    source = folder / "src"
    shutil.copytree(plant.ROOT / "src", source)
    if plant.run(source, "--collect-only", "tests").returncode != 0:
        raise RuntimeError("the tests cannot be collected without any bug: mend them first")
    return source


def cases(_: Path) -> Sequence[str]:
    return [description for description, *_ in plant.BUGS]


def run(source: Path, case: str) -> Outcome:
    bug = next(bug for bug in plant.BUGS if bug[0] == case)
    return RIGHT if plant.found_by(source, bug, workers=1) else wrong(f"{bug[1]}: no test turned red")


PIECE = Piece("planted", "each planted bug turns the test suite red", prepare, cases, run)
