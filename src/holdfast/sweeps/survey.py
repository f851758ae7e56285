"""The state of each run of a sweep, and an estimate of the remaining time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from pathlib import Path
from statistics import mean
from typing import Any

import filelock

from .. import data
from ..data.own import check_same
from ..errors import BadData, BadFile, CannotRead
from ..runs.config import Config
from ..runs.folder import RunFolder
from ..runs.records import Record, protocol
from .engines import Handle, failure_of


class State(str, Enum):
    """The state of a run."""

    MISSING = "missing"
    PARTIAL = "partial"
    RUNNING = "running"
    FAILED = "failed"
    DONE = "done"

    def __str__(self) -> str:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.value, spec)


OPEN = (State.MISSING, State.PARTIAL)


@dataclass
class Run:
    """One config of a sweep and its state."""

    config: Config
    folder: RunFolder
    state: State = State.MISSING
    note: str = ""
    result: dict[str, Any] | None = None
    tries: int = 0
    cost: float | None = None  # seconds of one worker from start to end, measured by `cost.measure`
    handle: Handle | None = field(default=None, repr=False)

    @property
    def share(self) -> float:
        """Return the completed fraction, 0 to 1, from the metrics file."""
        if self.state is State.DONE:
            return 1.0
        try:
            lines = self.folder.metrics.read_text(errors="replace").splitlines()
        except OSError:
            return 0.0
        epochs = sum('"epoch"' in line for line in lines)
        return min(1.0, epochs / (self.config.phases() * (self.config.epochs or 1)))

    def look(self) -> State:
        """Read the run's state from its folder."""
        self.state, self.note = State.MISSING, ""
        try:
            self.result = self.folder.read_result()
        except (BadFile, CannotRead) as error:
            self.state, self.note = State.FAILED, str(error)
            return self.state
        if self.result is not None:
            self.state = State.DONE
        elif _locked(self.folder):
            self.state, self.note = State.RUNNING, self.folder.holder()
        elif (failure := failure_of(self.folder.path)) is not None:
            self.state, self.note = State.FAILED, failure
        elif self.folder.checkpoints():
            self.state = State.PARTIAL
        return self.state


def survey(configs: Iterable[Config], out: Path | str, recorded: Iterable[Record] = ()) -> list[Run]:
    """Return the state of each config without changing anything; equal configs count once.

    A run is also done if it is `recorded`, although `out` has no folder of it."""
    runs: dict[str, Run] = {}
    known = {protocol(record.config): record for record in recorded}
    now = cache(data.fingerprint)  # read each data set once
    for config in configs:
        full = config.resolved()
        if full.name in runs:
            continue
        run = runs[full.name] = Run(full, RunFolder(Path(out) / full.name))
        if run.look() in OPEN and (record := known.get(protocol(full))) is not None:
            run.state, run.note, run.result = State.DONE, f"recorded in {record.name}", record.result
        anew = f"start it anew: {full.command()} --fresh"
        try:
            check_same(run.folder.result, (run.result or {}).get("data"), partial(now, full.protocol.dataset), anew)
        except BadData as error:
            run.state, run.note, run.result = State.FAILED, str(error), None
    return list(runs.values())


def _locked(folder: RunFolder) -> bool:
    """Return True if a process holds the run's lock."""
    if not (folder.path / ".lock").exists():
        return False
    try:
        with filelock.FileLock(folder.path / ".lock", timeout=0):
            return False
    except filelock.Timeout:
        return True


def estimate(run: Run, known: Sequence[Run]) -> float:
    """Estimate the seconds one worker still needs for this run: from similar finished runs, or from its `cost`."""

    def traits(each: Run, *names: str) -> list[Any]:
        return [getattr(each.config, name, each.config.get(name)) for name in names]

    def like(*names: str) -> list[float]:
        return [r.result["seconds"] for r in known if r.result and traits(r, *names) == traits(run, *names)]

    seconds = like("benchmark", "method", "memory", "epochs", "quick") or like("benchmark", "method", "epochs", "quick")
    return (mean(seconds) if seconds else run.cost or 0.0) * (1 - run.share)


def passes(config: Config) -> float:
    """Estimate the images that pass through the network, relative to replay."""
    if config.method == "replay":
        return 1.25 if config.get("distill") == "features" else 1.0  # the frozen network also sees the memory's half
    if config.method == "gem":
        return 0.5 * (1 + (config.get("memory") or 0) / config.batch)  # the whole memory in every step
    return 0.6  # new images only, plus a penalty


def time_left(runs: Sequence[Run], places: int) -> float:
    """Estimate the seconds until all runs are done, if nothing else uses the machine."""
    open_runs = [estimate(run, runs) for run in runs if run.state in (*OPEN, State.RUNNING)]
    return max([sum(open_runs) / max(1, places), *open_runs], default=0.0)
