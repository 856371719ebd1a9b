"""Artifacts: the tables and figures of the paper, with the runs that each needs and how it is drawn.

States. fresh: all required results are available. partial: some are. missing: none is. stale: a result has other
training settings, another evaluation request or another text, or the files in the folder were drawn from other results.
"""

import hashlib
import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from matplotlib.figure import Figure

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput, unknown
from fieldlens.paper import artifacts
from fieldlens.paper.printed import printed_text
from fieldlens.paper.results import PaperResults
from fieldlens.reporting.plots import save
from fieldlens.reporting.table import Table, escaped, records_csv
from fieldlens.storage.atomic import replace_text
from fieldlens.storage.results import write_json
from fieldlens.storage.sealed import read_json
from fieldlens.study.plan import Job

VERSION = 1
"""Version of the drawing code; a change makes existing files stale."""

KIND = "fieldlens artifact"
FORMATS = ("png", "svg")
State = Literal["fresh", "partial", "stale", "missing"]

CAVEAT = (
    "The corpora latex, prose and code replace ArXiv, OpenWebText2 and GitHub: latex is mostly books, prose has no "
    "news, and long documents are over-sampled. Absolute perplexities cannot be compared with the paper's; how they "
    "change with length can."
)


@dataclass(frozen=True)
class Drawn:
    """The content of an artifact: tables, and figures by the suffix of their file names."""

    sheets: Sequence[Table] = ()
    figures: dict[str, Figure] = field(default_factory=dict)
    records: Sequence[dict[str, Any]] = ()
    """The values of the table cells at full precision, for the CSV file."""


REGISTERED: dict[str, "type[Artifact]"] = {}


