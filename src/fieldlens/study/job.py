"""One job: train, evaluate, measure, and leave one small result. Any of it that is there already is not done again.

Run as a process of its own, `python -m fieldlens.study.job FILE NICE`, so that whatever kills it kills nothing else.
"""

import dataclasses
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput, FieldlensError
from fieldlens.data.corpus import open_corpus
from fieldlens.data.text import read_text
from fieldlens.data.tokens import tokenize
from fieldlens.evaluation.command import EvalRequest, evaluate_all
from fieldlens.evaluation.evaluate import draw_anchors
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import finite
from fieldlens.receptive.command import measure_all
from fieldlens.receptive.result import Measurement, MeasureRequest, save_measurement
from fieldlens.storage.atomic import replace_file
from fieldlens.storage.content_cache import hash_of
from fieldlens.storage.results import write_json
from fieldlens.storage.run_dir import Occupied, Run, locked
from fieldlens.study.plan import Job, job_from, question
from fieldlens.study.state import StudyPaths, state_of
from fieldlens.training.loop import train
from fieldlens.training.recipe import Recipe, RunOptions
from fieldlens.training.trainer import Diverged

SAVE_EVERY = 50
"""Steps between checkpoints: what a killed worker loses at most."""

GRACE = 60.0
"""Seconds that a worker has to save and leave."""

KIND = "fieldlens result"

PREPARING = "prepare"
"""The stage in which a corpus becomes tokens. It tells nothing while it works, and may take long."""


class Progress:
    """What a job says of itself while it works, in a file that anybody may read."""

    def __init__(self, places: StudyPaths, job: Job) -> None:
        self.path, self.clock = places.progress(job), places.timings(job)
        self.stage, self.told, self.part = "", 0.0, (0, 1)
        """Of a stage: which part this is, of how many."""
        self.start: tuple[float, float] | None = None
        """When this attempt first got something done of the stage, and how much was done by then."""
        self.seconds: dict[str, float] = {}
        with suppress(OSError, ValueError):
            self.seconds = json.loads(self.clock.read_text())

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """While this holds, time is counted for a stage."""
        begun = time.monotonic(), time.process_time()
        # an attempt whose own time was not noted makes that of the others say too little
        whole = stage not in self.seconds or f"{stage}_cpu" in self.seconds
        self.stage, self.start, self.part = stage, None, (0, 1)
        print(stage, flush=True)  # into the job's log
        self.tell(force=True)
        try:
            yield
        finally:
            self._count(stage, time.monotonic() - begun[0])
            if whole:
                self._count(f"{stage}_cpu", time.process_time() - begun[1])
            replace_file(self.clock, json.dumps(self.seconds).encode())

    def _count(self, what: str, seconds: float) -> None:
        self.seconds[what] = round(self.seconds.get(what, 0.0) + seconds, 1)

    def tell(self, done: float = 0.0, force: bool = False, **more: Any) -> None:
        """How much of the stage is done, between 0 and 1; at most once a second."""
        now = time.monotonic()
        if not force and now - self.told < 1:
            return
        self.told = now
        if self.start is None and done > 0:
            self.start = now, done
        since, before = self.start or (now, done)
        rate = (done - before) / (now - since) if now - since > 5 else None
        temporary = self.path.with_suffix(".new")
        temporary.write_text(
            json.dumps({"pid": os.getpid(), "stage": self.stage, "done": done, "rate": rate, **more})
        )  # not worth an fsync
        os.replace(temporary, self.path)

    def step(self, row: dict[str, Any]) -> None:
        if "step" in row:
            self.tell(row["step"] / row["steps"], step=row["step"], steps=row["steps"], loss=finite(row["loss"]))

    def event(self, event: dict[str, Any]) -> None:
        if "done" in event:
            number, count = self.part
            self.tell((number + event["done"] / event["total"]) / count)


def perform(job: Job, places: StudyPaths, corpus: str, machine: Machine) -> None:
    """Do what is missing of a job."""
    work = places.work(job)
    with locked(places.lock(job), f"{work}: another process works on this job"):
        text = open_corpus(corpus).fingerprint()
        if state_of(job, places, {job.recipe.corpus: text}, locks=False) == "done":
            return
        _start_afresh_with(text, work)
        progress = Progress(places, job)
        recipe = dataclasses.replace(job.recipe, corpus=corpus)
        with progress.at(PREPARING):  # not counted as training: whoever is first makes the tokens for all
            given = Path(recipe.tokenizer) if recipe.tokenizer else None
            tokens = tokenize(open_corpus(corpus), recipe.bpe, given, recipe.max_bytes)
            _check_room(job, corpus, tokens.tokenizer)
        with progress.at("train"):
            _train(recipe, work, machine, progress)
        device, dtype = machine.start()
        run = Run(work)
        if run.read(run.status)["state"] == "diverged":
            _finish(job, places, run, text, [], None)
            return
        found = []
        with progress.at("evaluate"):
            for number, asked in enumerate(job.evaluations):
                progress.part = (number, len(job.evaluations))
                found.append(_evaluate(asked, corpus, work, device, dtype, progress))
        measured = None
        if job.measurement is not None:
            with progress.at("measure"):
                wanted = MeasureRequest(**job.measurement, corpus=corpus)
                (measured,) = measure_all([str(work)], wanted, device, dtype, progress.event)
        _finish(job, places, run, text, found, measured)


