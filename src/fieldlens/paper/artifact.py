"""An artifact: one table or figure of the paper. It says which runs it needs and how it is drawn.

fresh: every result that it needs is there. partial: some are. stale: a result was trained otherwise, made for another
question or from another text, or what lies drawn in the folder was drawn from other results. missing: none is there.
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
from fieldlens.storage.atomic import replace_file
from fieldlens.storage.results import read_json, write_json
from fieldlens.study.plan import Job

VERSION = 1
"""Of how artifacts are drawn; a change makes what lies drawn stale."""

KIND = "fieldlens artifact"
FORMATS = ("png", "svg")
State = Literal["fresh", "partial", "stale", "missing"]

CAVEAT = (
    "ArXiv, OpenWebText2 and GitHub are stood for by latex, prose and code: mostly books, no news, long documents "
    "over-sampled. Absolute perplexities cannot be compared with the paper's; how they change with length can."
)


@dataclass(frozen=True)
class Drawn:
    """What an artifact consists of: sheets, with figures by what their names end in."""

    sheets: Sequence[Table] = ()
    figures: dict[str, Figure] = field(default_factory=dict)
    records: Sequence[dict[str, Any]] = ()
    """The numbers of its cells, in full."""


REGISTERED: dict[str, "type[Artifact]"] = {}


class Artifact(ABC):
    """A table or figure, named after its label in the paper's source."""

    name: ClassVar[str]
    kind: ClassVar[Literal["table", "figure"]]
    title: ClassVar[str]
    stand_ins: ClassVar[bool] = True
    """Whether numbers from the corpora appear in it."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" in cls.__dict__:
            assert cls.name not in REGISTERED, f"{cls.name} is declared twice"
            REGISTERED[cls.name] = cls

    def jobs(self, results: PaperResults) -> list[Job]:
        """The runs of the study that it needs."""
        return []

    @property
    def needs_runs(self) -> bool:
        return type(self).jobs is not Artifact.jobs

    def parts(self, results: PaperResults) -> dict[str, str]:
        """All that it needs, by name: done, stale or missing."""
        return {job.name: results.states[job.name] for job in self.jobs(results)}

    def cut(self, results: PaperResults) -> str:
        """What is not there."""
        return cut(self.jobs(results), results)

    def files(self, results: PaperResults) -> list[Path]:
        """The files that it is drawn from."""
        done = [job.name for job in self.jobs(results) if results.states[job.name] == "done"]
        return [path for name in done for path in sorted((results.folder / name).iterdir())]

    def run(self, results: PaperResults, workers: int, machine: Machine) -> None:  # noqa: B027
        """Make what it needs and the study does not."""

    @abstractmethod
    def draw(self, results: PaperResults) -> Drawn:
        """Make it from the results that are there."""


def registry() -> dict[str, Artifact]:
    """Every artifact there is: the files of the folder artifacts."""
    for module in pkgutil.iter_modules(artifacts.__path__):
        importlib.import_module(f"{artifacts.__name__}.{module.name}")
    ordered = sorted(REGISTERED.items(), key=lambda pair: (pair[1].kind, pair[0]))
    return {name: cls() for name, cls in ordered}


def find(name: str) -> Artifact:
    """An artifact by its name."""
    known = registry()
    if name not in known:
        raise unknown("artifact", name, [*known, "all", "claims"])
    return known[name]


def state(artifact: Artifact, results: PaperResults, out: Path) -> dict[str, Any]:
    """How it stands: its state, and what was cut."""
    states = list(artifact.parts(results).values())
    counts = {what: states.count(what) for what in ("done", "stale", "missing")}
    drawn = _drawn(artifact, out)
    moved = drawn is not None and drawn != _source(artifact, results)
    found: State
    if counts["stale"] or moved:
        found = "stale"
    elif counts["missing"] or (artifact.needs_runs and not states):
        found = "partial" if counts["done"] else "missing"
    else:
        found = "fresh"
    why = [unfit] if (unfit := _unfit(states)) else []
    why += ["drawn from other results or settings than there are now"] if moved else []
    why += [artifact.cut(results)] if counts["missing"] else []
    why += [f"study '{results.study.name}' has none of its runs"] if artifact.needs_runs and not states else []
    return {
        "name": artifact.name,
        "kind": artifact.kind,
        "title": artifact.title,
        "state": found,
        "why": "; ".join(why),
        "runs": {"needed": len(states), **counts},
        "drawn": drawn is not None,
    }


def cut(jobs: Sequence[Job], results: PaperResults) -> str:
    """What is not there of some runs: corpora, seeds, and how many runs are."""
    done = [job for job in jobs if results.states[job.name] == "done"]
    if not done:
        return f"none of {len(jobs)} runs"
    said = []
    corpora, all_corpora = ({job.recipe.corpus: None for job in some} for some in (done, jobs))
    if len(corpora) < len(all_corpora):
        said.append(f"{', '.join(corpora)} only")
    asked, there = (
        Counter((job.recipe.scheme, job.recipe.corpus, job.recipe.length) for job in some) for some in (jobs, done)
    )
    lacking = [(there[one], wanted) for one, wanted in asked.items() if one[1] in corpora and there[one] < wanted]
    if lacking:
        (few, many), most = (f(have for have, _ in lacking) for f in (min, max)), max(wanted for _, wanted in lacking)
        said.append(f"{few if few == many else f'{few} to {many}'} of {most} seeds")
    return ", ".join([*said, f"{len(done)} of {len(jobs)} runs"])


def redraw(artifact: Artifact, results: PaperResults, out: Path) -> tuple[Drawn, list[Path]]:
    """Draw an artifact into a folder; its last file says what it was drawn from."""
    states = list(artifact.parts(results).values())
    if artifact.needs_runs and not states:
        raise BadInput(f"{artifact.name}: study '{results.study.name}' has none of its runs")
    if states and "done" not in states:
        none = f"{results.folder} has no result of any that study '{results.study.name}' asks for"
        given = ", from the texts in --corpora FOLDER" if artifact.needs_runs else ""
        raise BadInput(
            f"{artifact.name} needs {len(states)} runs, and {results.absent or _unfit(states) or none}; "
            f"fieldlens paper {artifact.name} --run makes them{given}"
        )
    drawn = artifact.draw(results)
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for ending, figure in drawn.figures.items():
        for form in FORMATS:
            path = out / f"{artifact.name}{ending}.{form}"
            save(figure, path)
            written.append(path)
    notes = notes_of(artifact, results)
    texts = {
        "md": "\n".join([f"# {artifact.title}\n", *(sheet.markdown() for sheet in drawn.sheets), *notes]) + "\n",
        "tex": "\n".join([*(sheet.latex() for sheet in drawn.sheets), *(rf"\par {escaped(note)}" for note in notes)])
        + "\n",
        "csv": records_csv(drawn.records),
    }
    for form, text in texts.items():
        if drawn.sheets and (form != "csv" or drawn.records):
            path = out / f"{artifact.name}.{form}"
            replace_file(path, text.encode())
            written.append(path)
    for name in _files(artifact, out) - {path.name for path in written}:
        (out / name).unlink(missing_ok=True)  # of results that are no longer there
    content = {"kind": KIND, "name": artifact.name, "source": _source(artifact, results)}
    write_json(out / f"{artifact.name}.json", content | {"files": [path.name for path in written]})
    return drawn, written


def notes_of(artifact: Artifact, results: PaperResults) -> list[str]:
    """What must be said beside it: what was cut, and what stands for what."""
    states = list(artifact.parts(results).values())
    stands = artifact.stand_ins and results.corpus("arxiv") != "arxiv"
    notes = [] if set(states) <= {"done"} else [f"Cut: {artifact.cut(results)}."]
    notes += [f"Left out: {unfit}."] if (unfit := _unfit(states)) else []
    return notes + ([CAVEAT] if stands else [])


def _unfit(states: Sequence[str]) -> str:
    """What is said of results that are there and cannot be used."""
    count = states.count("stale")
    how = "trained otherwise, for another question, from another text, or damaged"
    return f"{count} of {len(states)} results are {how}" if count else ""


def _source(artifact: Artifact, results: PaperResults) -> str:
    """Names what an artifact is drawn from: the study's recipe and texts, the printed numbers, its results' files."""
    recipes = sorted({repr(job.recipe) for job in results.study.whole if job.recipe.scheme == "sandwich"})
    known = [VERSION, artifact.name, recipes, sorted(results.study.pins.items()), printed_text()]
    found = hashlib.sha256(repr(known).encode())
    for path in artifact.files(results):
        found.update(path.name.encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()[:16]


def _files(artifact: Artifact, out: Path) -> set[str]:
    """What was drawn of an artifact into a folder before."""
    try:
        return {name for name in read_json(out / f"{artifact.name}.json")["files"] if name.startswith(artifact.name)}
    except (BadInput, KeyError, TypeError, AttributeError):
        return set()


def _drawn(artifact: Artifact, out: Path) -> str | None:
    """What the artifact that lies in a folder was drawn from; nothing if it does not lie there whole."""
    try:
        found = read_json(out / f"{artifact.name}.json")
        whole = found["kind"] == KIND and all((out / name).is_file() for name in found["files"])
        return str(found["source"]) if whole else None
    except (BadInput, KeyError, TypeError):
        return None
