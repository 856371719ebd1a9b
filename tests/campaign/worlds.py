"""What the pieces share: a small corpus, runs, a transformers model, and the outputs of commands to compare."""

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import short_training as training
import small_studies
from newcomer import save_model, save_text

from campaign.piece import Limits, forked
from fieldlens.storage.results import read_result
from fieldlens.storage.sealed import digest

FREE = Limits(seconds=600, cpu=600)
VERBS = {
    "train": ["train", *training.SMOKE, "--save-every", "3", "--corpus", "CORPUS", "--out", "out"],
    "evaluate": ["evaluate", "RUN", "--lengths", "16,32,48", "--segments", "30", "--batch", "4", "--out", "out"],
    "measure": [
        "measure",
        "RUN",
        "--length",
        "24",
        "--segments",
        "6",
        "--plain",
        "--check",
        "--targets",
        "8",
        "--out",
        "out",
    ],
}
"""Commands that write as they go, and resume."""


class World(NamedTuple):
    """A folder with a corpus, a cache, a run and a transformers model."""

    folder: Path

    @property
    def settings(self) -> dict[str, str]:
        return {
            "FIELDLENS_CACHE": str(self.folder / "cache"),
            "MPLCONFIGDIR": str(self.folder / "matplotlib"),
            "OMP_NUM_THREADS": "1",
        }

    def words(self, verb: str) -> list[str]:
        """The command line of a verb."""
        places = {"CORPUS": str(self.folder / "corpus"), "RUN": str(self.folder / "run" / "out")}
        return [places.get(word, word) for word in VERBS[verb]] + (["--threads", "1"] if verb != "train" else [])


def build(folder: Path) -> World:
    """A world with a finished run; it is made by forked commands, so that this process has one thread."""
    world = World(folder)
    training.write_corpus(folder / "corpus", 60)
    ended = forked(world.words("train"), folder / "run", FREE, **world.settings)
    assert ended.code == 0, ended.err
    return world


def with_model(world: World) -> Path:
    """A transformers model with its tokenizer, and a text for it; returns its folder."""
    save_text(world.folder / "text.txt")
    return save_model(world.folder / "model")


def run_study(world: World) -> None:
    """Run a study of one short training into `results` and `runs`; the corpus must be there."""
    folder = world.folder
    small_studies.write_study(folder, ["alibi"], steps=4)
    places = ["--out", str(folder / "results"), "--runs", str(folder / "runs")]
    words = ["study", str(folder / "small.toml"), "--workers", "1", *places]
    ended = forked(words, folder / "study", FREE, **world.settings)
    assert ended.code == 0, ended.err


def output(verb: str, folder: Path) -> dict[str, Any]:
    """What a command wrote into `folder`/out, without times and paths, to be compared bit by bit."""
    out = folder / "out"
    if verb == "train":
        steps = [row["step"] for row in training.logged(out)]
        return {**training.ending(out), "steps": steps}
    # journals; a kill may leave a hidden temporary file, which no reader looks at
    left = sorted(path.name for path in out.rglob("*.part") if not path.name.startswith("."))
    found: dict[str, Any] = {"left over": left}
    for path in sorted(out.glob("*.json")):
        content, arrays = read_result(path)
        kept = {key: value for key, value in content.items() if key not in ("seconds", "command")}
        found[path.name] = digest(json.loads(json.dumps(kept)))
        found[f"{path.name}, arrays"] = {name: array.tobytes().hex() for name, array in arrays.items()}
    return found


def difference(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    """The names of what differs between two outputs; empty if nothing does."""
    return ", ".join(sorted(key for key in ours.keys() | theirs.keys() if ours.get(key) != theirs.get(key)))


def copy_of(world: World, name: str, folder: Path) -> Path:
    """A fresh copy of something of the world."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(world.folder / name, folder)
    return folder
