"""One job: train, evaluate, measure, and write one small result. Finished stages are not repeated.

Each job runs in its own process, `python -m fieldlens.study.job FILE NICE`, so that a crash affects no other job.
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
from fieldlens.core.errors import BadInput, explain
from fieldlens.core.events import Event, Progress, TrainingStep
from fieldlens.data.corpus import open_corpus
from fieldlens.data.text import read_text
from fieldlens.data.tokens import tokenize
from fieldlens.evaluation.evaluate import draw_anchors
from fieldlens.evaluation.evaluate_models import evaluate_all
from fieldlens.evaluation.request import EvalRequest
from fieldlens.evaluation.result import Evaluation
from fieldlens.evaluation.statistics import finite
from fieldlens.receptive.measure_models import measure_all, remove_journals
from fieldlens.receptive.request import MeasureRequest
from fieldlens.receptive.result import Measurement, save_measurement
from fieldlens.storage.atomic import hash_of, replace_file, touch_disk
from fieldlens.storage.records import EvaluationRecord, MeasurementRecord, ModelRecord
from fieldlens.storage.run_dir import Occupied, Run, locked
from fieldlens.storage.sealed import read_json, write_sealed
from fieldlens.study.plan import Job, job_from, request_fields
from fieldlens.study.result_folder import RECORD
from fieldlens.study.state import StudyPaths, state_of
from fieldlens.training.loop import train
from fieldlens.training.recipe import Recipe, RunOptions
from fieldlens.training.update import Diverged

SAVE_EVERY = 50
"""Maximum number of steps between checkpoints, which is what a killed worker loses."""

GRACE = 60.0
"""Seconds that a worker has to save and exit."""

KIND = "fieldlens result"

PREPARING = "prepare"
"""The stage that tokenizes the corpus. It reports no progress and may take long."""


class JobProgress:
    """The progress of a job, written to a file that other processes read."""

    def __init__(self, paths: StudyPaths, job: Job) -> None:
        self.path, self.clock = paths.progress(job), paths.timings(job)
        self.stage, self.reported, self.part = "", 0.0, (0, 1)
        """`part` is (index, number of parts) within the stage."""
        self.start: tuple[float, float] | None = None
        """Time of the first progress in this stage by this attempt, and the share that was done then."""
        self.seconds: dict[str, float] = {}
        with suppress(BadInput):
            self.seconds = read_json(self.clock)

    @contextmanager
    def at(self, stage: str) -> Iterator[None]:
        """Count the time of the block for a stage."""
        start = time.monotonic(), time.process_time()
        # the CPU time is complete only if every earlier attempt recorded its own
        complete = stage not in self.seconds or f"{stage}_cpu" in self.seconds
        self.stage, self.start, self.part = stage, None, (0, 1)
        print(stage, flush=True)  # into the job's log
        self.tell(force=True)
        try:
            yield
        finally:
            self._add_seconds(stage, time.monotonic() - start[0])
            if complete:
                self._add_seconds(f"{stage}_cpu", time.process_time() - start[1])
            replace_file(self.clock, json.dumps(self.seconds).encode())

    def _add_seconds(self, key: str, seconds: float) -> None:
        self.seconds[key] = round(self.seconds.get(key, 0.0) + seconds, 1)

    def tell(self, done: float = 0.0, force: bool = False, **details: Any) -> None:
        """Report the share of the stage that is done, from 0 to 1; at most once per second unless forced."""
        now = time.monotonic()
        if not force and now - self.reported < 1:
            return
        self.reported = now
        if self.start is None and done > 0:
            self.start = now, done
        since, before = self.start or (now, done)
        rate = (done - before) / (now - since) if now - since > 5 else None
        temporary = self.path.with_suffix(".new")
        temporary.write_text(
            json.dumps({"pid": os.getpid(), "stage": self.stage, "done": done, "rate": rate, **details})
        )  # not worth an fsync
        os.replace(temporary, self.path)

    def watch(self, event: Event) -> None:
        """Report an event of a training, an evaluation or a measurement."""
        if isinstance(event, TrainingStep):
            self.tell(event.step / event.steps, step=event.step, steps=event.steps, loss=finite(event.loss))
        elif isinstance(event, Progress):
            number, count = self.part
            self.tell((number + event.done / event.total) / count)


def perform(job: Job, paths: StudyPaths, corpus: str, machine: Machine) -> None:
    """Run the stages of a job that are missing, and write its result."""
    machine.set_limits()
    work = paths.work(job)
    with locked(paths.lock(job), f"{work}: another process is working on this job"):
        text = open_corpus(corpus).fingerprint()
        if state_of(job, paths, {job.recipe.corpus: text}, locks=False) == "done":
            return
        _discard_other_text(text, work)
        progress = JobProgress(paths, job)
        recipe = dataclasses.replace(job.recipe, corpus=corpus)
        with progress.at(PREPARING):  # not counted as training: the first job tokenizes for all
            tokenizer = Path(recipe.tokenizer) if recipe.tokenizer else None
            tokens = tokenize(open_corpus(corpus), recipe.bpe, tokenizer, recipe.max_bytes)
            _check_lengths(job, corpus, tokens.tokenizer)
        with progress.at("train"):
            _train(recipe, work, machine, progress)
        device, dtype = machine.start()
        run = Run(work)
        if run.read_status()["state"] == "diverged":
            _finish(job, paths, run, text, [], None)
            return
        evaluations = []
        with progress.at("evaluate"):
            for number, request in enumerate(job.evaluations):
                progress.part = (number, len(job.evaluations))
                evaluations.append(_evaluate(request, corpus, work, device, dtype, progress))
        measurement = None
        if job.measurement is not None:
            with progress.at("measure"):
                measure_request = MeasureRequest(**job.measurement, corpus=corpus)
                (measurement,) = measure_all(
                    [str(work)], measure_request, device=device, dtype=dtype, watch=progress.watch, journals=work
                )
        _finish(job, paths, run, text, evaluations, measurement)
        remove_journals(work)


def _check_lengths(job: Job, corpus: str, tokenizer: Path) -> None:
    """Raise BadInput, before training, if the text is too short for an evaluation or the measurement."""
    requests = [EvalRequest(corpus, **request_fields(request)) for request in job.evaluations]
    if job.measurement is not None:
        measure = MeasureRequest(**job.measurement)
        if measure.length:
            requests.append(EvalRequest(corpus, (measure.length,), measure.segments, split=measure.split))
    for request in requests:
        text = read_text(corpus, request.split, tokenizer, progress=False)
        draw_anchors(text.documents, request.plan(request.lengths, text.bos))


def _discard_other_text(text: str, work: Path) -> None:
    """Delete checkpoints, models and evaluations that belong to another text."""
    mark = work / "text"
    if mark.exists() and mark.read_text() != text:
        for name in ("checkpoints", "model", "evaluations"):
            touch_disk()
            shutil.rmtree(work / name, ignore_errors=True)
        for name in ("status.json", "metrics.jsonl", "timings.json", "config.json"):
            _remove(work / name)
    replace_file(mark, text.encode())


def _train(recipe: Recipe, work: Path, machine: Machine, progress: JobProgress) -> None:
    with suppress(Diverged):  # recorded in the result
        train(
            recipe,
            work,
            resume=True,
            machine=machine,
            options=RunOptions(save_every=max(1, min(SAVE_EVERY, recipe.steps // 4))),
            watch=progress.watch,
        )


def _evaluate(
    request: dict[str, Any], corpus: str, work: Path, device: torch.device, dtype: torch.dtype, progress: JobProgress
) -> Evaluation:
    ((_, evaluation),) = evaluate_all(
        [str(work)], EvalRequest(corpus, **request_fields(request)), out=work / "evaluations",
        device=device, dtype=dtype, watch=progress.watch,
    )  # fmt: skip
    return evaluation


def _finish(
    job: Job, paths: StudyPaths, run: Run, text: str, evaluations: list[Evaluation], measurement: Measurement | None
) -> None:
    """Write the result; its record is written last and makes it complete."""
    folder, config_hashes = paths.result(job), job.config_hashes
    touch_disk()
    folder.mkdir(parents=True, exist_ok=True)
    replace_file(folder / "timings.json", paths.timings(job).read_bytes())
    files = []
    triples = zip(job.evaluations, evaluations, config_hashes["evaluations"], strict=bool(evaluations))
    for request, evaluation, config_hash in triples:
        record: EvaluationRecord = {
            **evaluation.about,
            "model": _model(evaluation.about["model"], job),
            "asked": request,
        }
        record.pop("seconds", None)
        name = f"evaluation-{config_hash[:8]}"
        dataclasses.replace(evaluation, about=record).save(folder / f"{name}.json")
        files += [f"{name}.json", f"{name}.npz"]
    if measurement is not None:
        about: MeasurementRecord = {**measurement.about, "model": _model(measurement.about["model"], job)}
        about.pop("command", None)  # it names a folder
        save_measurement(dataclasses.replace(measurement, about=about), folder / "measurement.json")
        files += ["measurement.json", "measurement.npz"]
    hashes = {name: hash_of(folder / name) for name in (*files, "timings.json")}
    write_sealed(folder / RECORD, _result(job, run, text) | {"addresses": config_hashes, "files": hashes})
    for path in (*folder.glob("evaluation-*"), *folder.glob("measurement.*"), paths.failure(job)):
        if path.name not in files:  # of an earlier result
            _remove(path)
    for path in (paths.progress(job), paths.attempts(job)):
        _remove(path)


def _remove(path: Path) -> None:
    touch_disk()
    path.unlink(missing_ok=True)


def _model(about: ModelRecord, job: Job) -> ModelRecord:
    """The model's record in a result: without its folder, with the recipe of the job."""
    record: ModelRecord = {**about, "recipe": dataclasses.asdict(job.recipe)}
    record.pop("folder", None)
    return record


