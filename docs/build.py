"""The site: every page of docs/, and pages generated from the command line, docstrings, benchmarks and results.

Example: python docs/build.py site
"""

import ast
import importlib
import inspect
import json
import re
import shutil
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))  # where the order of the folders is defined
MODULES = re.compile(r"\b(?:typing|collections\.abc|pathlib|numpy|torch|fieldlens(?:\.[a-z]\w*)*)\.")

# The order of the pages. One that is not there is left out; one that is not listed comes last, under its heading.
PAGES = [
    "index.md",
    "measure.md",
    "explore.md",
    "own-scheme.md",
    "evaluate.md",
    "extend.md",
    "generate.md",
    "schemes.md",
    "studies.md",
    "paper.md",
    "results.md",
    "claims.md",
    "claims-first.md",
    "results-first.md",
    "modern.md",
    "pilot.md",
    "commands.md",
    "api.md",
    "performance.md",
    "gpus.md",
    "tested.md",
    "files.md",
]

SETTINGS = """
[project]
site_name = "fieldlens"
site_description = "How far back a language model really looks, and how far past its training length to trust it"
site_dir = "site"
use_directory_urls = false
extra_css = ["style.css"]
nav = {nav}

[project.theme]
font = false
features = ["content.code.copy", "navigation.footer", "navigation.top", "search.highlight", "toc.follow"]

[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"

[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to light mode"

[project.markdown_extensions]
attr_list = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight = {{}}
pymdownx.superfences = {{}}
"""


