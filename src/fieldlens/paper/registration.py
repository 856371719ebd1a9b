"""The registration: the study's runs and the rules of all claims, fixed with a date before the results they judge.

A rule is the source of its function, with the runs that it reads; what rules share is listed file by file. A change
after a result exists must be recorded with a reason and the verdicts before and after: the claim is then exploratory.
The statistics and the receptive field that rules call were not part of the registration: an addendum with its own date
and the number of results at that time holds the hashes of those functions.
"""

import hashlib
import inspect
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from fieldlens.core.errors import BadInput
from fieldlens.evaluation import statistics
from fieldlens.paper import claims as package
from fieldlens.paper import evidence, judge, scale
from fieldlens.paper.claims import Claim, registry
from fieldlens.paper.controls import PrintedResults, ShuffledLengths
from fieldlens.paper.judge import Judged, judged
from fieldlens.paper.results import PaperResults
from fieldlens.paper.scale import TRAINED
from fieldlens.receptive import field
from fieldlens.receptive.field import ReceptiveField
from fieldlens.storage.sealed import read_json
from fieldlens.study.plan import Study

KIND = "fieldlens registration"
FILE = "registered.json"
STUDY = "the study"
SEEN_BEFORE = {"parity-fails": "its results existed before the registration"}
"""Claims that were not registered before their results."""
SHARED = (evidence, judge, scale, package)
"""Modules whose code all rules share."""
CALLED = {
    "evaluation/statistics.py": (
        statistics.differences, statistics.paired_t, statistics.holm, statistics.bootstrap_difference,
        statistics.sign_flip, statistics.smallest_p,
    ),
    "receptive/field.py": (
        ReceptiveField.segments, ReceptiveField.shares, ReceptiveField.erf, ReceptiveField.within,
        ReceptiveField.saturated, field.cumulative, field.erf,
    ),
}  # fmt: skip
"""Functions outside the paper's folder that decide verdicts."""


def registration(study: Study, date: str) -> dict[str, Any]:
    """What is registered: hashes of the study and of every rule, and the verdicts on the controls."""
    printed = PrintedResults(study)
    on_printed, on_shuffled = (
        {verdict.claim.name: in_words(verdict) for verdict in judged(results)}
        for results in (printed, ShuffledLengths(printed))
    )
    return {
        "kind": KIND,
        "study": study.name,
        "date": date,
        "runs": len(study.whole),
        "sha256": hashes(study),
        "controls": {name: {"printed": on_printed[name], "shuffled": on_shuffled[name]} for name in on_printed},
        "exploratory": SEEN_BEFORE,
        "changes": [],
    }


def in_words(verdict: Judged) -> str:
    """A verdict with its reason."""
    return f"{verdict.verdict}: {verdict.reason}" if verdict.reason else verdict.verdict


def hashes(study: Study) -> dict[str, str]:
    """The sha256 of the study's runs, of what rules share, and of every rule."""
    runs = json.dumps([[job.name, job.config_hashes] for job in study.whole] + [sorted(study.pins.items())])
    shared = {_name(module): _sha(inspect.getsource(module)) for module in SHARED}
    rules: dict[str, str] = {}
    rest: dict[Any, str] = {}
    for claim in registry().values():
        module, source = inspect.getmodule(claim.test), inspect.getsource(claim.test)
        assert module is not None
        rest[module] = rest.get(module, inspect.getsource(module)).replace(source, "")
        settings = (claim.runs, claim.uses, claim.headroom, claim.primary, claim.corpora)
        rules[claim.name] = _sha(source + repr(settings))
    shared |= {_name(module): _sha(text) for module, text in rest.items()}
    return {STUDY: _sha(runs), **dict(sorted(shared.items())), **dict(sorted(rules.items())), **called_hashes()}


def called_hashes() -> dict[str, str]:
    """The sha256 of the functions outside the paper's folder that decide verdicts, file by file."""
    return {name: _sha("".join(map(inspect.getsource, functions))) for name, functions in CALLED.items()}