class Artifact(ABC):
    """A table or figure, named by its label in the paper's source."""

    name: ClassVar[str]
    kind: ClassVar[Literal["table", "figure"]]
    title: ClassVar[str]
    stand_ins: ClassVar[bool] = True
    """Whether it shows numbers measured on the corpora."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            assert cls.name not in REGISTERED, f"{cls.name} is declared twice"
            REGISTERED[cls.name] = cls

    def jobs(self, results: PaperResults) -> list[Job]:
        """The jobs of the study that it needs."""
        return []

    @property
    def needs_runs(self) -> bool:
        return type(self).jobs is not Artifact.jobs

    def parts(self, results: PaperResults) -> dict[str, str]:
        """The state of each required run by name: done, stale or missing."""
        return {job.name: results.states[job.name] for job in self.jobs(results)}

    def cut(self, results: PaperResults) -> str:
        """A summary of the runs that are available."""
        return cut(self.jobs(results), results)

    def files(self, results: PaperResults) -> list[Path]:
        """The result files that it is drawn from."""
        done = [job.name for job in self.jobs(results) if results.states[job.name] == "done"]
        return [path for name in done for path in sorted((results.folder / name).iterdir())]

    def run(self, results: PaperResults, runs: Path, workers: int, machine: Machine) -> None:  # noqa: B027
        """Perform what is required and not a job of the study; `runs` has the run folders of its jobs."""

    @abstractmethod
    def draw(self, results: PaperResults) -> Drawn:
        """Draw it from the available results."""


def registry() -> dict[str, Artifact]:
    """Every artifact by name, from the modules of fieldlens.paper.artifacts."""
    for module in pkgutil.iter_modules(artifacts.__path__):
        importlib.import_module(f"{artifacts.__name__}.{module.name}")
    ordered = sorted(REGISTERED.items(), key=lambda pair: (pair[1].kind, pair[0]))
    return {name: cls() for name, cls in ordered}


def find(name: str) -> Artifact:
    """An artifact by its name."""
    by_name = registry()
    if name not in by_name:
        raise unknown("artifact", name, [*by_name, "all", "claims"])
    return by_name[name]


def state(artifact: Artifact, results: PaperResults, out: Path) -> dict[str, Any]:
    """The state of an artifact, with the reasons and the number of runs."""
    states = list(artifact.parts(results).values())
    counts = {name: states.count(name) for name in ("done", "stale", "missing")}
    drawn = _drawn_source(artifact, out)
    outdated = drawn is not None and drawn != _source(artifact, results)
    state: State
    if counts["stale"] or outdated:
        state = "stale"
    elif counts["missing"] or (artifact.needs_runs and not states):
        state = "partial" if counts["done"] else "missing"
    else:
        state = "fresh"
    reasons = [stale] if (stale := _stale_note(states)) else []
    reasons += ["drawn from other results or settings than the current ones"] if outdated else []
    reasons += [artifact.cut(results)] if counts["missing"] else []
    reasons += [f"study '{results.study.name}' contains none of its runs"] if artifact.needs_runs and not states else []
    return {
        "name": artifact.name,
        "kind": artifact.kind,
        "title": artifact.title,
        "state": state,
        "why": "; ".join(reasons),
        "runs": {"needed": len(states), **counts},
        "drawn": drawn is not None,
    }


def cut(jobs: Sequence[Job], results: PaperResults) -> str:
    """A summary of which runs are available: corpora, seeds and number of runs."""
    done = [job for job in jobs if results.states[job.name] == "done"]
    if not done:
        return f"none of {len(jobs)} runs"
    parts = []
    corpora, all_corpora = ({job.recipe.corpus: None for job in group} for group in (done, jobs))
    if len(corpora) < len(all_corpora):
        parts.append(f"{', '.join(corpora)} only")
    required, available = (
        Counter((job.recipe.scheme, job.recipe.corpus, job.recipe.length) for job in group) for group in (jobs, done)
    )
    lacking = [
        (available[model], expected)
        for model, expected in required.items()
        if model[1] in corpora and available[model] < expected
    ]
    if lacking:
        low, high = (f(count for count, _ in lacking) for f in (min, max))
        total = max(expected for _, expected in lacking)
        parts.append(f"{low if low == high else f'{low} to {high}'} of {total} seeds")
    return ", ".join([*parts, f"{len(done)} of {len(jobs)} runs"])


def redraw(
    artifact: Artifact, results: PaperResults, out: Path, without_results: bool = False
) -> tuple[Drawn, list[Path]]:
    """Draw an artifact into a folder; the last file, NAME.json, records the source and the files.

    `without_results` draws also if no required result is available, with all cells missing; else that is an error.
    """
    states = list(artifact.parts(results).values())
    if artifact.needs_runs and not states:
        raise BadInput(f"{artifact.name}: study '{results.study.name}' contains none of its runs")
    if states and "done" not in states and not without_results:
        none = f"{results.folder} has no result of these runs of study '{results.study.name}'"
        corpora = " --corpora FOLDER" if artifact.needs_runs else ""
        raise BadInput(
            f"{artifact.name} needs {len(states)} runs, but {results.absent or _stale_note(states) or none}; "
            f"to perform the runs, use fieldlens paper {artifact.name} --run{corpora}"
        )
    drawn = artifact.draw(results)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for suffix, figure in drawn.figures.items():
        for extension in FORMATS:
            path = out / f"{artifact.name}{suffix}.{extension}"
            save(figure, path)
            written.append(path)
    notes = notes_of(artifact, results)
    texts = {
        "md": "\n".join([f"# {artifact.title}\n", *(sheet.markdown() for sheet in drawn.sheets), *notes]) + "\n",
        "tex": "\n".join([*(sheet.latex() for sheet in drawn.sheets), *(rf"\par {escaped(note)}" for note in notes)])
        + "\n",
        "csv": records_csv(drawn.records),
    }
    for extension, text in texts.items():
        if drawn.sheets and (extension != "csv" or drawn.records):
            path = out / f"{artifact.name}.{extension}"
            replace_text(path, text)
            written.append(path)
    for name in _drawn_files(artifact, out) - {path.name for path in written}:
        (out / name).unlink(missing_ok=True)  # drawn from results that no longer exist
    content = {"kind": KIND, "name": artifact.name, "source": _source(artifact, results)}
    write_json(out / f"{artifact.name}.json", content | {"files": [path.name for path in written]})
    return drawn, written


def notes_of(artifact: Artifact, results: PaperResults) -> list[str]:
    """The notes below an artifact: missing runs, stale results, and corpora that replace the paper's."""
    states = list(artifact.parts(results).values())
    replaced = artifact.stand_ins and results.corpus("arxiv") != "arxiv"
    notes = [] if set(states) <= {"done"} else [f"Cut: {artifact.cut(results)}."]
    notes += [f"Left out: {stale}."] if (stale := _stale_note(states)) else []
    return notes + ([CAVEAT] if replaced else [])


def _stale_note(states: Sequence[str]) -> str:
    """A note about stale results; empty if there are none."""
    count = states.count("stale")
    causes = "other training settings, another evaluation request, another text, or damaged"
    return f"{count} of {len(states)} results are stale ({causes})" if count else ""


def _source(artifact: Artifact, results: PaperResults) -> str:
    """A hash of everything an artifact is drawn from: the study's recipes and texts, printed numbers, result files."""
    recipes = sorted({repr(job.recipe) for job in results.study.whole if job.recipe.scheme == "sandwich"})
    settings = [VERSION, artifact.name, recipes, sorted(results.study.pins.items()), printed_text()]
    source = hashlib.sha256(repr(settings).encode())
    for path in artifact.files(results):
        source.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return source.hexdigest()[:16]


def _drawn_files(artifact: Artifact, out: Path) -> set[str]:
    """The names of an artifact's existing files in a folder."""
    try:
        return {name for name in read_json(out / f"{artifact.name}.json")["files"] if name.startswith(artifact.name)}
    except (BadInput, KeyError, TypeError, AttributeError):
        return set()


def _drawn_source(artifact: Artifact, out: Path) -> str | None:
    """The source hash recorded with an artifact's files in a folder; None if the files are incomplete."""
    try:
        content = read_json(out / f"{artifact.name}.json")
        complete = content["kind"] == KIND and all((out / name).is_file() for name in content["files"])
        return str(content["source"]) if complete else None
    except (BadInput, KeyError, TypeError):
        return None
