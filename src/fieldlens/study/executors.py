"""Who does a study's jobs: child processes on this machine, or tasks of a Ray cluster that start the same processes."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from fieldlens.core.device import Machine
from fieldlens.core.errors import BadInput
from fieldlens.storage.atomic import replace_file
from fieldlens.study.plan import Job
from fieldlens.study.state import StudyPaths


@dataclass(frozen=True)
class Order:
    """A job with all that a process needs to do it."""

    job: Job
    places: StudyPaths
    corpus: str
    machine: Machine

    @property
    def file(self) -> Path:
        return self.places.work(self.job) / "job.json"

    def write(self) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        places = {key: str(Path(value).resolve()) for key, value in asdict(self.places).items()}
        content = {
            "name": self.job.name,
            "job": self.job.to_json(),
            "places": places,
            "corpus": self.corpus,
            "machine": asdict(self.machine),
        }
        replace_file(self.file, json.dumps(content).encode())


class Worker(Protocol):
    """One attempt at a job."""

    def code(self) -> int | None:
        """How it ended, None while it goes on."""

    def stop(self, now: bool = False) -> None:
        """Ask it to end, or end it."""


class Executor(Protocol):
    """Where jobs are done."""

    queues: bool
    """Whether a job that was started may have to wait."""

    @property
    def room(self) -> int:
        """How many at a time."""

    def start(self, order: Order) -> Worker:
        """Begin a job."""

    def close(self) -> None:
        """Give back what was taken."""


def process(file: Path, log: Path, threads: int | None, nice: int) -> subprocess.Popen[bytes]:
    """A process that does a job; it ends when the one that started it does."""
    environment = dict(os.environ)
    if threads is not None:
        environment |= {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "fieldlens.study.job", str(file), str(nice)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the controller, which then asks its workers
        )


class _Child:
    def __init__(self, started: subprocess.Popen[bytes]) -> None:
        self.process = started

    def code(self) -> int | None:
        found = self.process.poll()
        if found is not None and self.process.stdin:
            self.process.stdin.close()
        return found

    def stop(self, now: bool = False) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if now else signal.SIGTERM)


class Local:
    """Child processes, one per core."""

    queues = False

    def __init__(self, workers: int, nice: int = 0) -> None:
        self.workers, self.nice = workers, nice

    @property
    def room(self) -> int:
        return self.workers

    def start(self, order: Order) -> Worker:
        order.write()
        return _Child(process(order.file, order.places.log(order.job), order.machine.threads, self.nice))

    def close(self) -> None:
        pass


class Ray:
    """Tasks on a Ray cluster, an existing one or this machine's own. Folders must lie where all nodes see them."""

    queues = True

    def __init__(self, address: str | None, cpus: float, gpus: float, nice: int = 0) -> None:
        try:
            import ray
        except ImportError:
            raise BadInput("--executor ray needs Ray: pip install 'fieldlens[ray]'") from None
        self.ray, self.nice = ray, nice
        try:
            ray.init(address=address or "local", log_to_driver=False, include_dashboard=False, logging_level="ERROR")
        except (ConnectionError, RuntimeError, ValueError) as error:
            where = f"at '{address}'" if address else "could be started here"
            raise BadInput(f"no Ray cluster {where}: {' '.join(str(error).split())[:200]}") from None
        self.task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_task)

    @property
    def room(self) -> int:
        """Ray is given everything, and decides."""
        return sys.maxsize

    def start(self, order: Order) -> Worker:
        order.write()
        log = order.places.log(order.job).resolve()
        ours = {name: value for name, value in os.environ.items() if name.startswith(("FIELDLENS_", "PYTHONPATH"))}
        task = self.task.remote(str(order.file.resolve()), str(log), order.machine.threads, self.nice, ours)
        return _Task(self.ray, task)

    def close(self) -> None:
        self.ray.shutdown()


def _task(file: str, log: str, threads: int | None, nice: int, environment: dict[str, str]) -> int:
    """What a node of the cluster does."""
    os.environ.update(environment)
    with process(Path(file), Path(log), threads, nice) as child:
        try:
            while child.poll() is None:  # not wait(), which would close the pipe that says that we live
                time.sleep(0.2)
        finally:  # also when cancelled
            child.terminate()
    return child.returncode


class _Task:
    def __init__(self, ray: Any, reference: Any) -> None:
        self.ray, self.reference = ray, reference

    def code(self) -> int | None:
        done, _ = self.ray.wait([self.reference], timeout=0)
        if not done:
            return None
        try:
            return int(self.ray.get(self.reference))
        except self.ray.exceptions.RayError:  # a worker or its node died, or the task was cancelled
            return -1

    def stop(self, now: bool = False) -> None:
        self.ray.cancel(self.reference, force=now)
