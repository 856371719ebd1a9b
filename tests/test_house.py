"""The shape of the house: imports point one way, heavy libraries stay out, each module has a line in docs/files.md."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from plant import BUGS

import fieldlens
from fieldlens.schemes import options, registry

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fieldlens"

# Reading order: a module imports only from lines above its own.
ORDER = [
    "errors",
    "schemes",
    "seams",
    "layout",
    "attend",
    "decoder",
    "cache",
    "documents",
    "tables",
    "corpus",
    "store",
    "tokenizer",
    "huggingface",
    "tokens",
    "order",
    "loss",
    "checkpoint",
    "machine",
    "processes",
    "recipe",
    "run",
    "trainer",
    "train",
    "statistics",
    "results",
    "draw",
    "sheet",
    "subject",
    "models",
    "effort",
    "protocols",
    "verdict",
    "evaluation",
    "batches",
    "scoring",
    "evaluate",
    "compare",
    "lastquery",
    "influence",
    "receptive",
    "advice",
    "measurement",
    "gradients",
    "measure",
    "report",
    "lens",
    "reader",
    "sampling",
    "foreign",
    "generation",
    "stream",
    "prompt",
    "study",
    "paper",
    "cli",
    "__main__",
]


def imports(path: Path) -> set[str]:
    """Our own modules that a file imports, at the top or where they are used."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("fieldlens"):
            names = (
                [f"{node.module}.{name.name}" for name in node.names] if node.module == "fieldlens" else [node.module]
            )
            found |= {name.split(".")[1] for name in names if len(name.split(".")) > 1}
    return found & set(ORDER)


def test_imports_point_one_way() -> None:
    for path in SOURCE.rglob("*.py"):
        relative = path.relative_to(SOURCE)
        module = relative.parts[0].removesuffix(".py")
        if module == "__init__":
            continue
        assert module in ORDER, f"{relative} is not in the reading order"
        above = set(ORDER[: ORDER.index(module) + 1])
        assert imports(path) <= above, f"{relative} imports {imports(path) - above}"


def test_importing_fieldlens_is_light() -> None:
    program = (
        "import sys, fieldlens; fieldlens.Decoder; fieldlens.attention\n"
        "print([name for name in ('transformers', 'matplotlib', 'scipy', 'ray') if name in sys.modules])"
    )
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "[]"
    program = "import sys, fieldlens; print('torch' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert child.stdout.strip() == "False"


def test_every_public_name_is_there() -> None:
    for name in fieldlens.__all__:
        assert getattr(fieldlens, name) is not None


def test_the_file_tree_names_every_file() -> None:
    tree = (ROOT / "docs" / "files.md").read_text()
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).as_posix()
        if path.name not in ("__init__.py", "__main__.py"):
            assert re.search(rf"\b{path.name}\b", tree), f"docs/files.md lacks {name}"


def test_the_page_of_schemes_lists_every_option() -> None:
    lines = (ROOT / "docs" / "schemes.md").read_text().splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    assert set(rows) == set(registry())
    for name, cls in registry().items():
        for key in set(options(cls)) - {"window"}:
            assert f"`{key}=" in rows[name], f"the row of {name} lacks {key}"


def test_every_planted_bug_still_has_its_place() -> None:
    for what, file, right, _ in BUGS:
        assert right in (SOURCE / file).read_text(), f"{what}: {file} no longer says {right!r}"