def _result(job: Job, run: Run, text: str) -> dict[str, Any]:
    status, config = run.read_status(), run.read(run.config)
    validations = [row for row in run.history() if row.get("validation_perplexity") is not None]
    return {
        "kind": KIND,
        "state": "diverged" if status["state"] == "diverged" else "done",
        "reason": status.get("reason", ""),
        **job.to_json(),
        "text": text,
        "data": config["experiment"]["data"],
        "parameters": config["parameters"],
        "unigram_perplexity": config["unigram_perplexity"],
        "validation": [[row["step"], finite(row["validation_perplexity"])] for row in validations],
        "versions": config["versions"],
        "machine": config["machine"],
        **({"later": config["later"]} if "later" in config else {}),
    }


def _end_with_parent() -> None:
    """Save and exit when the parent process has ended, which closes standard input."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin, whose lock a thread must not hold when Python exits
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(GRACE)  # to save
        os.kill(os.getpid(), signal.SIGKILL)  # it hangs, and would keep its lock

    threading.Thread(target=wait, daemon=True).start()


def step_back(nice: int) -> None:
    """Lower this process's priority."""
    os.nice(nice)
    if nice:
        # with autogroups, Linux divides CPU time between sessions first, and a worker is a session of its own
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def main() -> None:
    file, nice = sys.argv[1:]
    step_back(int(nice))
    order = json.loads(Path(file).read_text())
    _end_with_parent()
    try:
        paths = StudyPaths(**{key: Path(value) for key, value in order["places"].items()})
        job = job_from(order["job"])
        if job.name != order["name"]:
            raise BadInput(
                f"the file of scheme '{job.recipe.scheme}' has changed since the study was started: "
                "run the same command again"
            )
        perform(job, paths, order["corpus"], Machine(**order["machine"]))
    except Occupied:
        return  # another process does it
    except Exception as error:
        explanation = explain(error)
        if explanation is None:
            raise
        print(f"fieldlens: {explanation[0]}", file=sys.stderr)
        sys.exit(explanation[1])


if __name__ == "__main__":
    main()
