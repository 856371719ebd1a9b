"""Hostile files of every kind, in a child with limits: one line, a documented exit code, nothing outside."""

import copy
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import small_studies
from huggingface_hub.constants import HF_HOME

from campaign.piece import RIGHT, SEED, Ended, Limits, Outcome, Piece, forked, skipped, wrong
from campaign.worlds import FREE, World, build, run_study, with_model
from fieldlens.storage.sealed import seal

COUNT = 150
"""Files of each kind."""
LIMITS = Limits(seconds=120, cpu=60, memory=4 << 30, file_size=256 << 20)

VALUES: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    7,
    10**12,
    10**30,
    -(2**63),
    1e308,
    float("nan"),
    float("inf"),
    "",
    "x",
    "[/bold]",
    "../../x",
    "<script>alert(1)</script>",
    "\x00",
    "\ud800",
    "a" * 100_000,
    [],
    {},
    [[]],
    [None] * 50,
    {"a": {"b": [1]}},
    "__import__('os').system('touch HACKED')",
    {"auto_map": {"AutoModelForCausalLM": "evil.Model"}},
)


class Context(NamedTuple):
    """A world with a model, a text, results and a study to be altered."""

    world: World
    model: Path
    gguf: Path | None


def prepare(folder: Path) -> Context:
    world = build(folder)
    model = with_model(world)
    for name in ("a", "b"):
        words = ["evaluate", str(folder / "run" / "out"), "--lengths", "8,16", "--segments", "6", "--out", "out"]
        ended = forked(
            [*words, "--target-seed", "1", "--window", "4" if name == "a" else "5"],
            folder / name,
            FREE,
            **world.settings,
        )
        assert ended.code == 0, ended.err
    run_study(world)
    return Context(world, model, _gguf(folder, model))