def addendum(registered: dict[str, Any], results: PaperResults, date: str) -> dict[str, Any]:
    """The registration with the hashes of the called functions that it lacks, and how many results existed then."""
    known = _known(registered)
    sha256 = {name: value for name, value in called_hashes().items() if name not in known}
    if not sha256:
        return registered
    finished = sum(state == "done" for state in results.states.values())
    entry = {"date": date, "results": finished, "sha256": sha256}
    return {**registered, "addenda": [*registered.get("addenda", []), entry]}


def _known(registered: dict[str, Any]) -> dict[str, str]:
    """What is registered by now: the registration, its addenda and its recorded changes."""
    known = dict(registered["sha256"])
    for entry in (*registered.get("addenda", []), *registered["changes"]):
        known |= entry["sha256"]
    return known


def _name(module: Any) -> str:
    return f"{module.__name__.removeprefix('fieldlens.').replace('.', '/')}.py"


def _sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def read_registration(folder: Path) -> dict[str, Any] | None:
    """The registration in a results folder; None if there is none."""
    path = folder / FILE
    if not path.is_file():
        return None
    content = read_json(path)
    if content.get("kind") != KIND:
        raise BadInput(f"{path} is not a registration")
    return content


def has_results(claim: Claim, results: PaperResults) -> bool:
    """Whether a result that a claim judges exists; without runs of the study, nothing can be seen beforehand."""
    jobs = [job for run in claim.runs for job in results.jobs([run.model], claim.corpora, round(TRAINED * run.trained))]
    return any(results.states[job.name] == "done" for job in jobs)


def changed(registered: dict[str, Any], study: Study) -> list[str]:
    """What differs from the registration and its recorded changes: the study, shared code, and rules by name."""
    known, current = _known(registered), hashes(study)
    return [name for name in dict.fromkeys([*known, *current]) if known.get(name) != current.get(name)]


def unrecorded(registered: dict[str, Any], results: PaperResults) -> list[str]:
    """Changes that judge existing results and are not recorded: each is an error."""
    names, claims = changed(registered, results.study), registry()
    seen = {name for name, claim in claims.items() if has_results(claim, results)}
    return [name for name in names if (name in seen if name in claims else bool(seen))]


def exploratory(registered: dict[str, Any]) -> dict[str, list[str]]:
    """The recorded changes of each claim: date, reason, and verdict before and after."""
    notes: dict[str, list[str]] = {}
    for change in registered["changes"]:
        for name, verdicts in change["verdicts"].items():
            words = f"{change['date']}, {change['reason']}: {verdicts['before']} → {verdicts['after']}"
            notes.setdefault(name, []).append(words)
    return notes


def record_change(
    registered: dict[str, Any], results: PaperResults, date: str, reason: str, before: dict[str, str]
) -> dict[str, Any]:
    """The registration with one more change: its reason, and the verdicts of the claims it touches."""
    names, claims, current = changed(registered, results.study), registry(), hashes(results.study)
    touched: Iterable[str] = claims if any(name not in claims for name in names) else names
    after = {verdict.claim.name: in_words(verdict) for verdict in judged(results)}
    verdicts = {
        name: {"before": before.get(name, "not registered"), "after": after[name]}
        for name in touched
        if name in claims and has_results(claims[name], results)
    }
    sha256 = {name: current.get(name, "removed") for name in names}
    return {
        **registered,
        "changes": [*registered["changes"], {"date": date, "reason": reason, "sha256": sha256, "verdicts": verdicts}],
    }


def summary(registered: dict[str, Any] | None, results: PaperResults) -> str:
    """The registration in one sentence, for the claims page."""
    if registered is None:
        return "No registration: these rules were not fixed before the results."
    changes = len(registered["changes"])
    later = "not changed since" if not changes else f"changed {changes} times since, as listed with the claims"
    problems = unrecorded(registered, results)
    more = f" CHANGED WITHOUT A RECORD: {', '.join(problems)}." if problems else ""
    rules = len(registered["controls"])
    sentence = f"{rules} rules and {registered['runs']} runs were registered on {registered['date']}; {later}.{more}"
    for entry in registered.get("addenda", []):
        sentence += (
            f" The functions that rules call in {' and '.join(entry['sha256'])} (tests, intervals, receptive fields) "
            f"were not part of the registration; their hashes were added on {entry['date']}, when "
            f"{entry['results']} results existed."
        )
    return sentence
