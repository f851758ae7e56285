"""Work that changes the model: one at a time, in the order of arrival, with progress."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

REMEMBERED = 100  # finished jobs that can still be asked for


class Busy(Exception):
    """The teacher is at work, and the caller did not want to wait."""


class QueueFull(Busy):
    """Too many changes wait already."""


class Ending(Busy):
    """The server is ending, so the change was not begun."""

    def __init__(self) -> None:
        super().__init__("The server is ending, so this was not begun and the model is as it was; send it again later.")


@dataclass
class Job:
    """One change of the model. `future` gives its result or raises its error."""

    what: str
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    state: str = "waiting"  # then running; then done, failed or cancelled
    done: int = 0
    total: int | None = None
    unit: str = ""
    began: float = field(default_factory=time.time)
    future: Future[Any] = field(default_factory=Future)

    def progress(self, done: int, total: int | None, unit: str) -> None:
        self.done, self.total, self.unit = done, total, unit

    @property
    def over(self) -> bool:
        return self.state in ("done", "failed", "cancelled")


class Jobs:
    """The queue of the one teacher."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._known: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._teacher = ThreadPoolExecutor(1, thread_name_prefix="teacher")
        self._ending = False

    def submit(self, what: str, work: Callable[[Job], Any], *, wait: bool) -> Job:
        """Queue work; raise Busy if the teacher is at work and `wait` is False, if the queue is full, or at the end."""
        with self._lock:
            if self._ending:
                raise Ending
            open_jobs = [job for job in self._known.values() if not job.over]
            if open_jobs and not wait:
                raise Busy(f"The model is being changed ({open_jobs[0].what}); try again, or ask to wait.")
            if len(open_jobs) > self.most:
                raise QueueFull(f"{len(open_jobs)} changes wait already; try again later.")
            job = Job(what)
            self._known[job.id] = job
            for old in [each.id for each in self._known.values() if each.over][:-REMEMBERED]:
                del self._known[old]
            inner = self._teacher.submit(self._run, job, work)
            inner.add_done_callback(lambda ended: self._cancelled(job) if ended.cancelled() else None)
        return job

    def __getitem__(self, key: str) -> Job:
        return self._known[key]

    @property
    def idle(self) -> bool:
        """Return True if no job runs or waits."""
        return all(job.over for job in list(self._known.values()))

    def end(self) -> None:
        """Refuse the jobs that wait and all later ones; the job that runs goes on."""
        with self._lock:
            self._ending = True
        self._teacher.shutdown(wait=False, cancel_futures=True)

    def close(self) -> None:
        """Finish the job that is running; refuse those that wait."""
        self.end()
        self._teacher.shutdown(wait=True)

    def _run(self, job: Job, work: Callable[[Job], Any]) -> None:
        job.state = "running"
        try:
            result = work(job)
        except BaseException as error:
            job.state = "failed"
            job.future.set_exception(error)
        else:
            job.state = "done"
            job.future.set_result(result)

    def _cancelled(self, job: Job) -> None:
        job.state = "cancelled"
        job.future.set_exception(Ending())