def stage(folder: Path) -> list[str]:
    """Lay out what the builder reads; the pages in their order."""
    docs = folder / "docs"
    shutil.copytree(ROOT / "docs", docs, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    generated = {
        "commands": commands(),
        "api": api(),
        "performance": performance(),
        "results": results(docs, "paper"),
        "results-first": results(docs, "paper-first"),
        "files": files(),
        "pilot": pilot(),
        "modern": modern(),
    }
    for name, text in generated.items():
        (docs / f"{name}.md").write_text(text)
    tested = docs / "tested.md"
    tested.write_text(tested.read_text().replace("<!-- campaign -->", campaign(ROOT / "docs" / "campaign.json")))
    gpus = docs / "gpus.md"
    gpus.write_text(gpus.read_text().replace("<!-- gpu -->", gpu_figures(ROOT / "benchmarks" / "gpu.json")))
    there = {path.name for path in docs.glob("*.md")}
    pages = [name for name in PAGES if name in there] + sorted(there - set(PAGES))
    nav = [{heading(docs / name): name} for name in pages]
    shown = ", ".join(f"{{ {json.dumps(title)} = {json.dumps(name)} }}" for one in nav for title, name in one.items())
    (folder / "zensical.toml").write_text(SETTINGS.format(nav=f"[{shown}]"))
    return pages


def heading(page: Path) -> str:
    """A page's first heading, up to its colon."""
    first = next(line for line in page.read_text().splitlines() if line.startswith("# "))
    return first.removeprefix("# ").split(":")[0]


def commands() -> str:
    """Every verb and flag, as the command line itself knows them."""
    from fieldlens.cli import app

    text = app.generate_docs(heading_level=1)
    before, _, after = text.partition("## Table of Contents")
    listing = after[after.index("**Commands**") :]
    before = before.replace("# fieldlens\n", "# Command reference\n", 1)
    text = (before + listing).replace("\nExample: ", "\nExample:\n\n    ")
    return re.sub(r"(?<!`)'([^'`\n]*\*[^'`\n]*)'", r"`'\1'`", text)  # a pattern's stars are no emphasis


def api() -> str:
    """The public names, with signatures and docstrings."""
    fieldlens = importlib.import_module("fieldlens")
    parts = [
        "# API reference\n\nGenerated from the docstrings. `import fieldlens` is light: a name is imported when used.\n"
    ]
    values = {f"fieldlens.{name}": getattr(fieldlens, name) for name in fieldlens.__all__ if not name.startswith("_")}
    values["fieldlens.schemes.base.Scheme"] = importlib.import_module("fieldlens.schemes").Scheme
    for found in ("perplexity", "receptive_field", "generate"):
        result = inspect.signature(getattr(fieldlens, found)).return_annotation
        if inspect.isclass(result):
            values[f"{result.__module__}.{result.__name__}"] = result
    return "\n".join(parts + [_entry(name, value) for name, value in values.items()])


def _entry(name: str, value: Any) -> str:
    lines = [f"## {name}\n", f"```python\n{_signature(name.rsplit('.', 1)[1], value)}\n```\n", _doc(value)]
    if inspect.isclass(value):
        for method, one in vars(value).items():
            read = isinstance(one, property | cached_property)
            if method.startswith("_") or not one.__doc__ or not (read or inspect.isfunction(one)):
                continue
            shown = method if read else _signature(method, one)
            lines.append(f"### {value.__name__}.{method}\n\n```python\n{shown}\n```\n\n{_doc(one)}")
    return "\n".join(lines)


def _signature(name: str, value: Any) -> str:
    """A name with its parameters, one to a line where one line would be too long."""
    try:
        found = inspect.signature(value)
    except (TypeError, ValueError):
        return name
    parts: list[str] = []
    for one in found.parameters.values():
        if one.kind is one.KEYWORD_ONLY and not any(part.startswith("*") for part in parts):
            parts.append("*")
        if one.name != "self":
            text = re.sub(r"<function .*>", "…", MODULES.sub("", str(one)))
            parts.append(re.sub(r" = (\w+)\(.+\)$", r" = \1()", text))  # a dataclass with its defaults
    result = MODULES.sub("", str(found).rpartition(") -> ")[2]) if " -> " in str(found) else ""
    end = f") -> {result}" if result and not inspect.isclass(value) else ")"
    whole = f"{name}({', '.join(parts)}{end}"
    return whole if len(whole) <= 88 else f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + end


def _doc(value: Any) -> str:
    return (inspect.getdoc(value) or "").replace("<", "&lt;") + "\n"


def pilot() -> str:
    """The pilot of the second edition: which recipe uses its context."""
    from dataclasses import asdict

    from fieldlens.paper.pilot import gate_table
    from fieldlens.study.plan import read_study
    from fieldlens.study.results import read_results
    from fieldlens.study.view import called

    jobs = read_study("pilot").jobs
    _, finished = read_results(ROOT / "results" / "pilot")
    _, blind = read_results(ROOT / "results" / "paper-first")
    first = [one for one in blind if (one.recipe["scheme"], one.recipe["length"]) == ("sandwich", 128)]
    done = {one.name for one in finished}
    names = zip(called([asdict(job.recipe) for job in jobs]), jobs, strict=True)
    left = [f"`{name}`" for name, job in names if job.name not in done]
    return "\n".join(
        [
            "# The pilot\n",
            "The first edition of the reproduction could not test the paper: none of its models used context between",
            "64 and 128 tokens, so no scheme could show what the paper claims. The pilot looks for a recipe whose",
            "models do. It is judged on the validation split; the test split is kept for the registered study.\n",
            "```sh\nfieldlens study pilot --corpora FOLDER\n```\n",
            f"{len(finished)} of {len(jobs)} runs are done.\n",
            gate_table(finished).markdown(),
            "So the recipe (L_tr 64, batch 4, 48,000 steps) passes. No variant of it was compared: it is a recipe that",
            "works, not the best of several. One variant, Sandwich with 8 heads, was stopped at step 11,000 of 48,000,",
            f"and has no result. Without a result: {', '.join(left)}.\n",
            "## The recipe that failed\n",
            "The first edition trained on 800 batches of 32 × 128 tokens. The same table for its Sandwich models, on",
            "latex:\n",
            gate_table(first).markdown(),
        ]
    )


def modern() -> str:
    """Today's designs under the paper's protocol."""
    from fieldlens.paper.modern import done, modern_table
    from fieldlens.study.plan import read_study

    study, paper = read_study("modern"), read_study("paper")
    folder, paper_folder = (ROOT / "results" / name for name in ("modern", "paper"))
    finished = len(done(study, folder))
    return "\n".join(
        [
            "# Today's designs\n",
            "Which of today's designs extrapolates, and does coverage say so? Recipe, targets and fields are those of",
            "the study `paper` on code, with one seed: local layers with Rotary and global ones without positions,",
            "learned sinks, FoX, FIRE, xPos, SSMax, and Rotary with YaRN at evaluation. It is exploratory: no rule",
            "was registered, and one seed cannot rank designs.\n",
            "```sh\nfieldlens study modern --corpora FOLDER --workers 1 --nice 10\n```\n",
            f"{finished} of {len(study.whole)} runs are done; a dash is a run that is still to come.\n",
            modern_table(study, folder, paper, paper_folder).markdown(),
        ]
    )


def files() -> str:
    """Every module with the first line of its docstring, folder by folder."""
    from test_house import ROOMS, modules, rank

    parts = [
        "# Every file, one purpose\n",
        "Generated from the docstrings. Data flows one way, and so do imports: a folder imports from those above it,",
        "a module from those above it in its folder.\n",
    ]
    ordered = sorted((name for name in modules() if "." in name), key=rank)
    for room in ROOMS:
        parts.append(f"## {room}\n\n{_first_line(modules()[f'{room}.__init__'])}\n")
        names = [name for name in ordered if name.split(".")[0] == room and not name.endswith("__init__")]
        parts.append(_table(["file", "purpose"], [[_path(name), _first_line(modules()[name])] for name in names]))
    return "\n".join(parts)


def _path(module: str) -> str:
    return f"`{module.replace('.', '/')}.py`"


def _first_line(path: Path) -> str:
    text = ast.get_docstring(ast.parse(path.read_text())) or ""
    return text.split("\n")[0].replace("|", "\\|").replace("<", "&lt;")


def campaign(path: Path) -> str:
    """The outcome of the campaign's most recent run."""
    if not path.exists():
        return "It has not been run on this version yet."
    record = json.loads(path.read_text())
    keys = ["piece", "required result", "trials", "as required", "harmless", "skipped", "wrong"]
    rows, notes = [], list[str]()
    for piece in record["pieces"]:
        counts = [piece[key] for key in ("right", "harmless", "skipped", "wrong")]
        part = "" if piece["done"] == piece["cases"] else f" ({piece['done']} of {piece['cases']} cases)"
        rows.append([piece["name"], piece["promise"] + part, *(f"{count:,}" for count in (sum(counts), *counts))])
        notes += [f"- {piece['name']}, {note}" for note in piece["notes"]]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    about = f"Seed {record['seed']}, source {record['source']}, {versions}; {record['machine']}."
    listing = ["Harmless, skipped or wrong:", "", *(note.replace("<", "&lt;").replace("|", "\\|") for note in notes)]
    return "\n".join([_table(keys, rows), "", about, *(["", *listing] if notes else [])])


def gpu_figures(path: Path) -> str:
    """Where the figures of a GPU are, once somebody has committed them."""
    if not path.exists():
        return "Not yet measured: nobody has committed `benchmarks/gpu.json`."
    figures = json.loads(path.read_text())
    return f"On one {figures['gpu']}: [the tables](performance.md#gpu)."


def performance() -> str:
    """The benchmarks' tables, from the files they left, with the command of each."""
    parts = [
        "# Performance\n",
        "Generated from the JSON beside each benchmark. Times are ratios within one run, measured in interleaved",
        "rounds; the row *A/A* runs the first candidate again and shows the noise.\n",
    ]
    for file in sorted((ROOT / "benchmarks").glob("*.json")):
        found = json.loads(file.read_text())
        source = ast.parse(file.with_suffix(".py").read_text())
        question = (ast.get_docstring(source) or "").split("\n")[0]
        single = {key: found.pop(key) for key in list(found) if not isinstance(found[key], list | dict)}
        about = ", ".join(f"{key} {value}" for key, value in {**found.pop("versions"), **single}.items())
        parts.append(f"## {file.stem}\n\n{question}\n\n```sh\npython benchmarks/{file.stem}.py\n```\n\n{about}.\n")
        parts += [_section(name, value) for name, value in found.items()]
    return "\n".join(parts)


EDITIONS = {
    "paper": [
        "# Tables and figures\n",
        "Drawn from the committed results of the study `paper` when this site was built; each says what is missing.",
        "Names are the labels of the paper's source. Tables say *paper · ours*; where the paper has a table or a",
        "figure on ArXiv alone, ours on code stands beside the paper's numbers on ArXiv. [The paper, by one",
        "command](paper.md) tells the rule of scale and what stands for what.",
        "[Those of the first edition](results-first.md) have a page of their own.\n",
    ],
    "paper-first": [
        "# Tables and figures, first edition\n",
        "Drawn from the committed results of the study `paper-first`, whose models [did not use their",
        "context](claims-first.md): flat rows past L_tr are no evidence of extrapolation.\n",
    ],
}
"""The beginning of the page of results, by study."""


def results(docs: Path, study: str) -> str:
    """Every table and figure of the paper, drawn from the committed results of a study."""
    from fieldlens.paper.artifact import registry, state
    from fieldlens.paper.results import PaperResults
    from fieldlens.study.plan import read_study

    shelf, drawings = PaperResults(read_study(study), ROOT / "results" / study), docs / "drawn" / study
    parts = list(EDITIONS[study])
    for artifact in sorted(registry().values(), key=lambda one: one.kind != "table"):
        how = state(artifact, shelf, drawings)
        command = f"`fieldlens paper {artifact.name}{'' if study == 'paper' else f' --study {study}'}`"
        about = f"{command}: {how['state']}{', ' if how['why'] else ''}{how['why']}."
        parts.append(f"## {artifact.title}\n\n{about}\n")
        parts += _drawing(artifact, shelf, drawings)
    return "\n".join(parts)


def _drawing(artifact: Any, shelf: Any, drawings: Path) -> list[str]:
    """An artifact's figures, then its tables."""
    from fieldlens.paper.artifact import redraw

    drawn, written = redraw(artifact, shelf, drawings, without_results=True)
    figures = [path.name for path in written if path.suffix == ".svg"]
    tables = [sheet.markdown() for sheet in drawn.sheets]
    return [
        *(f"![{artifact.title}](drawn/{drawings.name}/{name})\n" for name in figures),
        *(f"{table}\n" for table in tables),
    ]


def _section(name: str, value: Any) -> str:
    """A list of rows is a table, what holds one is taken apart."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        keys = list(value[0])
        rows = [[_number(row.get(key)) for key in keys] for row in value]
        return f"### {name}\n\n" + _table(keys, rows)
    if not isinstance(value, dict):
        return f"{name}: {value}\n"
    plain = {key: one for key, one in value.items() if not isinstance(one, list | dict)}
    rest = [_section(f"{name}: {key}", one) for key, one in value.items() if key not in plain]
    own = [f"### {name}\n\n" + _table(["what", "figure"], [[key, _number(one)] for key, one in plain.items()])]
    return "\n".join((own if plain else []) + rest)


def _table(keys: list[str], rows: list[list[str]]) -> str:
    heading, *body = ["| " + " | ".join(cells) + " |" for cells in [keys, *rows]]
    return "\n".join([heading, "|" + "|".join(["---", *["--:"] * (len(keys) - 1)]) + "|", *body]) + "\n"


def _number(value: Any) -> str:
    if not isinstance(value, float):
        return "" if value is None else str(value)
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def build(out: Path) -> None:
    """Build the site into a folder, and refuse warnings; of what lies there only an earlier site is replaced."""
    if out.exists() and any(out.iterdir()) and not (out / "sitemap.xml").is_file():
        sys.exit(f"{out} is not empty and no site: name another folder")
    with tempfile.TemporaryDirectory() as place:
        stage(Path(place))
        command = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        said = done.stdout + done.stderr
        if done.returncode or "warning" in said.lower():
            sys.exit(f"the site was not built:\n{said}")
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(Path(place) / "site", out)
    print(f"site: {out / 'index.html'}; with its search: {Path(sys.executable).name} -m http.server -d {out}")


if __name__ == "__main__":
    build(Path(sys.argv[1] if len(sys.argv) > 1 else "site"))
