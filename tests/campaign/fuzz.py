"""Random specs and command lines (Hypothesis): bad ones are refused in one line, good ones work."""

from collections.abc import Sequence
from pathlib import Path

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from campaign.piece import SEED, Limits, Outcome, Piece, forked
from campaign.worlds import World, build, with_model
from fieldlens.core.errors import BadInput
from fieldlens.schemes.discovery import registry
from fieldlens.schemes.spec import canonical, options, scheme

SPECS, COMMANDS = 40, 60
"""Cases of each kind."""
EXAMPLES = {"specs": 100, "commands": 10}
"""Examples of one case."""

NUMBERS = st.one_of(
    st.integers(-3, 3), st.sampled_from([10**6, 10**12, 10**30, -(10**9), 64, 100]), st.floats(), st.just("many")
)
TEXTS = st.one_of(
    st.text(max_size=12), st.sampled_from(["", "-", "--", "0", "[/b]", "../x", "a" * 5000, "\ud800", "é"])
)


def specs() -> st.SearchStrategy[str]:
    """Specs from real names, options and values, and from nonsense."""
    names = st.one_of(st.sampled_from(sorted(registry())), TEXTS)
    keys = st.one_of(st.sampled_from(sorted({key for cls in registry().values() for key in options(cls)})), TEXTS)
    values = st.one_of(NUMBERS.map(str), st.sampled_from(["none", "true", "1.5", "1e9"]), TEXTS)
    pair = st.tuples(keys, values).map("=".join)
    return st.tuples(names, st.lists(pair, max_size=3).map(",".join)).map(lambda parts: ":".join(filter(None, parts)))


def command_lines(world: World) -> st.SearchStrategy[list[str]]:
    """A verb, its argument, and flags with values that fit more or less."""
    model, corpus = str(world.folder / "model"), str(world.folder / "corpus")
    small = ["--threads", "1"]
    starts = st.sampled_from(
        [
            ["evaluate", model, "--text", str(world.folder / "text.txt"), "--segments", "3", "--out", "out", *small],
            [
                "measure",
                model,
                "--text",
                str(world.folder / "text.txt"),
                "--segments",
                "2",
                "--length",
                "8",
                "--plain",
                "--out",
                "out",
                *small,
            ],
            ["generate", model, "--prompt", "Line", "--tokens", "3", *small],
            ["train", "--preset", "smoke", "--steps", "1", "--bpe", "300", "--corpus", corpus, "--out", "out", *small],
            ["schemes"],
            ["schemes", "sandwich", "--plot", "a.png"],
            ["corpus", corpus, "--vocab-size", "300"],
            ["runs", "."],
            ["compare"],
            ["study", "demo", "--dry-run"],
            ["study", "nowhere"],
            ["paper"],
        ]
    )
    flags = st.sampled_from(
        [
            "lengths",
            "segments",
            "protocol",
            "window",
            "k",
            "stride",
            "target-seed",
            "train-length",
            "split",
            "align",
            "batch",
            "length",
            "target",
            "average",
            "heads",
            "head-width",
            "head",
            "layers",
            "width",
            "scheme",
            "seed",
            "learning-rate",
            "warmup",
            "beta1",
            "clip",
            "steps",
            "save-every",
            "device",
            "dtype",
            "threads",
            "max-document-bytes",
            "temperature",
            "top-k",
            "top-p",
            "mode",
            "tokens",
            "targets",
            "only",
            "workers",
            "json",
            "debugg",
            "log",
            "fit",
            "heatmap",
            "bpe",
            "accumulation",
            "init-std",
            "weight-decay",
            "optimiser",
            "corpus",
            "tokenizer",
            "vocab-size",
            "format",
            "by",
        ]
    )
    values = st.one_of(
        NUMBERS.map(str), specs(), st.sampled_from(["8,16", "cpu", "float64", "last-k", "auto", "csv"]), TEXTS
    )
    extra = st.lists(st.tuples(flags, values).map(lambda pair: [f"--{pair[0]}", pair[1]]), max_size=3)
    return st.tuples(starts, extra).map(lambda parts: [*parts[0], *(word for flag in parts[1] for word in flag)])


def prepare(folder: Path) -> World:
    world = build(folder)
    with_model(world)
    return world


def cases(_: World) -> Sequence[str]:
    return [f"commands:{n}" for n in range(COMMANDS)] + [f"specs:{n}" for n in range(SPECS)]


def run(world: World, case: str) -> Outcome:
    kind, number = case.split(":")
    count, notes = [0], list[str]()
    strategy = specs() if kind == "specs" else command_lines(world)

    @seed(SEED + int(number))
    @settings(
        max_examples=EXAMPLES[kind],
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )
    @given(strategy)
    def trial(example: str | list[str]) -> None:
        count[0] += 1
        problem = _spec(example) if isinstance(example, str) else _command(world, f"{number}-{count[0]}", example)
        if problem:
            notes.append(problem[-600:])

    trial()
    return Outcome(right=count[0] - len(notes), wrong=len(notes), notes=notes)


def _spec(text: str) -> str:
    """A spec is refused, or builds and is the same when read again."""
    try:
        module = scheme(text, 4, 8)
        return "" if canonical(canonical(text)) == canonical(text) == module.spec else f"{text!r}: another spec"
    except BadInput:
        return ""
    except Exception as error:
        return f"{text!r}: {type(error).__name__}: {error}"


def _command(world: World, name: str, words: list[str]) -> str:
    words = [word for word in words if "\x00" not in word]
    folder = world.folder / "commands" / name
    ended = forked(words, folder, Limits(seconds=180, cpu=90, memory=6 << 30, file_size=512 << 20), **world.settings)
    return "" if ended.documented else f"{words}: exit {ended.code}: {ended.err}"


PIECE = Piece(
    "fuzz", "random specs and command lines work, or end with a documented exit code and one line", prepare, cases, run
)
