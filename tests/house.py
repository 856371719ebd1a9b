"""Counts what makes a code base easy or hard to read, prints it, and holds it to limits.

Example: python tests/house.py

Reading one command: every function is read once, in the order of first calls. Each time that order moves to another
top-level entry of the package (a folder, or a module beside the folders) which was entered before, that is a re-entry.

Steps into `core` are printed but not limited: errors, events, number formats and the choice of a device are vocabulary
that every folder uses, and nobody opens them to follow a command. Version 0.1 is counted likewise, without its modules
errors, machine and processes.
"""

import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection
from pathlib import Path

SOURCE = Path(os.environ.get("HOUSE_SOURCE", Path(__file__).parent.parent / "src")) / "fieldlens"
VAGUE = {"one", "found", "said", "asked", "told", "some", "what", "known", "given"}
"""Names that do not say what they hold."""

LIMITS = {"top_level": 15, "vague_share": 0.01, "longest_module": 350, "function_p90": 20, "longest_function": 60}
REENTRIES = {"train": 76, "evaluate": 80, "measure": 106}
"""Version 0.1, whose entries were modules side by side, had 73, 97 and 113 (with its core: 79, 98 and 113)."""

VOCABULARY = {"core", "__init__.py"}

TRACE = """
import json, sys
order, seen = [], set()
def follow(frame, event, argument):
    code = frame.f_code
    function = code.co_flags & 2 and not code.co_name.startswith("<")  # not a module's or a class's body, nor a lambda
    if event == "call" and function and "/fieldlens/" in code.co_filename and code not in seen:
        seen.add(code)
        order.append(code.co_filename.rsplit("/fieldlens/", 1)[1])
sys.argv = ["fieldlens", *sys.argv[1:]]
from fieldlens.cli import main
import fieldlens.cli
sys.setprofile(follow)
try:
    main(sys.argv[1:])
finally:
    sys.setprofile(None)
    print("\\nORDER " + json.dumps(order))
"""


def top_level() -> list[str]:
    """The entries of the package's folder."""
    plain = {"__init__.py", "__main__.py", "py.typed", "__pycache__"}
    return sorted(path.name for path in SOURCE.iterdir() if path.name not in plain)


def bound_names() -> Counter[str]:
    """How often each name is bound: by an assignment, a loop, a parameter, a with or an import."""
    names: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names[node.id] += 1
            elif isinstance(node, ast.arg):
                names[node.arg] += 1
    return names


def vague_share() -> float:
    names = bound_names()
    return sum(names[name] for name in VAGUE) / sum(names.values())


def module_lines() -> dict[str, int]:
    return {str(path.relative_to(SOURCE)): len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}


def function_lines() -> dict[str, int]:
    """The lines of every function, without its docstring and the functions inside it counted apart."""
    lines = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                docstring = node.body[0] if ast.get_docstring(node) is not None else None
                spared = docstring.end_lineno - docstring.lineno + 1 if docstring and docstring.end_lineno else 0
                lines[f"{path.relative_to(SOURCE)}:{node.name}:{node.lineno}"] = (
                    node.end_lineno - node.lineno + 1 - spared
                )
    return lines


def percentile(values: list[int], share: float) -> int:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def reading_order(words: list[str], folder: Path) -> list[str]:
    """The files that one command runs through, function by function, in the order of first calls."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent), "FIELDLENS_CACHE": str(folder / "cache")}
    child = subprocess.run(
        [sys.executable, "-c", TRACE, *words], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(child.stdout.rpartition("ORDER ")[2])


def reentries(files: list[str], skipped: Collection[str] = VOCABULARY) -> tuple[int, int]:
    """How many top-level entries a command crosses, and how often it comes back to one."""
    entries = [entry for file in files if (entry := file.split("/")[0]) not in skipped]
    seen: set[str] = set()
    count = 0
    for before, entry in zip(["", *entries], entries, strict=False):
        count += entry != before and entry in seen
        seen.add(entry)
    return len(seen), count


def commands(folder: Path) -> dict[str, list[str]]:
    """The reading order of a training, an evaluation and a measurement."""
    train = ["train", "--preset", "smoke", "--steps", "4", "--out", "run", "--threads", "1"]
    evaluate = ["evaluate", "run", "--lengths", "16,64", "--segments", "20", "--threads", "1"]
    measure = [
        "measure",
        "run/model",
        "--length",
        "48",
        "--segments",
        "2",
        "--threads",
        "1",
        "--check",
        "--targets",
        "20",
    ]
    return {words[0]: reading_order(words, folder) for words in (train, evaluate, measure)}


def main() -> None:
    functions = list(function_lines().values())
    longest = max(function_lines().items(), key=lambda pair: pair[1])
    widest = max(module_lines().items(), key=lambda pair: pair[1])
    print(f"top-level entries: {len(top_level())} (limit {LIMITS['top_level']})")
    print(f"vague names among bound names: {vague_share():.2%} (limit {LIMITS['vague_share']:.0%})")
    print(f"longest module: {widest[0]}, {widest[1]} lines (limit {LIMITS['longest_module']})")
    print(f"functions: p90 {percentile(functions, 0.9)} lines (limit {LIMITS['function_p90']})")
    print(f"longest function: {longest[0]}, {longest[1]} lines (limit {LIMITS['longest_function']})")
    with tempfile.TemporaryDirectory() as folder:
        for verb, files in commands(Path(folder)).items():
            crossed, count = reentries(files)
            limit = REENTRIES[verb]
            whole = reentries(files, ())[1]
            details = f"{whole} with core, {len(files)} functions"
            print(f"{verb}: {crossed} entries crossed, {count} re-entries (limit {limit}), {details}")


if __name__ == "__main__":
    main()
