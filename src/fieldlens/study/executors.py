"""Executors run the jobs of a study: as child processes, or as Ray tasks that start the same processes."""

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
from fieldlens.storage.atomic import replace_file, touch_disk
from fieldlens.study.plan import Job
from fieldlens.study.state import StudyPaths


@dataclass(frozen=True)
class Order:
    """A job with everything that a worker process needs."""

    job: Job
    paths: StudyPaths
    corpus: str
    machine: Machine

    @property
    def file(self) -> Path:
        return self.paths.work(self.job) / "job.json"

    def write(self) -> None:
        touch_disk()
        self.file.parent.mkdir(parents=True, exist_ok=True)
        paths = {key: str(Path(value).resolve()) for key, value in asdict(self.paths).items()}
        content = {
            "name": self.job.name,
            "job": self.job.to_json(),
            "places": paths,
            "corpus": self.corpus,
            "machine": asdict(self.machine),
        }
        replace_file(self.file, json.dumps(content).encode())


class Worker(Protocol):
    """One attempt at a job."""

    def code(self) -> int | None:
        """The exit code; None while it is running."""

    def stop(self, now: bool = False) -> None:
        """Send SIGTERM, or kill it `now`."""


class Executor(Protocol):
    """Starts workers."""

    queues: bool
    """Whether a started job may wait in a queue."""

    @property
    def room(self) -> int:
        """Maximum number of jobs at a time."""

    def start(self, order: Order) -> Worker:
        """Start a job."""

    def close(self) -> None:
        """Release resources."""


def process(file: Path, log: Path, threads: int | None, nice: int) -> subprocess.Popen[bytes]:
    """Start a worker process; it exits when this process does."""
    environment = dict(os.environ)
    if threads is not None:
        environment |= {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    touch_disk()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as out:
        return subprocess.Popen(
            [sys.executable, "-m", "fieldlens.study.job", str(file), str(nice)],
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=environment,
            start_new_session=True,  # Ctrl-C reaches only the controller, which then stops its workers
        )


class _Child:
    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        self.process = child

    def code(self) -> int | None:
        code = self.process.poll()
        if code is not None and self.process.stdin:
            self.process.stdin.close()
        return code

    def stop(self, now: bool = False) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if now else signal.SIGTERM)


class Local:
    """Runs `workers` child processes at a time."""

    queues = False

    def __init__(self, workers: int, nice: int = 0) -> None:
        self.workers, self.nice = workers, nice

    @property
    def room(self) -> int:
        return self.workers

    def start(self, order: Order) -> Worker:
        order.write()
        return _Child(process(order.file, order.paths.log(order.job), order.machine.threads, self.nice))

    def close(self) -> None:
        pass


class Ray:
    """Tasks on a Ray cluster: an existing one, or a local one. All nodes must share the folders."""

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
            problem = (
                f"cannot connect to a Ray cluster at '{address}'" if address else "cannot start a local Ray cluster"
            )
            raise BadInput(f"{problem}: {' '.join(str(error).split())[:200]}") from None
        self.task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(_task)

    @property
    def room(self) -> int:
        """No limit: Ray queues the jobs."""
        return sys.maxsize

    def start(self, order: Order) -> Worker:
        order.write()
        log = order.paths.log(order.job).resolve()
        prefixes = ("FIELDLENS_", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if name.startswith(prefixes)}
        task = self.task.remote(str(order.file.resolve()), str(log), order.machine.threads, self.nice, environment)
        return _Task(self.ray, task)

    def close(self) -> None:
        self.ray.shutdown()


def _task(file: str, log: str, threads: int | None, nice: int, environment: dict[str, str]) -> int:
    """Run a job on a node of the cluster and return its exit code."""
    os.environ.update(environment)
    with process(Path(file), Path(log), threads, nice) as child:
        try:
            while child.poll() is None:  # not wait(), which would close the pipe to the worker
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