def _gguf(folder: Path, model: Path) -> Path | None:
    """A small GGUF file; None without the library."""
    try:
        import gguf
    except ImportError:
        return None
    path = folder / "small.gguf"
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, value in (
        ("context_length", 64),
        ("embedding_length", 16),
        ("block_count", 1),
        ("feed_forward_length", 32),
    ):
        writer.add_uint32(f"llama.{name}", value)
    writer.add_uint32("llama.attention.head_count", 2)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    tokens = [f"t{number}" for number in range(32)]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 32)
    writer.add_token_merges([])
    for name, shape in (("token_embd", (32, 16)), ("output_norm", (16,)), ("blk.0.attn_q", (16, 16))):
        writer.add_tensor(f"{name}.weight", np.zeros(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def altered_json(data: bytes, chance: random.Random, sealed: bool = False) -> bytes:
    """JSON with one to three hostile changes: values replaced, keys removed or added, nesting, or broken text."""
    kind = chance.random()
    if kind < 0.15:
        return altered_bytes(data, chance)
    if kind < 0.25:
        depth = chance.choice((150, 990, 5000, 200_000))
        return b'{"a": ' + b"[" * depth + b"]" * depth + b"}"
    content = json.loads(data)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(content))
        node, key = chance.choice(places)
        action = chance.random()
        if action < 0.2 and isinstance(node, dict):
            node.pop(key, None)
        elif action < 0.3 and isinstance(node, dict):
            node[str(chance.choice(VALUES))[:200]] = copy.deepcopy(chance.choice(VALUES))
        else:
            node[key] = copy.deepcopy(chance.choice(VALUES))
    if sealed and isinstance(content, dict):
        content.pop("seal", None)
        content = seal(content)
    return json.dumps(content).encode()


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value that can be set: the first entries of long lists and objects."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items)[:60]:
        yield content, key
        if isinstance(value, dict | list):
            yield from _places(value)


def altered_bytes(data: bytes, chance: random.Random) -> bytes:
    """Bytes flipped, cut, repeated, or overwritten by large numbers."""
    changed = bytearray(data)
    action = chance.randrange(5)
    if action == 0:
        return bytes(changed[: chance.randrange(len(changed))])
    if action == 1:
        return bytes(chance.randbytes(chance.randrange(1, 4000)))
    for _ in range(chance.randint(1, 20)):
        place = chance.randrange(min(len(changed), chance.choice((64, 4096, len(changed)))))
        if action == 2:
            changed[place] ^= 1 << chance.randrange(8)
        elif action == 3:
            changed[place : place + 8] = struct.pack("<q", chance.choice((-1, 2**62, 2**31, 0, 10**12)))
        else:
            changed[place:place] = chance.randbytes(chance.randrange(1, 50))
    return bytes(changed)


def _model_file(name: str) -> Callable[[Context, Path, random.Random], list[str]]:
    def make(context: Context, folder: Path, chance: random.Random) -> list[str]:
        shutil.copytree(context.model, folder / "m")
        file = folder / "m" / name
        change = altered_bytes if name.endswith("safetensors") else altered_json
        file.write_bytes(change(file.read_bytes(), chance))
        (folder / "m" / "evil.py").write_text("open('HACKED', 'w')")
        text = ["--text", str(context.world.folder / "text.txt")]
        return chance.choice(
            [
                ["evaluate", "m", *text, "--lengths", "8", "--segments", "3", "--out", "out"],
                ["measure", "m", *text, "--length", "8", "--segments", "2", "--plain", "--out", "out"],
                ["generate", "m", "--prompt", "Line 1", "--tokens", "3"],
            ]
        )

    return make


def _pickle(context: Context, folder: Path, chance: random.Random) -> list[str]:
    """Weights and arrays with a pickle that would create a file."""
    bomb = b"cposix\nsystem\n(S'touch HACKED'\ntR."
    shutil.copytree(context.model, folder / "m")
    (folder / "m" / "pytorch_model.bin").write_bytes(bomb)
    if chance.random() < 0.7:
        (folder / "m" / "model.safetensors").unlink()
    if chance.random() < 0.5:
        (folder / "m" / "model.safetensors.index.json").write_text('{"weight_map": {"x": "pytorch_model.bin"}}')
    return ["generate", "m", "--prompt", "a", "--tokens", "1"]


def _gguf_file(context: Context, folder: Path, chance: random.Random) -> list[str]:
    assert context.gguf is not None
    (folder / "a.gguf").write_bytes(altered_bytes(context.gguf.read_bytes(), chance))
    return ["generate", "a.gguf", "--prompt", "t1", "--tokens", "1"]


def _jsonl(context: Context, folder: Path, chance: random.Random) -> list[str]:
    lines = [json.dumps({"text": f"{number} some words {chance.random()}"}).encode() for number in range(40)]
    for _ in range(chance.randint(1, 4)):
        lines[chance.randrange(len(lines))] = chance.choice(
            (
                b"",
                b"{",
                b"null",
                b'{"text": 3}',
                b'{"text": "\\ud800"}',
                b"[" * 100_000,
                b"\xff\xfe",
                b'{"text": "' + b"a" * 10**6 + b'"}',
                json.dumps(chance.choice(VALUES)).encode(),
                b'{"text": ' + b"9" * 10_000 + b"}",
            )
        )
    name = chance.choice(("a.jsonl", "train.jsonl", "a.txt", "a.jsonl.gz", "a.jsonl.zst"))
    data = b"\n".join(lines)
    (folder / "c").mkdir()
    (folder / "c" / name).write_bytes(altered_bytes(data, chance) if chance.random() < 0.3 else data)
    return ["corpus", "c", "--vocab-size", "300", "--max-document-bytes", "500000"]


def _toml(context: Context, folder: Path, chance: random.Random) -> list[str]:
    text = (context.world.folder / "small.toml").read_text().splitlines()
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(text))
        key = text[place].split("=")[0]
        value = chance.choice(
            ('"x"', "-1", "1e400", "nan", "[]", "{}", "[" * 2000, "true", "10" * 30, "[1, 'a']", '"../x"', "'[/b]'")
        )
        text[place] = chance.choice((f"{key}= {value}", "", f"[{key}]", f"{key}.a.b = 1", value))
    (folder / "s.toml").write_bytes("\n".join(text).encode())
    return ["study", "s.toml", "--dry-run", "--corpora", str(context.world.folder)]


def _npz(context: Context, folder: Path, chance: random.Random) -> list[str]:
    """An evaluation whose arrays are hostile, with the right hash; also with pickled objects."""
    from fieldlens.storage.results import read_result, write_result

    (source,) = (context.world.folder / "a" / "out").glob("*.json")
    content, arrays = read_result(source)
    name = chance.choice(list(arrays))
    array = arrays[name]
    arrays[name] = chance.choice(
        (
            array[:1],
            array.astype(np.int8),
            np.zeros(0),
            np.array("x"),
            array * np.nan,
            array.astype(np.float64) * 1e30,
            np.zeros((3, 3, 3)),
            array.T,
            array.astype(complex),
        )
    )
    write_result(folder / "a.json", content, arrays)
    if chance.random() < 0.4:
        file = folder / "a.npz"
        file.write_bytes(altered_bytes(file.read_bytes(), chance))
        from fieldlens.storage.atomic import hash_of

        (folder / "a.json").write_text(json.dumps(seal({**content, "arrays_sha256": hash_of(file)})))
    (other,) = (context.world.folder / "b" / "out").glob("*.json")
    return ["compare", "a.json", str(other)]


def _result(context: Context, folder: Path, chance: random.Random) -> list[str]:
    (source,) = (context.world.folder / "a" / "out").glob("*.json")
    (folder / "a.json").write_bytes(altered_json(source.read_bytes(), chance, sealed=True))
    shutil.copy(source.with_suffix(".npz"), folder / "a.npz")
    (other,) = (context.world.folder / "b" / "out").glob("*.json")
    return ["compare", "a.json", str(other), *chance.choice(([], ["--json"], ["--out", "out"]))]


