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
    """The teacher is at work, and the caller did not want to wait; or too many wait already."""


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

    def submit(self, what: str, work: Callable[[Job], Any], *, wait: bool) -> Job:
        """Queue work; raise Busy if the teacher is at work and `wait` is False, or if the queue is full."""
        with self._lock:
            open_jobs = [job for job in self._known.values() if not job.over]
            if open_jobs and not wait:
                raise Busy(f"The model is being changed ({open_jobs[0].what}); try again, or ask to wait.")
            if len(open_jobs) > self.most:
                raise Busy(f"{len(open_jobs)} changes wait already; try again later.")
            job = Job(what)
            self._known[job.id] = job
            for old in [each.id for each in self._known.values() if each.over][:-REMEMBERED]:
                del self._known[old]
            inner = self._teacher.submit(self._run, job, work)
            inner.add_done_callback(lambda ended: self._cancelled(job) if ended.cancelled() else None)
        return job

    def __getitem__(self, key: str) -> Job:
        return self._known[key]

    def close(self) -> None:
        """Finish the job that is running; cancel those that wait."""
        self._teacher.shutdown(wait=True, cancel_futures=True)

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
        job.future.set_exception(Busy("The server is ending; the model was not changed."))
