"""Run many configs: skip finished runs, resume interrupted ones, and continue when one fails."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .. import files
from ..hardware import Machine
from .engines import Engine, Job, blameless, record_failure
from .share import SMALL, Share, is_address
from .survey import OPEN, Run, State

POLL = 0.5  # seconds
REFRESH = 15.0  # seconds between two downloads from a share
ELSEWHERE = 5.0  # seconds between two checks of runs that other processes hold
ENDING = 60.0  # seconds that workers have to save and end
TRIES = 2  # a run whose worker was killed is tried once more


class Sweep:
    """Run the missing configs, as many at once as the engine has places.

    `finished` is called with each run that a worker completes. The sweep waits for runs that another process holds,
    and takes them over if that process ends without a result."""

    def __init__(
        self, runs: Sequence[Run], machine: Machine, engine: Engine, *, retry_failed: bool = False,
        finished: Callable[[Run], None] = lambda run: None,
    ) -> None:
        self.runs, self.engine, self.finished = runs, engine, finished
        self.out = Path(machine.out).resolve()
        data = None if machine.data is None else str(Path(machine.data).resolve())
        self.machine = replace(machine, out=str(self.out), data=data)
        self.share = Share(machine.share) if machine.share else None
        self.elsewhere = [run for run in runs if run.state is State.RUNNING]
        retried = (State.FAILED,) if retry_failed else ()
        self.waiting = [run for run in runs if run.state in (*OPEN, *retried)]
        self.active: list[Run] = []
        self.probe = ""  # name of a file in `out`; a worker that finds it sees the same folder

    def run(
        self, watch: Callable[[Sequence[Run]], None] = lambda runs: None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Work until all runs are done or `stop` returns True; call `watch` twice per second."""
        probe = self._make_probe()
        self.probe = "" if self.share else probe.name
        looked = asked = time.monotonic()
        try:
            self.engine.check(self.out, self.probe)
            while (self.waiting or self.active or self.elsewhere) and not stop():
                self._start()
                self._collect()
                if self.elsewhere and time.monotonic() - asked > ELSEWHERE:
                    self._take_over()
                    asked = time.monotonic()
                if self.share is not None and time.monotonic() - looked > REFRESH:
                    for run in self.active:
                        self.share.pull(run.folder.path, SMALL)
                    looked = time.monotonic()
                watch(self.runs)
                time.sleep(POLL)
        finally:
            self._end()
            watch(self.runs)
            self.engine.close()
            probe.unlink(missing_ok=True)

    def _start(self) -> None:
        """Start waiting runs while the engine has free places."""
        while self.waiting and len(self.active) < self.engine.places:
            run = self.waiting.pop(0)
            if run.state is State.FAILED:
                self._forget_failure(run)
            job = Job(run.config.to_json(), self.machine, name=run.folder.path.name, probe=self.probe)
            run.handle, run.tries = self.engine.start(job), run.tries + 1
            run.state, run.note = State.RUNNING, ""
            self.active.append(run)

    def _collect(self) -> None:
        """Settle the runs whose workers have ended, and queue killed ones again."""
        for run in list(self.active):
            if run.handle is None or (ended := run.handle.ended()) is None:
                continue
            self.active.remove(run)
            self._settle(run, ended)
            run.tries -= run.state is State.RUNNING or blameless(ended)
            if run.state is State.DONE:
                self.finished(run)
            elif run.state is State.RUNNING:
                self.elsewhere.append(run)
            elif run.state is State.PARTIAL and run.tries < TRIES:
                self.waiting.append(run)
            elif run.state is State.PARTIAL:
                run.state = State.FAILED
                record_failure(run.folder.path, run.note)

    def _settle(self, run: Run, ended: str) -> None:
        """Update a run's state from the files that its worker left."""
        if self.share is not None:
            self.share.pull(run.folder.path, SMALL)
        run.handle = None
        if run.look() in OPEN:  # no result and no failure: the worker was killed
            run.state, run.note = State.PARTIAL, ended or "it ended without a result"

    def _take_over(self) -> None:
        """Queue the runs that other processes ended without a result."""
        self.waiting += [run for run in self.elsewhere if run.look() in OPEN]
        self.elsewhere = [run for run in self.elsewhere if run.state is State.RUNNING]

    def _end(self) -> None:
        """Ask every worker to save and end, then wait for them."""
        handles = [run.handle for run in self.active if run.handle is not None]
        for handle in handles:  # ask all before waiting for any, so that they save in parallel
            handle.stop()
        deadline = time.monotonic() + ENDING
        for run, handle in zip(self.active, handles):
            handle.wait(max(0.0, deadline - time.monotonic()))
            self._settle(run, "stopped")
            if run.state is State.RUNNING:  # it has not ended yet
                run.state, run.note = State.PARTIAL, "stopped"

    def _forget_failure(self, run: Run) -> None:
        """Delete a run's recorded failure before it is tried again, so that no other sweep counts it as failed."""
        (run.folder.path / "failure.json").unlink(missing_ok=True)
        if self.share is not None:
            self.share.remove(run.folder.path, "failure.json")

    def _make_probe(self) -> Path:
        probe = self.out / f".probe-{uuid.uuid4().hex}"
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            probe.touch()
        except OSError as error:
            raise files.cannot_write(self.out, error) from error
        return probe


def collect(runs: Iterable[Run], records: Path | str) -> None:
    """Copy each finished run's result to `records`, the folder or address that the report reads."""
    done = [run for run in runs if run.result is not None and run.folder.result.exists()]  # others come from records
    put({f"{run.config.name}.json": run.folder.result for run in done}, records)


def put(named: Mapping[str, Path], records: Path | str) -> None:
    """Copy files by name into a folder or to an address; skip identical ones."""
    if is_address(str(records)):
        return Share(str(records)).put(dict(named))
    for name, source in named.items():
        path, content = Path(records) / name, source.read_bytes()
        if not path.exists() or path.read_bytes() != content:
            files.write_whole(path, content)
