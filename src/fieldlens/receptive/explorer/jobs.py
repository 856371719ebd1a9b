"""One thread that runs jobs one after another: the model is used by one request at a time."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

QUEUE = 64
"""Maximum number of jobs that wait."""


class Cancelled(Exception):
    """Raised inside a job that nobody waits for any more."""


class Full(Exception):
    """Too many jobs are waiting."""


Step = Callable[[str, float | None], None]
"""Reports a stage of a job and how much of it is done, from 0 to 1; raises Cancelled in a job that was cancelled."""


class Job:
    """A function to run in the thread, its progress and its result."""

    def __init__(self, work: Callable[[Step], Any]) -> None:
        self.work = work
        self.result: Future[Any] = Future()
        self.stage, self.done = "waiting", None  # type: tuple[str, float | None]
        self.cancelled = False

    def step(self, stage: str, done: float | None = None) -> None:
        if self.cancelled:
            raise Cancelled
        self.stage, self.done = stage, done

    def run(self) -> None:
        try:
            self.step(self.stage)
            self.result.set_result(self.work(self.step))
        except BaseException as error:  # the thread must outlive every job
            self.result.set_exception(error)


class Worker:
    """The thread and its queue."""

    def __init__(self) -> None:
        self.waiting: deque[Job] = deque()
        self.current: Job | None = None
        self.closed = False
        self.change = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="fieldlens-explorer", daemon=True)
        self.thread.start()

    def submit(self, work: Callable[[Step], Any]) -> Job:
        """Put a job into the queue; raises Full if too many are waiting."""
        job = Job(work)
        with self.change:
            self.waiting = deque(other for other in self.waiting if not other.cancelled)
            if len(self.waiting) >= QUEUE:
                raise Full
            self.waiting.append(job)
            self.change.notify()
        return job

    def progress(self, job: Job) -> tuple[str, float | None]:
        """Stage and progress of a job; while it waits, those of the job that runs."""
        current = self.current
        if current is None or current is job or job.result.done():
            return job.stage, job.done
        with self.change:
            ahead = sum(not other.cancelled for other in self.waiting if other is not job)
        return (current.stage if ahead < 1 else f"{current.stage}, {ahead} more requests waiting"), current.done

    def cancel(self) -> None:
        """Cancel all jobs and let the thread end."""
        with self.change:
            self.closed = True
            for job in (*self.waiting, *([self.current] if self.current else [])):
                job.cancelled = True
            self.change.notify()

    def close(self, seconds: float) -> bool:
        """Cancel all jobs and end the thread; returns whether it ended in time."""
        self.cancel()
        self.thread.join(seconds)
        return not self.thread.is_alive()

    def _run(self) -> None:
        while True:
            with self.change:
                self.change.wait_for(lambda: self.waiting or self.closed)
                if self.closed:
                    return
                self.current = self.waiting.popleft()
            self.current.run()
            self.current = None