def _check_room(job: Job, corpus: str, tokenizer: Path) -> None:
    """Refuse, before anything is trained, what the text has no room for."""
    asked = [EvalRequest(corpus, **question(one)) for one in job.evaluations]
    if job.measurement is not None:
        wanted = MeasureRequest(**job.measurement)
        if wanted.length:
            asked.append(EvalRequest(corpus, (wanted.length,), wanted.segments, split=wanted.split))
    for one in asked:
        text = read_text(corpus, one.split, tokenizer, progress=False)
        draw_anchors(text.documents, one.plan(one.lengths, text.bos))


def _start_afresh_with(text: str, work: Path) -> None:
    """Drop what was made from another text."""
    mark = work / "text"
    if mark.exists() and mark.read_text() != text:
        for name in ("checkpoints", "model", "evaluations"):
            shutil.rmtree(work / name, ignore_errors=True)
        for name in ("status.json", "metrics.jsonl", "timings.json", "config.json"):
            (work / name).unlink(missing_ok=True)
    mark.write_text(text)


def _train(recipe: Recipe, work: Path, machine: Machine, progress: Progress) -> None:
    with suppress(Diverged):  # a result like any other
        train(
            recipe,
            work,
            resume=True,
            machine=machine,
            options=RunOptions(save_every=max(1, min(SAVE_EVERY, recipe.steps // 4))),
            watch=progress.step,
        )


def _evaluate(
    asked: dict[str, Any], corpus: str, work: Path, device: torch.device, dtype: torch.dtype, progress: Progress
) -> Evaluation:
    ((_, found),) = evaluate_all(
        [str(work)], EvalRequest(corpus, **question(asked)), work / "evaluations", device, dtype, progress.event
    )
    return found


def _finish(
    job: Job, places: StudyPaths, run: Run, text: str, found: list[Evaluation], measured: Measurement | None
) -> None:
    """Write the result; its last file says that all of it is there."""
    folder, config_hashes = places.result(job), job.config_hashes
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(places.timings(job), folder / "timings.json")
    files = []
    for asked, one, address in zip(job.evaluations, found, config_hashes["evaluations"], strict=bool(found)):
        about = {key: value for key, value in one.about.items() if key != "seconds"}
        about |= {"model": _model(about["model"], job), "asked": asked}
        name = f"evaluation-{address[:8]}"
        dataclasses.replace(one, about=about).save(folder / f"{name}.json")
        files += [f"{name}.json", f"{name}.npz"]
    if measured is not None:
        about = measured.about | {"model": _model(measured.about["model"], job)}
        save_measurement(dataclasses.replace(measured, about=about), folder / "measurement.json")
        files += ["measurement.json", "measurement.npz"]
    hashes = {name: hash_of(folder / name) for name in files}
    write_json(folder / "result.json", _result(job, run, text) | {"addresses": config_hashes, "files": hashes})
    for path in (*folder.glob("evaluation-*"), *folder.glob("measurement.*"), places.failure(job)):
        if path.name not in files:  # of an earlier question
            path.unlink(missing_ok=True)
    for path in (places.progress(job), places.attempts(job)):
        path.unlink(missing_ok=True)


def _model(about: dict[str, Any], job: Job) -> dict[str, Any]:
    """What a result says of the model: nothing of where it lay."""
    return {**{key: value for key, value in about.items() if key != "folder"}, "recipe": dataclasses.asdict(job.recipe)}


def _result(job: Job, run: Run, text: str) -> dict[str, Any]:
    status, config = run.read(run.status), run.read(run.config)
    checks = [row for row in run.history() if row.get("validation_perplexity") is not None]
    return {
        "kind": KIND,
        "state": "diverged" if status["state"] == "diverged" else "done",
        "reason": status.get("reason", ""),
        **job.to_json(),
        "text": text,
        "data": config["experiment"]["data"],
        "parameters": config["parameters"],
        "unigram_perplexity": config["unigram_perplexity"],
        "validation": [[row["step"], finite(row["validation_perplexity"])] for row in checks],
        "versions": config["versions"],
        "machine": config["machine"],
        **({"later": config["later"]} if "later" in config else {}),
    }


def _end_with_parent() -> None:
    """When whoever started this process is gone, end as if asked to: save, and leave."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock a thread may not hold when Python ends
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)  # to save
        os.kill(os.getpid(), signal.SIGKILL)  # it hangs, and would hold its lock for ever

    threading.Thread(target=wait, daemon=True).start()


def step_back(nice: int) -> None:
    """Lower this process's priority."""
    os.nice(nice)
    if nice:
        # Linux may share the cores out among sessions, and a worker is one: its niceness would count only inside it.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def main() -> None:
    file, nice = sys.argv[1:]
    step_back(int(nice))
    given = json.loads(Path(file).read_text())
    _end_with_parent()
    try:
        places = StudyPaths(**{key: Path(value) for key, value in given["places"].items()})
        job = job_from(given["job"])
        if job.name != given["name"]:
            raise BadInput(
                f"the file of scheme '{job.recipe.scheme}' has changed since the study was started: start again"
            )
        perform(job, places, given["corpus"], Machine(**given["machine"]))
    except Occupied:
        return  # somebody else does it
    except FieldlensError as error:
        print(f"fieldlens: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
