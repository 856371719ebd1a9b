"""Hostile text in every report, opened in Chromium: no script runs, no request leaves, nothing is reported."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import short_training as training
import small_studies
from newcomer import save_model

from campaign.piece import RIGHT, Outcome, Piece, forked, skipped, wrong
from campaign.worlds import FREE, World, run_study
from fieldlens.storage.sealed import read_sealed, write_sealed

HOSTILE = (
    "<script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    "</script><script>window.hacked=1</script>",
    "'\"><svg onload=window.hacked=1>",
    "javascript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "<a href=javascript:window.hacked=1 autofocus onfocus=window.hacked=1>",
    "](javascript:window.hacked=1)",
    "<!--",
    "<style>@import 'http://127.0.0.1:9/x'</style>",
    "<iframe src=http://127.0.0.1:9></iframe>",
    "\u202e\u2028</title>",
    "`${window.hacked=1}`",
    "&lt;script&gt;window.hacked=1",
    "<base href=http://127.0.0.1:9>",
    "<meta http-equiv=refresh content=0>",
)


class Context(NamedTuple):
    """A world, and a browser or the reason why there is none."""

    world: World
    browser: Any
    reason: str


def prepare(folder: Path) -> Context:
    world = World(folder)
    training.write_corpus(folder / "corpus", 60)
    run_study(world)
    save_model(folder / "model")
    return Context(world, *_browser())


def _browser() -> tuple[Any, str]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None, "needs playwright"
    names = ("chromium", "chromium-browser", "google-chrome")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    if program is None:
        return None, "needs Chromium: make browser, or its path in CHROMIUM"
    arguments = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    return sync_playwright().start().chromium.launch(executable_path=program, args=arguments), ""


def cases(_: Context) -> Sequence[str]:
    return [f"{report}:{number}" for report in ("measure", "study") for number in range(len(HOSTILE))]


def run(context: Context, case: str) -> Outcome:
    report, number = case.split(":")
    folder = context.world.folder / case.replace(":", "-")
    make = _measure_report if report == "measure" else _study_report
    page = make(context.world, folder, HOSTILE[int(number)])
    if isinstance(page, str):
        return wrong(page)
    return _open(context.browser, page) if context.browser is not None else skipped(context.reason)


def _measure_report(world: World, folder: Path, text: str) -> Path | str:
    """The report of a model, a text and a file with hostile names and content; a message if it fails."""
    name = text.replace("/", "∕").replace("\x00", "")[:80]
    folder.mkdir()
    shutil.copytree(world.folder / "model", folder / name)
    (folder / f"{name}.txt").write_text((text + " words and more of them ") * 40)
    words = [
        "measure",
        name,
        "--text",
        f"{name}.txt",
        "--length",
        "24",
        "--segments",
        "3",
        "--probe",
        "--check",
        "--targets",
        "4",
    ]
    ended = forked([*words, "--threads", "1", "--out", "lens"], folder, FREE, **world.settings)
    return folder / "lens" / "report.html" if ended.code == 0 else f"exit {ended.code}: {ended.err}"


def _study_report(world: World, folder: Path, text: str) -> Path | str:
    """The report of a study whose title, corpus, model names, reasons and versions are hostile."""
    shutil.copytree(world.folder / "results", folder / "results")
    study = json.loads((folder / "results" / "study.json").read_text())
    (folder / "results" / "study.json").write_text(json.dumps(study | {"title": text, "name": text}))
    (job,) = (path for path in (folder / "results").iterdir() if path.is_dir())
    for file in (*job.glob("evaluation-*.json"), job / "measurement.json"):
        content = read_sealed(file)
        content["model"]["name"] = content["data"]["corpus"] = text
        content["versions"]["fieldlens"] = text
        write_sealed(file, content)
    record = read_sealed(job / "result.json")
    record["recipe"]["corpus"] = record["versions"]["fieldlens"] = record["reason"] = text
    write_sealed(job / "result.json", record)
    small_studies.rewrite_record(job)
    ended = forked(["study", "results", "--report"], folder, FREE, **world.settings)
    return folder / "results" / "report.html" if ended.code == 0 else f"exit {ended.code}: {ended.err}"


def _open(browser: Any, path: Path) -> Outcome:
    events: list[str] = []
    page = browser.new_page()
    page.on("console", lambda message: events.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: events.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (events.append("dialog"), dialog.dismiss()))
    page.on("request", lambda request: request.url == path.as_uri() or events.append(f"request: {request.url}"))
    page.goto(path.as_uri())
    for details in page.query_selector_all("details:not([open]) > summary"):
        details.click()
    hacked = page.evaluate("window.hacked")
    page.close()
    return RIGHT if not events and hacked is None else wrong(f"{events[:3]}, hacked: {hacked}")


PIECE = Piece("browser", "hostile text in any report runs no script and sends no request", prepare, cases, run)
