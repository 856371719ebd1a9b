"""What a person sees of a study while it runs: every job with its state, progress, loss and time left."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from fieldlens.core.format import format_duration
from fieldlens.reporting.table import Table
from fieldlens.study.forecast import Forecast
from fieldlens.study.plan import Job, Study
from fieldlens.study.state import StudyPaths, progress_of, result_of, state_of

UNFINISHED = ("missing", "partial", "running", "stale")
EVIDENT = ("corpus", "seed", "batch", "tokenizer")
"""Fields that have columns of their own, or follow others."""

FIRST = ("running", "failed", "partial", "stale", "diverged", "done", "missing")
"""What is shown first where there is no room for all."""


def called(recipes: Sequence[dict[str, Any]]) -> list[str]:
    """Runs by their schemes; with what tells them apart where a scheme has several recipes."""
    found = []
    for recipe in recipes:
        alike = [other for other in recipes if other["scheme"] == recipe["scheme"]]
        keys = [key for key in recipe if key not in EVIDENT and any(other[key] != recipe[key] for other in alike)]
        details = ", ".join(f"{'L_tr' if key == 'length' else key.replace('_', ' ')} {recipe[key]}" for key in keys)
        found.append(f"{recipe['scheme']} ({details})" if details else str(recipe["scheme"]))
    return found


def overview(
    study: Study, places: StudyPaths, forecast: Forecast, texts: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """One row per job, from files alone; `texts` are those that corpora have, beside what the study pins."""
    rows = []
    names = called([asdict(job.recipe) for job in study.jobs])
    for job, name in zip(study.jobs, names, strict=True):
        state = state_of(job, places, {**(texts or {}), **study.pins})
        said = progress_of(job, places) if state in ("running", "partial") else {}
        result = result_of(job, places) or {}
        checks = result.get("validation") or []
        rows.append(
            {
                "name": job.name,
                "model": name,
                "scheme": job.recipe.scheme,
                "corpus": job.recipe.corpus,
                "seed": job.recipe.seed,
                "state": "diverged" if state == "done" and result.get("state") == "diverged" else state,
                "stage": said.get("stage"),
                "done": 1.0 if state == "done" else forecast.done(job, said),
                "loss": said.get("loss"),
                "validation_perplexity": checks[-1][1] if checks else None,
                "seconds_left": forecast.left(job, said, _is_trained(job, places, result))
                if state in UNFINISHED
                else 0.0,
            }
        )
    return rows


def _is_trained(job: Job, places: StudyPaths, result: dict[str, Any]) -> bool:
    """Whether only what follows training is to be done again."""
    trained = (result.get("addresses") or {}).get("training") == job.training_hash
    return trained and (places.work(job) / "model").is_dir()


def time_left(rows: list[dict[str, Any]], workers: int) -> float:
    """Seconds until the study is done by so many workers."""
    each = [row["seconds_left"] for row in rows]
    return max([sum(each) / max(1, workers), *each], default=0.0)


def table(study: Study, rows: list[dict[str, Any]], workers: int, room: int | None = None) -> Table:
    """The overview as a table, of so many lines at most."""
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
    over = sum(row["state"] in ("done", "diverged") for row in rows)
    lost = sum(row["state"] == "failed" for row in rows)
    left = time_left(rows, workers)
    words = [f"{study.title}: {over} of {len(rows)} runs done"]
    words += [f"{lost} failed"] if lost else []
    words += [f"about {format_duration(left)} left"] if left else []
    return ", ".join(words)


def line(row: dict[str, Any]) -> str:
    """A job in one line, for where there is no terminal."""
    detail = " ".join(part for part in (_progress(row), _score(row)) if part)
    return f"{row['name']}: {row['state']}{f' ({detail})' if detail else ''}"


def _progress(row: dict[str, Any]) -> str:
    if row["state"] == "running":
        return f"{row['stage'] or 'starts'} {row['done']:.0%}"
    return f"{row['done']:.0%}" if row["state"] == "partial" and row["done"] else ""


def _score(row: dict[str, Any]) -> str:
    if row["loss"] is not None:
        return f"{row['loss']:.3f}"
    found = row["validation_perplexity"]
    return "" if found is None else f"perplexity {found:.1f}"
