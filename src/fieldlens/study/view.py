"""The status of a study as tables and lines: every job with its state, progress, loss and remaining time."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fieldlens.core.format import format_duration
from fieldlens.reporting.table import Table
from fieldlens.study.forecast import Forecast
from fieldlens.study.plan import Job, Study
from fieldlens.study.state import StudyPaths, progress_of, record_of, state_of

UNFINISHED = ("missing", "partial", "running", "stale")
EVIDENT = ("corpus", "seed", "batch", "tokenizer")
"""Recipe fields that have their own columns or depend on others."""

FIRST = ("running", "failed", "partial", "stale", "diverged", "done", "missing")
"""Order of states when there is not enough room for all jobs."""


def called(recipes: Sequence[dict[str, Any]]) -> list[str]:
    """The names of runs: their schemes, with the fields that differ if a scheme has several recipes."""
    names = []
    for recipe in recipes:
        others = [other for other in recipes if other["scheme"] == recipe["scheme"]]
        keys = [key for key in recipe if key not in EVIDENT and any(other[key] != recipe[key] for other in others)]
        details = ", ".join(f"{'L_tr' if key == 'length' else key.replace('_', ' ')} {recipe[key]}" for key in keys)
        names.append(f"{recipe['scheme']} ({details})" if details else str(recipe["scheme"]))
    return names


def overview(
    study: Study, paths: StudyPaths, forecast: Forecast, texts: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """One row per job, read from files. `texts` are fingerprints of corpora, in addition to the study's pins."""
    rows = []
    names = called([asdict(job.recipe) for job in study.jobs])
    for job, name in zip(study.jobs, names, strict=True):
        state = state_of(job, paths, {**(texts or {}), **study.pins})
        progress = progress_of(job, paths) if state in ("running", "partial") else {}
        record = record_of(job, paths) or {}
        validation = record.get("validation") or []
        trained = _is_trained(job, paths, record)
        rows.append(
            {
                "name": job.name,
                "model": name,
                "scheme": job.recipe.scheme,
                "corpus": job.recipe.corpus,
                "seed": job.recipe.seed,
                "state": "diverged" if state == "done" and record.get("state") == "diverged" else state,
                "stage": progress.get("stage"),
                "done": 1.0 if state == "done" else forecast.done(job, progress),
                "loss": progress.get("loss"),
                "validation_perplexity": validation[-1][1] if validation else None,
                "seconds_left": forecast.left(job, progress, trained) if state in UNFINISHED else 0.0,
            }
        )
    return rows


def _is_trained(job: Job, paths: StudyPaths, record: dict[str, Any]) -> bool:
    """Whether the model of a stale result can be used again."""
    trained = (record.get("addresses") or {}).get("training") == job.training_hash
    return trained and (paths.work(job) / "model").is_dir()


def time_left(rows: list[dict[str, Any]], workers: int) -> float:
    """Expected seconds until the study is done with this number of workers."""
    seconds = [row["seconds_left"] for row in rows]
    return max([sum(seconds) / max(1, workers), *seconds], default=0.0)


def table(study: Study, rows: list[dict[str, Any]], workers: int, room: int | None = None) -> Table:
    """The overview as a table of at most `room` jobs."""
    title, left_out = headline(study, rows, workers), 0
    if room is not None and len(rows) > room:
        left_out = len(rows) - room
        rows = sorted(rows, key=lambda row: FIRST.index(row["state"]))[:room]
    several = len({row["corpus"] for row in rows}) > 1
    seeds = len({row["seed"] for row in rows}) > 1
    columns = ["model", *(["corpus"] if several else []), *(["seed"] if seeds else [])]
    cells = [
        [
            row["model"],
            *([row["corpus"]] if several else []),
            *([str(row["seed"])] if seeds else []),
            row["state"],
            _progress(row),
            _score(row),
            format_duration(row["seconds_left"]) if row["seconds_left"] else "",
        ]
        for row in rows
    ]
    if left_out:
        cells.append([f"and {left_out} more", *[""] * (len(columns) + 3)])
    return Table([*columns, "state", "progress", "loss", "left"], cells, title)


def headline(study: Study, rows: list[dict[str, Any]], workers: int) -> str:
    """The study in one line."""
    done = sum(row["state"] in ("done", "diverged") for row in rows)
    failed = sum(row["state"] == "failed" for row in rows)
    left = time_left(rows, workers)
    words = [f"{study.title}: {done} of {len(rows)} runs done"]
    words += [f"{failed} failed"] if failed else []
    words += [f"about {format_duration(left)} left"] if left else []
    return ", ".join(words)


def line(row: dict[str, Any]) -> str:
    """A job in one line, for output that is not a terminal."""
    detail = " ".join(part for part in (_progress(row), _score(row)) if part)
    return f"{row['name']}: {row['state']}{f' ({detail})' if detail else ''}"


def _progress(row: dict[str, Any]) -> str:
    if row["state"] == "running":
        return f"{row['stage'] or 'starting'} {row['done']:.0%}"
    return f"{row['done']:.0%}" if row["state"] == "partial" and row["done"] else ""


def _score(row: dict[str, Any]) -> str:
    if row["loss"] is not None:
        return f"{row['loss']:.3f}"
    perplexity = row["validation_perplexity"]
    return "" if perplexity is None else f"perplexity {perplexity:.1f}"