def _study_result(context: Context, folder: Path, chance: random.Random) -> list[str]:
    shutil.copytree(context.world.folder / "results", folder / "r")
    (job,) = (path for path in (folder / "r").iterdir() if path.is_dir())
    files = sorted([*job.glob("*.json"), folder / "r" / "study.json"])
    file = chance.choice(files)
    plain = file.name in ("study.json", "timings.json")
    file.write_bytes(altered_json(file.read_bytes(), chance, sealed=not plain))
    if file.parent == job and file.name != "result.json":
        small_studies.rewrite_record(job)
    return ["study", "r", "--report"]


PLUGIN = '''
from fieldlens.schemes import Scheme
class Odd(Scheme):
    """{doc}"""
    name, label, source = "odd", {label}, "a test"
    def __init__(self, heads, head_width, *, edge: int = 3):
        {init}
    def bias(self, distances_N):
        {bias}
'''


def _plugin(context: Context, folder: Path, chance: random.Random) -> list[str]:
    init = "super().__init__(heads, head_width)"
    bias = (
        "return None",
        "return 3",
        "return distances_N",
        "return -distances_N.double()[None]",
        "raise KeyError('x')",
        "import sys; sys.exit(3)",
        "return self.nothing",
        "return distances_N[None] * float('nan')",
        "return [[0.0]]",
        "raise SystemExit",
        "return distances_N.double()[None].expand(self.heads, -1) * 1e308 * 10",
        "1 / 0",
    )
    text = PLUGIN.format(
        doc=chance.choice(("A scheme.", "[/bold]", "$x", "\\ud800")),
        label=chance.choice(('"Odd"', '"[/bold]"', '"<b>"', "7", "None", '"$\\\\frac$"')),
        init=chance.choice(
            (init, init, init, "pass", "raise ValueError", "import sys; sys.exit(5)", f"{init}; self.x = edge / 0")
        ),
        bias=chance.choice(bias),
    )
    text = chance.choice((text, text, text, text[: chance.randrange(len(text))], "import sys; sys.exit()"))
    (folder / "plugin.py").write_text(text)
    return chance.choice((["schemes"], ["schemes", "odd"], ["schemes", "odd", "--plot", "plot.png", "--length", "20"]))


KINDS: dict[str, Callable[[Context, Path, random.Random], list[str]]] = {
    "config": _model_file("config.json"),
    "tokenizer": _model_file("tokenizer.json"),
    "tokenizer config": _model_file("tokenizer_config.json"),
    "generation config": _model_file("generation_config.json"),
    "safetensors": _model_file("model.safetensors"),
    "pickled weights": _pickle,
    "GGUF": _gguf_file,
    "JSONL": _jsonl,
    "TOML": _toml,
    "NPZ": _npz,
    "result": _result,
    "study result": _study_result,
    "plugin": _plugin,
}


def cases(_: Context) -> Sequence[str]:
    return [f"{kind}:{number}" for number in range(COUNT) for kind in KINDS]


def run(context: Context, case: str) -> Outcome:
    kind = case.split(":", maxsplit=1)[0]
    if kind == "GGUF" and context.gguf is None:
        return skipped("needs the library gguf")
    folder = context.world.folder / "hostile" / case.replace(":", "-").replace(" ", "-") / "here"
    folder.mkdir(parents=True)
    words = KINDS[kind](context, folder, random.Random(f"{SEED} {case}"))
    settings = context.world.settings | {"FIELDLENS_CACHE": str(folder / "cache")}
    if kind == "plugin":
        settings["FIELDLENS_PLUGINS"] = str(folder / "plugin.py")
    settings["HOME"] = str(folder.parent / "home")
    Path(settings["HOME"]).mkdir()
    hub = Path(HF_HOME)
    before = outside(context.world.folder, folder) | outside(hub, folder)
    ended = forked(words, folder, LIMITS, **settings)
    after = outside(context.world.folder, folder) | outside(hub, folder)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    outcome = _judge(ended, folder, changed)
    shutil.rmtree(folder.parent)
    return outcome


def _judge(ended: Ended, folder: Path, written: list[str]) -> Outcome:
    if any(folder.rglob("HACKED")):
        return wrong("code of the file was executed")
    if written:
        return wrong(f"changed outside of the folder: {', '.join(written)}")
    return RIGHT if ended.documented else wrong(f"exit {ended.code}: {ended.err}")


def outside(root: Path, folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of everything in the world, the child's home among it, that is not in this folder."""
    found = {}
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if Path(place, name) != folder]
        for name in (*folders, *names):
            path = Path(place, name)
            if not name.startswith(f".{folder.name}-"):  # output of the child
                stat = os.lstat(path)
                found[str(path)] = (0, 0) if path.is_dir() else (stat.st_size, stat.st_mtime_ns)
    return found


PIECE = Piece(
    "hostile",
    "a hostile file of any kind ends with a documented exit code and one line; nothing of it is executed, and nothing "
    "is written outside",
    prepare,
    cases,
    run,
)
