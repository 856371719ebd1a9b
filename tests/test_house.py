"""The shape of the house: imports point one way, heavy libraries stay out, each module says its purpose."""

import ast
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import house
from plant import BUGS

import fieldlens
from fieldlens.extension import discovery as methods
from fieldlens.schemes.discovery import is_built_in, registry
from fieldlens.schemes.spec import COMMON, options

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "fieldlens"

# Reading order: a room imports only from rooms above it, and a module only from modules before it in its room.
ROOMS = {
    "core": "limits memory cores faults errors events format device distributed",
    "storage": "records shape atomic writable journal folders sealed provenance checkpoints content_cache results "
    "run_dir",
    "schemes": "window softmax_options base discovery * spec __init__ layers validation",
    "kernels": "layout rotary key_terms blocks cpu_flash content general flex selection attention logits",
    "data": "documents hf_datasets corpus tokenizer tokens text batches",
    "models": "decoder scheme_on_text kv_cache hf_compat adapters.base adapters.decoder adapters.hf adapters.function "
    "adapters.adapt cost size finite gguf_metadata gguf_reading hub origin texts model_folder hf_cache hf_layers "
    "hf_export loading token_ids",
    "extension": "base methods.* discovery attention rope hf_probe hf_attach hf_sinks decoder_attach adapters attach "
    "load",
    "training": "recipe loss optimisers update trainer loop",
    "reporting": "table plots score_matrices blocks",
    "evaluation": "statistics equivalence context_use protocols.anchors protocols.base protocols.* protocols.discovery "
    "protocols.__init__ verdict copy_model baseline result request runner evaluate compare evaluate_models summary "
    "extension_verdict retrieval",
    "receptive": "last_query input_gradients gradient_advice field explorer.block explorer.data explorer.jobs "
    "explorer.guard explorer.samples explorer.session explorer.server explorer.notebook request rounds check decision "
    "advice budget result runner stages measure_models charts.base charts.* charts.__init__ report extend_request "
    "extension_advice extension_result extend_evidence extend_model extend_report",
    "generation": "sampling engine with_method hf generate detokenize request generate_text",
    "study": "plan result_folder state results forecast executors job controller view page",
    "paper": "printed scale results cells fields diagrams pilot modern score_parts equation_3 parity evidence artifact "
    "artifacts.* claims.__init__ claims.* judge controls registration page",
    "cli": "console progress installed * __init__",
}


def modules() -> dict[str, Path]:
    """Every module by its name below fieldlens."""
    return {".".join(path.relative_to(SOURCE).with_suffix("").parts): path for path in SOURCE.rglob("*.py")}


def imports(path: Path) -> set[str]:
    """Our own modules that a file imports, at the top or where they are used."""
    known, found = modules(), set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "fieldlens":
            package = node.module.removeprefix("fieldlens").removeprefix(".")
            for alias in node.names:
                inside = f"{package}.{alias.name}".removeprefix(".")
                found.add(inside if inside in known else package)
    return {name if name in known else f"{name}.__init__".removeprefix(".") for name in found}


def rank(name: str) -> tuple[int, int]:
    """The place of a module in the reading order."""
    room, _, rest = name.partition(".")
    order = ROOMS[room].split()
    exact = [place for place, pattern in enumerate(order) if pattern == rest]
    places = exact or [place for place, pattern in enumerate(order) if fnmatch(rest, pattern)]
    assert places or rest.endswith("__init__"), f"{name} is not in the reading order"
    return list(ROOMS).index(room), places[0] if places else -1


def test_imports_point_one_way() -> None:
    for name, path in modules().items():
        if "." not in name:
            continue
        for other in imports(path):
            if other in ("__init__", name):
                continue
            assert rank(other) <= rank(name), f"{name} imports {other}, which comes after it"


def test_the_house_is_easy_to_read() -> None:
    functions = list(house.function_lines().values())
    assert len(house.top_level()) <= house.LIMITS["top_level"]
    assert house.vague_share() <= house.LIMITS["vague_share"]
    assert max(house.module_lines().values()) <= house.LIMITS["longest_module"]
    assert house.percentile(functions, 0.9) <= house.LIMITS["function_p90"]
    assert max(functions) <= house.LIMITS["longest_function"]


def test_a_command_seldom_comes_back_to_a_room(tmp_path: Path) -> None:
    for verb, files in house.commands(tmp_path).items():
        assert house.reentries(files)[1] <= house.REENTRIES[verb], verb


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


def test_every_module_says_its_purpose_in_one_line() -> None:
    for name, path in modules().items():
        text = (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n")[0]
        assert text.endswith((".", "?")), f"{name} begins with {text!r}"


def test_the_page_of_schemes_lists_every_option() -> None:
    lines = (ROOT / "docs" / "schemes.md").read_text().splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    schemes = {name: cls for name, cls in registry().items() if is_built_in(cls)}  # other tests may add plugins
    assert set(rows) == set(schemes)
    for name, cls in schemes.items():
        for key in set(options(cls)) - set(COMMON):
            assert f"`{key}=" in rows[name], f"the row of {name} lacks {key}"


def test_the_page_of_extension_lists_every_method() -> None:
    lines = (ROOT / "docs" / "extend.md").read_text().splitlines()
    rows = {line.split("`")[1]: line for line in lines if line.startswith("| `")}
    classes = {name: cls for name, cls in methods.registry().items() if methods.is_built_in(cls)}
    assert set(rows) == set(classes)
    for name, cls in classes.items():
        for key in methods.options(cls):
            assert f"`{key}=" in rows[name], f"the row of {name} lacks {key}"


def test_every_planted_bug_still_has_its_place() -> None:
    for what, file, right, _ in BUGS:
        assert right in (SOURCE / file).read_text(), f"{what}: {file} no longer says {right!r}"
