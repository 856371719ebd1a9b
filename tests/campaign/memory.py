"""Commands in children with little memory: each succeeds, or says in one line that memory is lacking."""

from collections.abc import Sequence
from pathlib import Path

from campaign.piece import RIGHT, Limits, Outcome, Piece, forked, wrong
from campaign.worlds import World, build, with_model

MEBIBYTES = (1, 4, 16, 48, 96, 160, 256, 384, 512, 768, 1024, 1536)
COMMANDS = {
    "train": [
        "train",
        "--preset",
        "smoke",
        "--steps",
        "2",
        "--width",
        "512",
        "--batch",
        "32",
        "--length",
        "128",
        "--corpus",
        "CORPUS",
        "--out",
        "out",
    ],
    "evaluate": ["evaluate", "RUN", "--corpus", "CORPUS", "--lengths", "64,256", "--segments", "20", "--out", "out"],
    "evaluate a transformers model": [
        "evaluate",
        "MODEL",
        "--text",
        "TEXT",
        "--lengths",
        "32,512",
        "--segments",
        "20",
        "--out",
        "out",
    ],
    "measure": ["measure", "MODEL", "--text", "TEXT", "--length", "512", "--segments", "4", "--out", "out"],
    "generate": ["generate", "MODEL", "--prompt", "Line 1", "--tokens", "40"],
    "corpus": ["corpus", "CORPUS", "--vocab-size", "2000"],
    "schemes": ["schemes", "--plot", "plot.png", "--length", "200000"],
    "a matrix of biases": ["schemes", "sandwich", "--plot", "plot.png", "--heatmap", "--length", "6000"],
}


def prepare(folder: Path) -> World:
    world = build(folder)
    with_model(world)
    return world


def cases(_: World) -> Sequence[str]:
    return [f"{name}:{size}" for name in COMMANDS for size in MEBIBYTES]


def run(world: World, case: str) -> Outcome:
    name, size = case.split(":")
    places = {
        "CORPUS": str(world.folder / "corpus"), "RUN": str(world.folder / "run" / "out"),
        "MODEL": str(world.folder / "model"), "TEXT": str(world.folder / "text.txt"),
    }  # fmt: skip
    words = [places.get(word, word) for word in COMMANDS[name]]
    limits = Limits(seconds=300, cpu=240, memory=int(size) << 20)
    folder = world.folder / case.replace(":", "-").replace(" ", "-")
    settings = world.settings | {"FIELDLENS_CACHE": str(folder / "cache")}
    ended = forked([*words, "--threads", "1"], folder, limits, **settings)
    if ended.code in (0, 4) and ended.documented:
        return RIGHT
    return wrong(f"exit {ended.code}: {ended.err}")


PIECE = Piece(
    "memory", "with little memory a command succeeds, or ends with exit code 4 and one line", prepare, cases, run
)
